// A matrix product as the rows see it, in whichever form it comes: matmul, scaled_matmul, either fused with a bias
// added or with its columns cut into parts.
#pragma once

#include <vector>

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/matmul/gemm.h"
#include "kernels/cuda/matmul/tiled_gemm.h"

namespace octet::cuda {

// How the scales of an FP8 operand lie (src/ir/scale_layout.h).
enum class ProductScaling : uint8_t { kNone, kTensor, kRow, k1x128, k128x128 };

// One side. Codes [R, C]: the outer dim (M or N) by K, or K by the outer dim.
struct ProductOperand {
  size_t input = 0, scale_input = 0;  // among the node's inputs
  DType dtype = DType::kBF16;
  int64_t outer = 0;
  bool k_inner = false;  // K is contiguous
  ProductScaling scaling = ProductScaling::kNone;
};

struct Product {
  int64_t m = 0, n = 0, k = 0;
  ProductOperand a, b;
  DType out = DType::kBF16;
  int c = -1, bias = -1;  // inputs: [M, N] in the result's type, [N]; -1: none
  DType bias_dtype = DType::kF32;
  bool bias_fused = false;          // by the fusion: may round once more (docs/numerics.md)
  bool forward = false;             // role fprop
  bool tf32 = false;                // float32 operands may be rounded to TF32
  std::vector<int64_t> parts = {};  // columns of each result; empty: one result

  bool fp8() const { return a.scaling != ProductScaling::kNone; }
  int64_t k_blocks() const { return (k + 127) / 128; }
};

// Of a node; kNone: a fusion of anything else.
enum class ProductForm : uint8_t { kNone, kAlone, kBias, kSlices };
ProductForm product_form(const Node& node);
const Node* fused_product(const Graph& body);  // the member that is the product, or null

Product product_of(const Graph& graph, const Node& node);

}  // namespace octet::cuda
