// A product cut into columns with more rows than few: one product a part, with the weights' own rows, so that nothing
// is copied.
#include <algorithm>

#include "kernels/cuda/matmul/gemv_kernels.h"
#include "kernels/cuda/matmul/product.h"

namespace octet::cuda {
namespace {

// One part: a graph of its product, and where its rows of weights and scales begin, in bytes.
struct Part {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>("part");
  NodeId product = NodeId::kNone;
  std::vector<int64_t> offsets;  // by input
};

std::vector<Part> parts_of(const Graph& graph, const Node& node) {
  const Product p = product_of(graph, node);
  const Node* merged = fused_product(*node.body);
  std::vector<Part> parts;
  int64_t begin = 0;
  for (const int64_t width : p.parts) {
    Part part;
    Node product = *merged;
    product.results.clear();
    for (size_t i = 0; i < product.inputs.size(); ++i) {
      TensorType type = node.body->type(product.inputs[i]);
      int64_t offset = 0;
      if (i == p.b.input || (p.fp8() && i == p.b.scale_input && type.shape.elements() > 1)) {
        const bool blocks = i != p.b.input && p.b.scaling == ProductScaling::k128x128;
        const int64_t row_bytes = type.bytes() / type.shape[0], group = blocks ? 128 : 1;
        offset = begin / group * row_bytes;
        type.shape[0] = (width + group - 1) / group;
      }
      part.offsets.push_back(offset);
      Node leaf{.op = Op::kInput, .results = {type}, .name = fmt::format("matmul.{}", i)};
      product.inputs[i] = {part.graph->add(std::move(leaf)), 0};
    }
    part.product = part.graph->add(std::move(product));
    parts.push_back(std::move(part));
    begin += width;
  }
  return parts;
}

}  // namespace

bool accepts_split(const Graph& graph, const Node& node) {
  if (product_form(node) != ProductForm::kSlices) return false;
  const Product p = product_of(graph, node);
  return p.b.k_inner && p.c < 0 && p.bias < 0 && p.b.scaling != ProductScaling::k1x128;  // a part's would have gaps
}

int64_t split_workspace(DeviceContext& context, const Graph& graph, const Node& node) {
  int64_t bytes = 0;
  for (const Part& part : parts_of(graph, node)) {
    const Node& product = part.graph->node(part.product);
    const KernelEntry& row = select_kernel(*part.graph, product);
    if (row.workspace != nullptr) bytes = std::max(bytes, row.workspace(context, *part.graph, product));
  }
  return bytes;
}

BoundKernel bind_split(DeviceContext& context, const Graph& graph, const Node& node) {
  const std::vector<Part> parts = parts_of(graph, node);
  std::vector<BoundKernel> kernels;
  for (const Part& part : parts) {
    const Node& product = part.graph->node(part.product);
    kernels.push_back(select_kernel(*part.graph, product).bind(context, *part.graph, product));
  }
  BoundKernel all = [parts, kernels](const KernelArgs& args) {
    std::vector<Tensor> in;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (args.out[i].data == nullptr) continue;
      in.clear();
      const Node& product = parts[i].graph->node(parts[i].product);
      for (size_t k = 0; k < product.inputs.size(); ++k)
        in.push_back({args.in[k].as<std::byte>() + parts[i].offsets[k], &parts[i].graph->type(product.inputs[k])});
      kernels[i]({in, args.out.subspan(i, 1), args.workspace, args.stream});
    }
  };
  for (const BoundKernel& kernel : kernels) {  // one is enough to be told of
    if (kernel.fallback_kernel != nullptr) all.fallback_kernel = kernel.fallback_kernel;
  }
  return all;
}

}  // namespace octet::cuda
