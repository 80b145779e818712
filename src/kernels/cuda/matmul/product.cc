#include "kernels/cuda/matmul/product.h"

#include "base/error.h"
#include "ir/fusion.h"
#include "kernels/cuda/fusion_body.h"

namespace octet::cuda {

const Node* fused_product(const Graph& body) {
  for (const Node& node : body.nodes()) {
    if (node.op == Op::kMatmul || node.op == Op::kScaledMatmul) return &node;
  }
  return nullptr;
}

namespace {

std::optional<ProductForm> form_of(const Node& node) {
  if (node.op != Op::kFusion) return ProductForm::kAlone;
  const Graph& body = *node.body;
  const Node* product = fused_product(body);
  std::optional<ProductForm> form;
  for (const Node& member : body.nodes()) {
    if (member.op == Op::kInput || &member == product) continue;
    const bool sliced = member.op == Op::kSlice;
    const bool reads = product != nullptr && member.inputs[0].result == 0 && &body.node(member.inputs[0]) == product;
    const bool follows = !form || (sliced && form == ProductForm::kSlices);
    if (!reads || !follows || (!sliced && !is_bias(body, member))) return std::nullopt;
    form = sliced ? ProductForm::kSlices : ProductForm::kBias;
  }
  return form;
}

}  // namespace

std::optional<Product> product_of(const Graph& graph, const Node& node) {
  const std::optional<ProductForm> form = form_of(node);
  if (!form) return std::nullopt;
  const FusionBody body(graph, node);
  const Graph& g = body.graph();
  const Node& product = node.op == Op::kFusion ? *fused_product(g) : node;
  const auto input = [&](const Node& reader, size_t i) { return static_cast<size_t>(body.input(reader, i)); };

  const bool scaled = product.op == Op::kScaledMatmul;
  const size_t b = scaled ? 2 : 1, c = scaled ? 4 : 2;
  const bool trans_a = product.attr<bool>("trans_a");
  const bool trans_b = product.attr<bool>("trans_b");
  const Shape &left = g.shape(product.inputs[0]), &right = g.shape(product.inputs[b]);
  Product p{.form = *form,
            .m = trans_a ? left.cols() : left.rows(),
            .n = trans_b ? right.rows() : right.cols(),
            .k = trans_a ? left.rows() : left.cols(),
            .out = node.results[0].dtype,
            .forward = product.attrs.get_or<std::string>("role", "") == "fprop",
            .tf32 = product.attrs.get_or<bool>("tf32", false)};
  p.a = {.input = input(product, 0), .dtype = g.dtype(product.inputs[0]), .outer = p.m, .k_inner = !trans_a};
  p.b = {.input = input(product, b), .dtype = g.dtype(product.inputs[b]), .outer = p.n, .k_inner = trans_b};
  if (scaled) {
    p.a.scale_input = input(product, 1), p.a.scaling = parse_scale_layout(product.attr<std::string>("scaling_a"));
    p.b.scale_input = input(product, 3), p.b.scaling = parse_scale_layout(product.attr<std::string>("scaling_b"));
  }
  if (product.inputs.size() > c && product.inputs[c].exists()) {
    const bool row = g.shape(product.inputs[c]).rank() == 1;
    (row ? p.bias : p.c) = static_cast<int>(input(product, c));
    if (row) p.bias_dtype = g.dtype(product.inputs[c]);
  }
  if (scaled && product.inputs.size() > 5 && product.inputs[5].exists()) p.zero = static_cast<int>(input(product, 5));
  p.order = product.attrs.get_or<std::string>("order", "");
  if (form == ProductForm::kSlices) {
    for (const TensorType& part : node.results) p.parts.push_back(part.shape.cols());
  } else if (form == ProductForm::kBias) {
    const Node& bias = g.nodes().back();
    p.bias = static_cast<int>(input(bias, 1));
    p.bias_dtype = g.dtype(bias.inputs[1]);
  }
  return p;
}

}  // namespace octet::cuda
