// Rows of the collectives. Parts that are runs of memory (along the first dim) travel from and to where they lie;
// others are packed into the workspace before, or unpacked from it after.
#include "kernels/cuda/collective/ranks.h"

#include <algorithm>
#include <optional>

#include "ir/plan.h"
#include "kernels/cuda/collective/combine.h"
#include "kernels/cuda/collective/product_rows.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/shape/shape.h"

namespace octet::cuda {
namespace {

// A whole tensor as [rows, parts, width bytes]: parts along a dim, within each of what is outside the cut there.
struct PartView {
  int64_t rows, parts, width;

  PartView(const TensorType& whole, int64_t axis, const Layout& cut, int64_t parts)
      : rows(cut.outer(static_cast<int>(axis))), parts(parts), width(dtype_bytes(whole.dtype)) {
    for (int d = 0; d < whole.shape.rank(); ++d) (d < axis ? rows : width) *= whole.shape[d];
    width /= cut.outer(static_cast<int>(axis)) * parts;
  }
  int64_t part_bytes() const { return rows * width; }

  void copy_out(const std::byte* whole, int64_t part, std::byte* to, cudaStream_t stream) const {
    launch_copy_block(whole + part * width, parts * width, to, width, rows, width, stream);
  }
  void copy_in(const std::byte* from, int64_t part, std::byte* whole, cudaStream_t stream) const {
    launch_copy_block(from, width, whole + part * width, parts * width, rows, width, stream);
  }
};

// How one operand travels: from where it lies and to where the result does, or by the workspace.
struct Travel {
  std::optional<PartView> packed, unpacked;
  int64_t packed_at = -1, received_at = -1;  // in the workspace; -1: not there

  const void* sent(const KernelArgs& args, size_t i) const {
    return packed_at < 0 ? args.in[i].data : args.workspace.data() + packed_at;
  }
  void* received(const KernelArgs& args, size_t i) const {
    return received_at < 0 ? args.out[i].data : args.workspace.data() + received_at;
  }
};

struct Journey {
  std::vector<Travel> travels;  // by operand
  int64_t workspace = 0;
  int64_t scratch_at = 0, scratch = 0;  // in the workspace: of parts that travel beside kernels

