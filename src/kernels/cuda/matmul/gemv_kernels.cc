#include "kernels/cuda/matmul/gemv_kernels.h"

#include <algorithm>

#include "kernels/common/dtype_sets.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/matmul/gemv.h"
#include "kernels/cuda/matmul/product.h"

namespace octet::cuda {
namespace {

bool has_scaling(const Product& p) {
  const auto outside = [](ProductScaling s) { return s == ProductScaling::kTensor || s == ProductScaling::kRow; };
  if (!p.fp8()) return true;
  return (outside(p.a.scaling) && outside(p.b.scaling)) ||
         (p.a.scaling == ProductScaling::k1x128 && p.b.scaling == ProductScaling::k128x128);
}

// Whether nothing in this graph writes the value: a weight, which may be read before the kernels ahead have ended.
bool is_constant_state(const Graph& graph, Value value) {
  const Node& node = graph.node(value);
  if (node.op != Op::kParam && node.op != Op::kState) return false;
  for (const NamedValue& update : graph.updates()) {
    if (update.name == node.name) return false;
  }
  return true;
}

// Rows up to which our kernel is the faster one, by measurement on an H200 (docs/kernels.md). The library has no fast
// kernel for blocks, nor one that writes parts; where each row has a scale, it needs a second pass.
int64_t max_rows(const Product& p) {
  if (!p.parts.empty() || p.a.scaling == ProductScaling::k1x128) return kGemvRows;
  if (!p.fp8()) return 2;
  return p.a.scaling == ProductScaling::kRow || p.b.scaling == ProductScaling::kRow ? 4 : 0;
}

}  // namespace

bool accepts_gemv(const Graph& graph, const Node& node) {
  if (product_form(node) == ProductForm::kNone) return false;
  const Product p = product_of(graph, node);
  const bool types = p.a.dtype == p.b.dtype && p.a.dtype == (p.fp8() ? DType::kE4M3 : DType::kBF16);
  return types && p.m <= max_rows(p) && p.a.k_inner && p.b.k_inner && p.k * dtype_bytes(p.a.dtype) % 16 == 0 &&
         has_scaling(p) && is_wide_float(p.out) && (p.bias < 0 || is_wide_float(p.bias_dtype)) &&
         p.parts.size() <= static_cast<size_t>(kGemvParts);
}

BoundKernel bind_gemv(DeviceContext& context, const Graph& graph, const Node& node) {
  const Product p = product_of(graph, node);
  Gemv gemv{.m = p.m,
            .n = p.n,
            .k = p.k,
            .dtype = p.a.dtype,
            .x_scale_rows = p.a.scaling == ProductScaling::kRow,
            .weight_scale_rows = p.b.scaling == ProductScaling::kRow,
            .blocks = p.a.scaling == ProductScaling::k1x128,
            .weights_ready = is_constant_state(graph, node.inputs[p.b.input]) &&
                             (!p.fp8() || is_constant_state(graph, node.inputs[p.b.scale_input])) &&
                             (p.bias < 0 || is_constant_state(graph, node.inputs[static_cast<size_t>(p.bias)])),
            .bias_dtype = p.bias_dtype,
            .out_dtype = p.out};
  gemv.part_count = static_cast<int>(std::max<size_t>(p.parts.size(), 1));
  gemv.parts[0].end = p.n;
  for (size_t i = 0; i < p.parts.size(); ++i) {
    gemv.parts[i].begin = i == 0 ? 0 : gemv.parts[i - 1].end;
    gemv.parts[i].end = gemv.parts[i].begin + p.parts[i];
  }
  const GemvPlan plan =
      choose_gemv({.n = gemv.n, .k = gemv.k, .dtype = gemv.dtype, .blocks = gemv.blocks}, context.facts());
  BoundKernel kernel = [p, gemv, plan](const KernelArgs& args) mutable {
    const auto data = [&](int input) { return input >= 0 ? args.in[static_cast<size_t>(input)].data : nullptr; };
    gemv.x = args.in[p.a.input].data, gemv.weights = args.in[p.b.input].data;
    if (p.fp8()) {
      gemv.x_scale = args.in[p.a.scale_input].as<float>();
      gemv.weight_scale = args.in[p.b.scale_input].as<float>();
    }
    gemv.c = data(p.c), gemv.bias = data(p.bias);
    for (int i = 0; i < gemv.part_count; ++i) gemv.parts[i].out = args.out[static_cast<size_t>(i)].data;
    launch_gemv(gemv, plan, args.stream);
  };
  kernel.variant = [plan](const KernelArgs&) { return to_string(plan); };
  return kernel;
}

}  // namespace octet::cuda
