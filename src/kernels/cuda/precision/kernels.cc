// Rows of quantize and of what surrounds it.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "kernels/common/scale_index.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"
#include "kernels/cuda/precision/quantize.h"
#include "kernels/cuda/precision/scales.h"
#include "kernels/cuda/precision/tensor_stats.h"

namespace octet::cuda {
namespace {

ScaleAttrs scale_attrs(const Node& node) {
  return {.max = static_cast<float>(dtype_max(parse_dtype(node.attrs.get<std::string>("format")))),
          .margin = static_cast<int>(node.attrs.get_or<int64_t>("margin", 0)),
          .pow2 = node.attrs.get_or<bool>("pow2", false)};
}

bool accepts_quantize(const Graph& graph, const Node& node) {
  return is_f32_or_bf16(graph.dtype(node.inputs[0])) && is_fp8(node.results[0].dtype);
}

// kRow wants the amaxes of the columns first when its transposed results are used.
int64_t quantize_workspace(DeviceContext&, const Graph& graph, const Node& node) {
  const bool by_row = quantize_grouping(node.attrs.get<std::string>("scaling")) == Grouping::kRow;
  return by_row ? graph.shape(node.inputs[0]).cols() * static_cast<int64_t>(sizeof(uint32_t)) : 0;
}

BoundKernel bind_quantize(DeviceContext&, const Graph&, const Node& node) {
  const Grouping grouping = quantize_grouping(node.attrs.get<std::string>("scaling"));
  const auto job_of = [grouping, attrs = scale_attrs(node)](const KernelArgs& args) {
    return QuantizeJob{.rows = args.in[0].shape().rows(),
                       .cols = args.in[0].shape().cols(),
                       .scale = grouping == Grouping::kTensor ? args.in[1].as<const float>() : nullptr,
                       .max = attrs.max,
                       .margin = attrs.margin,
                       .pow2 = attrs.pow2,
                       .codes = args.out[0].as<uint8_t>(),
                       .codes_t = args.out[2].as<uint8_t>(),
                       .scale_inv = args.out[1].as<float>(),
                       .scale_inv_t = args.out[3].as<float>(),
                       .amax = args.out[4].as<float>()};
  };
  BoundKernel kernel = [grouping, job_of](const KernelArgs& args) {
    const Tensor& x = args.in[0];
    if (x.elements() == 0) return;
    launch_quantize(job_of(args), grouping, args.out[0].dtype(), x.data, x.dtype(),
                    reinterpret_cast<uint32_t*>(args.workspace.data()), args.stream);
  };
  kernel.variant = [grouping, job_of](const KernelArgs& args) {
    const QuantizeDesc desc = describe_quantize(job_of(args), grouping, args.in[0].data);
    return to_string(desc, choose_quantize(desc));
  };
  return kernel;
}

// A tensor's scale made from its amax on the way: every block makes it, the first one stores it.
bool accepts_scale_quantize(const Graph&, const Node& node) {
  const std::optional<Chain> chain = chain_of(node, Producer::kPlain);
  return chain && chain->scale != nullptr && accepts_quantize(*node.body, *chain->sinks[0].quantize);
}

BoundKernel bind_scale_quantize(DeviceContext&, const Graph&, const Node& node) {
  const FusionBody body(node);
  const Chain chain = chain_of(node, Producer::kPlain).value();
  const Node &scale = *chain.scale, &quantize = *chain.sinks[0].quantize;
  const int x = body.input(quantize, 0), amax = body.input(scale, 0);
  std::array<int, 2> made{};
  for (int32_t r = 0; r < 2; ++r) made[static_cast<size_t>(r)] = body.result(scale, r);
  std::array<int, 5> results{};
  for (int32_t r = 0; r < 5; ++r) results[static_cast<size_t>(r)] = body.result(quantize, r);
  const DType format = quantize.results[0].dtype;
  return [=, attrs = scale_attrs(scale)](const KernelArgs& args) {
    const auto out = [&](int i) { return i >= 0 ? args.out[static_cast<size_t>(i)].data : nullptr; };
    const Tensor& matrix = args.in[static_cast<size_t>(x)];
    const QuantizeJob job{.rows = matrix.shape().rows(),
                          .cols = matrix.shape().cols(),
                          .scale_from = args.in[static_cast<size_t>(amax)].as<const float>(),
                          .made_scale = static_cast<float*>(out(made[0])),
                          .made_scale_inv = static_cast<float*>(out(made[1])),
                          .max = attrs.max,
                          .margin = attrs.margin,
                          .pow2 = attrs.pow2,
                          .codes = static_cast<uint8_t*>(out(results[0])),
                          .codes_t = static_cast<uint8_t*>(out(results[2])),
                          .scale_inv = static_cast<float*>(out(results[1])),
                          .scale_inv_t = static_cast<float*>(out(results[3])),
                          .amax = static_cast<float*>(out(results[4]))};
    launch_quantize(job, Grouping::kTensor, format, matrix.data, matrix.dtype(), nullptr, args.stream);
  };
}

bool accepts_f32(const Graph& graph, const Node& node) {
  return std::all_of(node.inputs.begin(), node.inputs.end(), [&](Value v) { return graph.dtype(v) == DType::kF32; });
}

BoundKernel bind_compute_scale(DeviceContext&, const Graph&, const Node& node) {
  return [attrs = scale_attrs(node)](const KernelArgs& args) {
    launch_compute_scale(attrs, args.in[0].as<const float>(), args.out[0].as<float>(), args.out[1].as<float>(),
                         args.stream);
  };
}

ScaleTable update_of(const Node& node) {
  ScaleTable table;
  const ScaleAttrs attrs = scale_attrs(node);
  table.margin = attrs.margin, table.pow2 = attrs.pow2;
  table.length = node.results[0].shape.elements();
  table.newest_only = node.attrs.get<std::string>("algo") != "max";
  return table;
}

BoundKernel bind_update_scales(DeviceContext&, const Graph&, const Node& node) {
  return [table = update_of(node), max = scale_attrs(node).max](const KernelArgs& args) mutable {
    table.count = 1;
    table.entries[0] = {args.in[0].as<const float>(), args.in[1].as<const float>(), args.out[0].as<float>(),
                        args.out[1].as<float>(),      args.out[2].as<float>(),      max};
    launch_update_scales(table, args.stream);
  };
}

// --- groups (passes/group_updates.h): the same of many tensors

// Every member is `op`, and there are at most `most`.
bool is_group(const Node& node, Op op, int most) {
  int members = 0;
  for (const Node& member : node.body->nodes()) {
    if (member.op == Op::kInput) continue;
    if (member.op != op || ++members > most || !accepts_f32(*node.body, member)) return false;
  }
  return members > 0;
}

bool accepts_scales_group(const Graph&, const Node& node) { return is_group(node, Op::kUpdateScales, kScaleEntries); }

BoundKernel bind_scales_group(DeviceContext&, const Graph&, const Node& node) {
  struct Member {
    int history, amax, new_history, scale, scale_inv;
    float max;
  };
  const FusionBody body(node);
  std::vector<Member> members;
  ScaleTable table;
  for (const Node& member : body.graph().nodes()) {
    if (member.op != Op::kUpdateScales) continue;
    table = update_of(member);
    members.push_back({body.input(member, 0), body.input(member, 1), body.result(member, 0), body.result(member, 1),
                       body.result(member, 2), scale_attrs(member).max});
  }
  return [table, members](const KernelArgs& args) mutable {
    const auto in = [&](int i) { return args.in[static_cast<size_t>(i)].as<const float>(); };
    const auto out = [&](int i) { return i < 0 ? nullptr : args.out[static_cast<size_t>(i)].as<float>(); };
    table.count = 0;
    for (const Member& m : members) {
      table.entries[table.count++] = {in(m.history), in(m.amax),       out(m.new_history),
                                      out(m.scale),  out(m.scale_inv), m.max};
    }
    launch_update_scales(table, args.stream);
  };
}

bool accepts_maximum_group(const Graph&, const Node& node) {
  const TensorType one{DType::kF32, {1}};
  if (!is_group(node, Op::kMaximum, kMaximumEntries)) return false;
  return std::all_of(node.results.begin(), node.results.end(), [&](const TensorType& type) { return type == one; });
}

BoundKernel bind_maximum_group(DeviceContext&, const Graph&, const Node& node) {
  const FusionBody body(node);
  std::vector<std::array<int, 3>> members;
  for (const Node& member : body.graph().nodes()) {
    if (member.op == Op::kMaximum && body.result(member, 0) >= 0)
      members.push_back({body.input(member, 0), body.input(member, 1), body.result(member, 0)});
  }
  return [members](const KernelArgs& args) {
    MaximumTable table;
    for (const auto& [a, b, to] : members) {
      table.entries[table.count++] = {args.in[static_cast<size_t>(a)].as<const float>(),
                                      args.in[static_cast<size_t>(b)].as<const float>(),
                                      args.out[static_cast<size_t>(to)].as<float>()};
    }
    launch_maxima(table, args.stream);
  };
}

bool accepts_dequantize(const Graph& graph, const Node& node) {
  return is_fp8(graph.dtype(node.inputs[0])) && is_f32_or_bf16(node.results[0].dtype) &&
         graph.shape(node.inputs[0]).elements() < int64_t{1} << 31;
}

int32_t shift_of(int64_t divisor) { return divisor == 1 ? 0 : divisor == kScaleBlock ? 7 : 31; }

BoundKernel bind_dequantize(DeviceContext&, const Graph& graph, const Node& node) {
  const ScaleIndex at(graph.shape(node.inputs[0]), graph.shape(node.inputs[1]));
  return [at](const KernelArgs& args) {
    const Tensor& codes = args.in[0];
    if (codes.elements() == 0) return;
    const DequantizeJob job{.codes = codes.as<const uint8_t>(),
                            .scale_inv = args.in[1].as<const float>(),
                            .rows = codes.shape().rows(),
                            .cols = codes.shape().cols(),
                            .row_shift = shift_of(at.row_divisor),
                            .col_shift = shift_of(at.col_divisor),
                            .row_stride = at.row_stride,
                            .col_stride = at.col_stride};
    launch_dequantize(job, codes.dtype(), args.out[0].data, args.out[0].dtype(), args.stream);
  };
}

bool accepts_stats(const Graph& graph, const Node& node) { return is_f32_or_bf16(graph.dtype(node.inputs[0])); }

int64_t stats_workspace(DeviceContext&, const Graph& graph, const Node& node) {
  const Shape& shape = graph.shape(node.inputs[0]);
  return tensor_stats_workspace(shape.rows(), shape.cols());
}

BoundKernel bind_stats(DeviceContext&, const Graph&, const Node& node) {
  const ScaleAttrs tensor = scale_attrs(node);
  const ScaleAttrs block{.max = static_cast<float>(dtype_max(DType::kE4M3)), .margin = tensor.margin, .pow2 = true};
  const DType format = parse_dtype(node.attrs.get<std::string>("format"));
  const bool tiles = node.attrs.get<std::string>("blocks") == "128x128";
  return [=](const KernelArgs& args) {
    const Tensor& x = args.in[0];
    const StatsJob job{.x = x.data,
                       .rows = x.shape().rows(),
                       .cols = x.shape().cols(),
                       .tiles = tiles,
                       .tensor = tensor,
                       .block = block,
                       .stats = args.out[0].as<float>()};
    if (job.stats != nullptr) launch_tensor_stats(job, x.dtype(), format, args.workspace.data(), args.stream);
  };
}

constexpr KernelEntry kKernels[] = {
    {Op::kQuantize, "quantize_tiles", accepts_quantize, bind_quantize, quantize_workspace},
    {Op::kFusion, "scale_quantize_tiles", accepts_scale_quantize, bind_scale_quantize},
    {Op::kDequantize, "dequantize_runs", accepts_dequantize, bind_dequantize},
    {Op::kComputeScale, "compute_scale", accepts_f32, bind_compute_scale},
    {Op::kUpdateScales, "update_scales", accepts_f32, bind_update_scales},
    {Op::kFusion, "update_scales_group", accepts_scales_group, bind_scales_group},
    {Op::kFusion, "maximum_group", accepts_maximum_group, bind_maximum_group},
    {Op::kTensorStats, "tensor_stats_tiles", accepts_stats, bind_stats, stats_workspace},
};

}  // namespace

Grouping quantize_grouping(std::string_view scaling) {
  if (scaling == "tensor") return Grouping::kTensor;
  if (scaling == "row") return Grouping::kRow;
  return scaling == "1x128" ? Grouping::kRow128 : Grouping::kTile128;
}

QuantizeDesc describe_quantize(const QuantizeJob& job, Grouping grouping, const void* x) {
  const auto begins_at = [](const void* data, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % bytes == 0;
  };
  return {.rows = job.rows,
          .cols = job.cols,
          .grouping = grouping,
          .plain = job.codes != nullptr || job.scale_inv != nullptr || job.amax != nullptr,
          .transposed = job.codes_t != nullptr || (grouping != Grouping::kTensor && job.scale_inv_t != nullptr),
          .row_vector = job.cols % kRowGroup == 0 && begins_at(x, 16) && begins_at(job.codes, kRowGroup)};
}

std::span<const KernelEntry> precision_kernels() { return kKernels; }

}  // namespace octet::cuda
