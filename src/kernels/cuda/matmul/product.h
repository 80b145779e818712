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

// How a node holds a product: alone, or a fusion of it and a bias, or of it and slices of its columns.
enum class ProductForm : uint8_t { kAlone, kBias, kSlices };

struct Product {
  ProductForm form = ProductForm::kAlone;
  int64_t m = 0, n = 0, k = 0;
  ProductOperand a, b;
  DType out = DType::kBF16;
  int c = -1, bias = -1;  // inputs: [M, N] in the result's type, [N]; -1: none
  DType bias_dtype = DType::kF32;
  bool forward = false;             // role fprop
  bool tf32 = false;                // float32 operands may be rounded to TF32
  std::vector<int64_t> parts = {};  // columns of each result; empty: one result
  int zero = -1;                    // input: zero points of b's integer codes
  std::string order = {};           // of b's integer codes (kernels/common/code_order.h)

  bool bias_fused() const { return form == ProductForm::kBias; }  // may round once more (docs/numerics.md)
  bool fp8() const { return a.scaling.has_value(); }
  int64_t k_blocks() const { return (k + 127) / 128; }
};

const Node* fused_product(const Graph& body);  // the member that is the product, or null

std::optional<Product> product_of(const Graph& graph, const Node& node);  // none: a fusion of anything else

// A node's kernel, if it is a product and kBind takes that.
using BindProduct = BoundKernel (*)(DeviceContext& context, const Graph& graph, const Node& node, const Product& p);
template <BindProduct kBind>
BoundKernel bind_product(DeviceContext& context, const Graph& graph, const Node& node) {
  const std::optional<Product> p = product_of(graph, node);
  return p ? kBind(context, graph, node, *p) : BoundKernel();
}

// --- entries, each for any of the forms
BoundKernel bind_gemv(DeviceContext& context, const Graph& graph, const Node& node, const Product& p);
// Codes of int8 on both sides, a scale a row or tensor: exact sums, so the same bits for any number of rows.
BoundKernel bind_int8(DeviceContext& context, const Graph& graph, const Node& node, const Product& p);
// Weights in integer codes.
BoundKernel bind_int4(DeviceContext& context, const Graph& graph, const Node& node, const Product& p);
BoundKernel bind_integer_tiled(DeviceContext& context, const Graph& graph, const Node& node, const Product& p);
// matmul_split with any number of rows: a product for each part.
BoundKernel bind_split(DeviceContext& context, const Graph& graph, const Node& node, const Product& p);
bool takes_split(const Product& p);

// Whether nothing in this graph writes the value: a weight, which may be read before the kernels ahead have ended; and
// the same of weights, their scales and a bias.
bool is_constant_state(const Graph& graph, Value value);
bool weights_ready(const Graph& graph, const Node& node, const Product& p);

}  // namespace octet::cuda
