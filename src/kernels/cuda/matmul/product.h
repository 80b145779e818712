// A matrix product as the rows see it, in whichever form it comes: matmul, scaled_matmul, either fused with a bias
// added or with its columns cut into parts.
#pragma once

#include <optional>
#include <vector>

#include "ir/scale_layout.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/matmul/gemm.h"
#include "kernels/cuda/matmul/launchers.h"

namespace octet::cuda {

// One side. Codes [R, C]: the outer dim (M or N) by K, or K by the outer dim.
struct ProductOperand {
  size_t input = 0, scale_input = 0;  // among the node's inputs
  DType dtype = DType::kBF16;
  int64_t outer = 0;
  bool k_inner = false;                     // K is contiguous
  std::optional<ScaleLayout> scaling = {};  // of FP8 codes
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
  int zero = -1;                    // input: zero points of b's integer codes
  std::string order = {};           // of b's integer codes (kernels/common/code_order.h)

  bool fp8() const { return a.scaling.has_value(); }
  int64_t k_blocks() const { return (k + 127) / 128; }
};

// Of a node; kNone: a fusion of anything else.
enum class ProductForm : uint8_t { kNone, kAlone, kBias, kSlices };
ProductForm product_form(const Node& node);
const Node* fused_product(const Graph& body);  // the member that is the product, or null

Product product_of(const Graph& graph, const Node& node);

// --- entries, each for any of the forms
bool accepts_gemv(const Graph& graph, const Node& node);  // any of the forms; fusions of other kinds: false
BoundKernel bind_gemv(DeviceContext& context, const Graph& graph, const Node& node);

// Codes of int8 on both sides, a scale a row or tensor: exact sums, so the same bits for any number of rows.
bool accepts_int8(const Graph& graph, const Node& node);
BoundKernel bind_int8(DeviceContext& context, const Graph& graph, const Node& node);

// Weights in integer codes.
bool accepts_int4(const Graph& graph, const Node& node);
BoundKernel bind_int4(DeviceContext& context, const Graph& graph, const Node& node);
bool accepts_integer_tiled(const Graph& graph, const Node& node);
BoundKernel bind_integer_tiled(DeviceContext& context, const Graph& graph, const Node& node);

// Whether nothing in this graph writes the value: a weight, which may be read before the kernels ahead have ended; and
// the same of weights, their scales and a bias.
bool is_constant_state(const Graph& graph, Value value);
bool weights_ready(const Graph& graph, const Node& node, const Product& p);

// matmul_split with any number of rows: a product for each part.
bool accepts_split(const Graph& graph, const Node& node);
int64_t split_workspace(DeviceContext& context, const Graph& graph, const Node& node);
BoundKernel bind_split(DeviceContext& context, const Graph& graph, const Node& node);

}  // namespace octet::cuda