  int64_t take(int64_t bytes) {
    constexpr int64_t kAlignment = 256;
    const int64_t at = workspace;
    workspace += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
};

AxisList over(const Node& node) { return parse_axes(node.attr<std::string>("over")); }
bool is_reduction(const Node& node, const char* name) { return node.attr<std::string>("reduction") == name; }

Journey journey_of(const Graph& graph, const Node& node, const RankGroup& group) {
  const int64_t parts = graph.mesh().parts(over(node));
  const bool gathered = node.op == Op::kAllReduce && !is_reduction(node, "sum");
  const char* packed = node.op == Op::kReduceScatter ? "axis" : node.op == Op::kAllToAll ? "split_axis" : nullptr;
  const bool unpacked = node.op == Op::kAllGather || node.op == Op::kAllToAll;
  Journey journey;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const TensorType &x = graph.type(node.inputs[i]), &y = node.results[i];
    Travel& travel = journey.travels.emplace_back();
    if (packed != nullptr) {
      const Layout cut = node.layouts.empty() ? Layout() : node.layouts[i];
      const PartView view(x, node.attr<int64_t>(packed), cut, parts);
      if (view.rows > 1) travel.packed = view, travel.packed_at = journey.take(x.bytes());
    }
    if (unpacked) {
      const PartView view(y, node.attr<int64_t>("axis"), graph.layout(node.inputs[i]), parts);
      if (view.rows > 1) travel.unpacked = view, travel.received_at = journey.take(y.bytes());
    }
    if (gathered) travel.received_at = journey.take(parts * x.bytes());
    if (node.op == Op::kReduceScatter && is_async(node)) journey.scratch += group.scratch_bytes(y.bytes());
  }
  journey.scratch_at = journey.take(journey.scratch);
  return journey;
}

// call(group, x, y, operand, result, stream) for each operand, packed before and unpacked after.
template <typename Call>
void travel(RankGroup& group, const Journey& journey, const KernelArgs& args, const Call& call) {
  const auto each = [&](const auto& fn) {
    for (size_t i = 0; i < journey.travels.size(); ++i)
      if (args.out[i].data != nullptr) fn(journey.travels[i], i);
  };
  each([&](const Travel& t, size_t i) {
    if (!t.packed) return;
    for (int64_t p = 0; p < group.size(); ++p)
      t.packed->copy_out(args.in[i].as<std::byte>(), p,
                         args.workspace.data() + t.packed_at + p * t.packed->part_bytes(), args.stream);
  });
  const auto calls = [&] {
    each([&](const Travel& t, size_t i) {
      call(group, t.sent(args, i), t.received(args, i), args.in[i], args.out[i], args.stream);
    });
  };
  group.coalesce(calls, args.workspace.subspan(journey.scratch > 0 ? static_cast<size_t>(journey.scratch_at) : 0,
                                               static_cast<size_t>(journey.scratch)));
  each([&](const Travel& t, size_t i) {
    if (!t.unpacked) return;
    for (int64_t p = 0; p < group.size(); ++p)
      t.unpacked->copy_in(args.workspace.data() + t.received_at + p * t.unpacked->part_bytes(), p,
                          args.out[i].as<std::byte>(), args.stream);
  });
}

using Call = void (*)(RankGroup& group, const void* x, void* y, const Tensor& in, const Tensor& out, cudaStream_t);

void call_all_reduce(RankGroup& group, const void* x, void* y, const Tensor& in, const Tensor&, cudaStream_t stream) {
  group.all_reduce(x, y, in.elements(), in.dtype(), stream);
}
void call_reduce_scatter(RankGroup& group, const void* x, void* y, const Tensor& in, const Tensor& out,
                         cudaStream_t stream) {
  group.reduce_scatter(x, y, out.elements(), in.dtype(), stream);
}
void call_all_gather(RankGroup& group, const void* x, void* y, const Tensor& in, const Tensor&, cudaStream_t stream) {
  group.all_gather(x, y, in.type->bytes(), stream);
}
void call_all_to_all(RankGroup& group, const void* x, void* y, const Tensor& in, const Tensor&, cudaStream_t stream) {
  group.all_to_all(x, y, in.type->bytes() / group.size(), stream);
}

template <Call kCall>
BoundKernel bind_travel(DeviceContext& context, const Graph& graph, const Node& node) {
  if (!context.has_device()) return without_device();
  RankGroup& group = context.ranks().group(over(node));
  const Journey journey = journey_of(graph, node, group);
  return {[&group, journey](const KernelArgs& args) { travel(group, journey, args, kCall); }, journey.workspace};
}

// Of rows gathered from all ranks, joined here in their order.
BoundKernel bind_gathered(DeviceContext& context, const Graph& graph, const Node& node) {
  if (!context.has_device()) return without_device();
  RankGroup& group = context.ranks().group(over(node));
  const Combination kind = is_reduction(node, "max") ? Combination::kMax : Combination::kLogSumExp;
  const Journey journey = journey_of(graph, node, group);
  const auto run = [&group, kind, journey](const KernelArgs& args) {
    travel(group, journey, args, call_all_gather);
    std::vector<Combined> combined;
    for (size_t i = 0; i < journey.travels.size(); ++i) {
      if (args.out[i].data == nullptr) continue;
      const auto rows = journey.travels[i].received(args, i);
      combined.push_back({.rows = rows, .y = args.out[i].data, .count = args.out[i].elements()});
    }
    launch_combine(kind, args.in[0].dtype(), combined, static_cast<int>(group.size()), args.stream);
  };
  return {run, journey.workspace};
}

BoundKernel bind_take_part(DeviceContext& context, const Graph& graph, const Node& node) {
  if (!context.has_device()) return without_device();
  const DeviceRanks& ranks = context.ranks();
  const std::vector<int32_t> group = ranks.mesh().group(ranks.rank(), over(node));
  const int64_t own = std::find(group.begin(), group.end(), ranks.rank()) - group.begin();
  const Layout cut = node.layouts.empty() ? Layout() : node.layouts[0];
  const PartView view(graph.type(node.inputs[0]), node.attr<int64_t>("axis"), cut, std::ssize(group));
  return [=](const KernelArgs& args) {
    view.copy_out(args.in[0].as<std::byte>(), own, args.out[0].as<std::byte>(), args.stream);
  };
}

bool all_of(const Graph& graph, const Node& node, bool (*accepts)(DType)) {
  return std::all_of(node.inputs.begin(), node.inputs.end(), [&](Value v) { return accepts(graph.dtype(v)); });
}
bool is_number(DType dtype) { return is_wide_float(dtype) || dtype == DType::kF64 || dtype == DType::kI32; }

bool are_numbers(const Graph& graph, const Node& node) { return all_of(graph, node, is_number); }
bool is_sum(const Graph& graph, const Node& node) { return is_reduction(node, "sum") && are_numbers(graph, node); }
bool is_gathered(const Graph& graph, const Node& node) {
  if (is_reduction(node, "lse")) return all_of(graph, node, [](DType dtype) { return dtype == DType::kF32; });
  const DType first = graph.dtype(node.inputs[0]);
  return is_reduction(node, "max") && is_number(first) &&
         std::all_of(node.inputs.begin(), node.inputs.end(), [&](Value v) { return graph.dtype(v) == first; });
}

constexpr KernelEntry kKernels[] = {
    {Op::kAllReduce, "all_reduce", bind_if<is_sum, bind_travel<call_all_reduce>>},
    {Op::kAllReduce, "all_reduce_gathered", bind_if<is_gathered, bind_gathered>},
    {Op::kReduceScatter, "reduce_scatter", bind_if<are_numbers, bind_travel<call_reduce_scatter>>},
    {Op::kAllGather, "all_gather", bind_travel<call_all_gather>},
    {Op::kAllToAll, "all_to_all", bind_travel<call_all_to_all>},
    {Op::kTakePart, "take_part", bind_take_part},
    {{Producer::kProduct}, "product_rows", bind_product_rows},
};

}  // namespace

std::span<const KernelEntry> collective_kernels() { return kKernels; }

}  // namespace octet::cuda
