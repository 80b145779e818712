// Products with few rows, and products cut into columns with more rows than few: one product a part, with the weights'
// own rows, so that nothing is copied.
#include <algorithm>

#include "kernels/common/dtype_sets.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/matmul/product.h"

namespace octet::cuda {
namespace {

bool has_scaling(const Product& p) {
  const auto outside = [](std::optional<ScaleLayout> s) { return s == ScaleLayout::kTensor || s == ScaleLayout::kRow; };
  if (!p.fp8()) return true;
  return (outside(p.a.scaling) && outside(p.b.scaling)) ||
         (p.a.scaling == ScaleLayout::kRow128 && p.b.scaling == ScaleLayout::kTile128);
}

}  // namespace

bool is_constant_state(const Graph& graph, Value value) {
  const Node& node = graph.node(value);
  if (node.op != Op::kParam && node.op != Op::kState) return false;
  for (const NamedValue& update : graph.updates()) {
    if (update.name == node.name) return false;
  }
  return true;
}

bool weights_ready(const Graph& graph, const Node& node, const Product& p) {
  return is_constant_state(graph, node.inputs[p.b.input]) &&
         (!p.fp8() || is_constant_state(graph, node.inputs[p.b.scale_input])) &&
         (p.bias < 0 || is_constant_state(graph, node.inputs[static_cast<size_t>(p.bias)]));
}

namespace {

// Rows up to which our kernel is the faster one, by measurement on an H200 (docs/kernels.md). The library has no fast
// kernel for blocks, nor one that writes parts; where each row has a scale, it needs a second pass.
int64_t max_rows(const Product& p) {
  if (!p.parts.empty() || p.a.scaling == ScaleLayout::kRow128) return kGemvRows;
  if (!p.fp8()) return 2;
  return p.a.scaling == ScaleLayout::kRow || p.b.scaling == ScaleLayout::kRow ? 4 : 0;
}

// --- parts
// One part: a graph of its product, and where its rows of weights and scales begin, in bytes.
struct Part {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>("part");
  NodeId product = NodeId::kNone;
  std::vector<int64_t> offsets;  // by input
};

std::vector<Part> parts_of(const Node& node, const Product& p) {
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
        const bool blocks = i != p.b.input && p.b.scaling == ScaleLayout::kTile128;
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

bool takes_gemv(const Product& p) {
  const bool types = p.a.dtype == p.b.dtype && p.a.dtype == (p.fp8() ? DType::kE4M3 : DType::kBF16);
  return types && p.m <= max_rows(p) && p.a.k_inner && p.b.k_inner && p.k * dtype_bytes(p.a.dtype) % 16 == 0 &&
         has_scaling(p) && is_wide_float(p.out) && (p.bias < 0 || is_wide_float(p.bias_dtype)) &&
         p.parts.size() <= static_cast<size_t>(kGemvParts);
}

bool takes_int8(const Product& p) {
  constexpr int64_t kMaxDepth = int64_t{1} << 17;  // sums stay below 2^31
  return p.fp8() && p.a.dtype == DType::kI8 && p.b.dtype == DType::kI8 && p.order.empty() && p.zero < 0 &&
         p.a.k_inner && p.b.k_inner && p.k % 16 == 0 && p.k < kMaxDepth && has_scaling(p) &&
         p.a.scaling != ScaleLayout::kRow128 && is_wide_float(p.out) && (p.bias < 0 || is_wide_float(p.bias_dtype)) &&
         p.parts.size() <= static_cast<size_t>(kGemvParts);
}

// All but the pointers.
Gemv gemv_of(const Graph& graph, const Node& node, const Product& p) {
  Gemv gemv{.m = p.m,
            .n = p.n,
            .k = p.k,
            .dtype = p.a.dtype,
            .x_scale_rows = p.a.scaling == ScaleLayout::kRow,
            .weight_scale_rows = p.b.scaling == ScaleLayout::kRow,
            .blocks = p.a.scaling == ScaleLayout::kRow128,
            .weights_ready = weights_ready(graph, node, p),
            .bias_dtype = p.bias_dtype,
            .out_dtype = p.out};
  gemv.part_count = static_cast<int>(std::max<size_t>(p.parts.size(), 1));
  gemv.parts[0].end = p.n;
  for (size_t i = 0; i < p.parts.size(); ++i) {
    gemv.parts[i].begin = i == 0 ? 0 : gemv.parts[i - 1].end;
    gemv.parts[i].end = gemv.parts[i].begin + p.parts[i];
  }
  return gemv;
}

void put_pointers(const KernelArgs& args, const Product& p, Gemv& gemv) {
  gemv.x = args.in[p.a.input].data, gemv.weights = args.in[p.b.input].data;
  if (p.fp8()) {
    gemv.x_scale = args.in[p.a.scale_input].as<float>();
    gemv.weight_scale = args.in[p.b.scale_input].as<float>();
  }
  gemv.c = at(args.in, p.c), gemv.bias = at(args.in, p.bias);
  for (int i = 0; i < gemv.part_count; ++i) gemv.parts[i].out = args.out[static_cast<size_t>(i)].data;
}

GemvPlan plan_of(const Gemv& gemv, const DeviceFacts& device) {
  return choose(GemvDesc{.n = gemv.n, .k = gemv.k, .dtype = gemv.dtype, .blocks = gemv.blocks}, device);
}

// From row `first` on, as many as the kernel takes.
Gemv rows_from(const Gemv& all, int64_t first) {
  const auto on = [](const void* data, int64_t bytes) {
    return data == nullptr ? nullptr : const_cast<std::byte*>(static_cast<const std::byte*>(data)) + bytes;
  };
  Gemv gemv = all;
  const int64_t out_bytes = dtype_bytes(all.out_dtype);
  gemv.m = std::min(all.m - first, kGemvRows);
  gemv.x = on(all.x, first * all.k), gemv.c = on(all.c, first * all.n * out_bytes);
  if (all.x_scale_rows) gemv.x_scale += first;
  for (GemvPart& part : gemv.parts) part.out = on(part.out, first * (part.end - part.begin) * out_bytes);
  return gemv;
}

}  // namespace

BoundKernel bind_gemv(DeviceContext& context, const Graph& graph, const Node& node, const Product& p) {
  if (!takes_gemv(p)) return {};
  Gemv gemv = gemv_of(graph, node, p);
  const GemvPlan plan = plan_of(gemv, context.facts());
  return {[p, gemv, plan](const KernelArgs& args) mutable {
            put_pointers(args, p, gemv);
            launch_gemv(gemv, plan, args.stream);
          },
          [plan](const KernelArgs&) { return to_string(plan); }};
}

// Tensor cores' tiles want whole runs of eight columns; products without go through the kernel of few rows.
BoundKernel bind_int8(DeviceContext& context, const Graph& graph, const Node& node, const Product& p) {
  if (!takes_int8(p)) return {};
  Gemv gemv = gemv_of(graph, node, p);
  const auto in_runs = [](int64_t columns) { return columns % 8 == 0; };
  if (p.m > kGemvRows && in_runs(p.n) && std::ranges::all_of(p.parts, in_runs)) {
    const Int8Plan plan = choose(Int8Desc{p.m, p.n, p.k}, context.facts());
    return {[p, gemv, plan](const KernelArgs& args) mutable {
              put_pointers(args, p, gemv);
              launch_int8_wgmma(gemv, plan, args.stream);
            },
            [plan](const KernelArgs&) { return to_string(plan); }};
  }
  const GemvPlan plan = plan_of(gemv, context.facts());
  return {[p, gemv, plan](const KernelArgs& args) mutable {
            put_pointers(args, p, gemv);
            for (int64_t first = 0; first < p.m; first += kGemvRows)
              launch_gemv(rows_from(gemv, first), plan, args.stream);
          },
          [plan](const KernelArgs&) { return to_string(plan); }};
}

bool takes_split(const Product& p) {
  return p.form == ProductForm::kSlices && p.b.k_inner && p.c < 0 && p.bias < 0 && !is_integer_code(p.b.dtype) &&
         p.b.scaling != ScaleLayout::kRow128;  // a part's would have gaps
}

BoundKernel bind_split(DeviceContext& context, const Graph&, const Node& node, const Product& p) {
  if (!takes_split(p)) return {};
  const std::vector<Part> parts = parts_of(node, p);
  std::vector<BoundKernel> kernels;
  int64_t workspace = 0;
  for (const Part& part : parts) {
    BoundKernel kernel = find_kernel(context, *part.graph, part.graph->node(part.product)).kernel;
    if (!kernel) return {};
    workspace = std::max(workspace, kernel.workspace);
    kernels.push_back(std::move(kernel));
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
  all.workspace = workspace;
  for (const BoundKernel& kernel : kernels) {  // one is enough to be told of
    if (kernel.fallback_kernel != nullptr) all.fallback_kernel = kernel.fallback_kernel;
  }
  return all;
}

}  // namespace octet::cuda
