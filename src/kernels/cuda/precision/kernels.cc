// Rows of quantize and of what surrounds it.
#include <algorithm>
#include <array>
#include <bit>

#include "base/error.h"
#include "ir/nf4.h"
#include "kernels/common/scale_index.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"
#include "kernels/cuda/precision/quantize.h"
#include "kernels/cuda/precision/scales.h"

namespace octet::cuda {
namespace {

ScaleFormula formula_of(const Node& node) {
  return scale_formula(node, parse_dtype(node.attrs.get<std::string>("format")));
}

bool takes_quantize(const Graph& graph, const Node& node) {
  const int64_t group = scale_group(parse_scale_layout(node.attrs.get<std::string>("scaling")));
  const DType format = node.results[0].dtype;
  return is_f32_or_bf16(graph.dtype(node.inputs[0])) && (is_fp8(format) || format == DType::kI8) &&
         group % kScaleBlock == 0;
}

BoundKernel bind_quantize(DeviceContext&, const Graph& graph, const Node& node) {
  if (!takes_quantize(graph, node)) return {};
  const ScaleLayout grouping = parse_scale_layout(node.attrs.get<std::string>("scaling"));
  const auto job_of = [grouping, formula = formula_of(node)](const KernelArgs& args) {
    return QuantizeJob{.rows = args.in[0].shape().rows(),
                       .cols = args.in[0].shape().cols(),
                       .scale = grouping == ScaleLayout::kTensor ? args.in[1].as<const float>() : nullptr,
                       .formula = formula,
                       .codes = args.out[0].as<uint8_t>(),
                       .codes_t = args.out[2].as<uint8_t>(),
                       .scale_inv = args.out[1].as<float>(),
                       .scale_inv_t = args.out[3].as<float>(),
                       .amax = args.out[4].as<float>(),
                       .next_reads_ahead = args.next_reads_ahead};
  };
  return {[grouping, job_of](const KernelArgs& args) {
            const Tensor& x = args.in[0];
            if (x.elements() == 0) return;
            launch_quantize(job_of(args), grouping, args.out[0].dtype(), x.data, x.dtype(),
                            reinterpret_cast<uint32_t*>(args.workspace.data()), args.stream);
          },
          [grouping, job_of](const KernelArgs& args) {
            const QuantizeDesc desc = describe_quantize(job_of(args), grouping, args.in[0].data);
            return to_string(desc, choose_quantize(desc));
          },
          // kRow wants the amaxes of the columns first when its transposed results are used.
          grouping == ScaleLayout::kRow ? graph.shape(node.inputs[0]).cols() * int64_t{sizeof(uint32_t)} : 0};
}

// A tensor's scale made from its amax on the way: every block makes it, the first one stores it.
BoundKernel bind_scale_quantize(DeviceContext&, const Fusion& fusion) {
  const FusionBody& body = fusion.body;
  const Chain& chain = *fusion.chain;
  if (chain.scale == nullptr || !takes_quantize(body.graph(), *chain.sinks[0].quantize)) return {};
  const Node &scale = *chain.scale, &quantize = *chain.sinks[0].quantize;
  const int x = body.input(quantize, 0), amax = body.input(scale, 0);
  const int made_scale = body.result(scale, 0), made_scale_inv = body.result(scale, 1);
  const SinkPlaces places(body, chain.sinks[0]);
  const DType format = quantize.results[0].dtype;
  return [=, formula = formula_of(scale)](const KernelArgs& args) {
    const Tensor& matrix = args.in[static_cast<size_t>(x)];
    QuantizeJob job{.rows = matrix.shape().rows(),
                    .cols = matrix.shape().cols(),
                    .scale_from = at<const float>(args.in, amax),
                    .made_scale = at<float>(args.out, made_scale),
                    .made_scale_inv = at<float>(args.out, made_scale_inv),
                    .formula = formula};
    places.put_results(args, job);
    launch_quantize(job, ScaleLayout::kTensor, format, matrix.data, matrix.dtype(), nullptr, args.stream);
  };
}

bool are_f32(const Graph& graph, const Node& node) {
  return std::all_of(node.inputs.begin(), node.inputs.end(), [&](Value v) { return graph.dtype(v) == DType::kF32; });
}

BoundKernel bind_compute_scale(DeviceContext&, const Graph&, const Node& node) {
  return [formula = formula_of(node)](const KernelArgs& args) {
    launch_compute_scale(formula, args.in[0].as<const float>(), args.out[0].as<float>(), args.out[1].as<float>(),
                         args.stream);
  };
}

ScaleTable update_of(const Node& node) {
  ScaleTable table;
  const ScaleFormula formula = formula_of(node);
  table.margin = formula.margin, table.pow2 = formula.pow2;
  table.length = node.results[0].shape.elements();
  table.newest_only = node.attrs.get<std::string>("algo") != "max";
  return table;
}

// Where an update's operands are among the node's inputs and results.
struct ScaleMember {
  int history, amax, new_history, scale, scale_inv;
  float max;
};

// finite: the input that says whether the step counts, the same of all members; -1: there is none.
BoundKernel bind_members(const ScaleTable& update, const std::vector<ScaleMember>& members, int finite) {
  return [table = update, members, finite](const KernelArgs& args) mutable {
    const auto in = [&](int i) { return at<const float>(args.in, i); };
    const auto out = [&](int i) { return at<float>(args.out, i); };
    table.count = 0;
    table.finite = finite < 0 ? nullptr : in(finite);
    for (const ScaleMember& m : members) {
      table.entries[table.count++] = {in(m.history), in(m.amax),       out(m.new_history),
                                      out(m.scale),  out(m.scale_inv), m.max};
    }
    launch_update_scales(table, args.stream);
  };
}

BoundKernel bind_update_scales(DeviceContext&, const Graph&, const Node& node) {
  return bind_members(update_of(node), {{0, 1, 0, 1, 2, formula_of(node).max}}, node.inputs.size() > 2 ? 2 : -1);
}

// --- groups (passes/group_updates.h): the same of many tensors

// Every member is `op`, and there are at most `most`.
bool is_group(const Node& node, Op op, int most) {
  int members = 0;
  for (const Node& member : node.body->nodes()) {
    if (member.op == Op::kInput) continue;
    if (member.op != op || ++members > most || !are_f32(*node.body, member)) return false;
  }
  return members > 0;
}

BoundKernel bind_scales_group(DeviceContext&, const Fusion& fusion) {
  if (!is_group(fusion.node, Op::kUpdateScales, kScaleEntries)) return {};
  const FusionBody& body = fusion.body;
  std::vector<ScaleMember> members;
  ScaleTable table;
  std::optional<Value> finite;  // one for all members, or none
  for (const Node& member : body.graph().nodes()) {
    if (member.op != Op::kUpdateScales) continue;
    table = update_of(member);
    const Value own = member.inputs.size() > 2 ? member.inputs[2] : Value::none();
    if (own != finite.value_or(own)) return {};
    finite = own;
    members.push_back({body.input(member, 0), body.input(member, 1), body.result(member, 0), body.result(member, 1),
                       body.result(member, 2), formula_of(member).max});
  }
  return bind_members(table, members, body.input(*finite));
}

BoundKernel bind_maximum_group(DeviceContext&, const Fusion& fusion) {
  const auto is_one = [](const TensorType& type) { return type == TensorType{DType::kF32, {1}}; };
  if (!is_group(fusion.node, Op::kMaximum, kMaximumEntries) || !std::ranges::all_of(fusion.node.results, is_one))
    return {};
  const FusionBody& body = fusion.body;
  std::vector<std::array<int, 3>> members;
  for (const Node& member : body.graph().nodes()) {
    if (member.op == Op::kMaximum && body.result(member, 0) >= 0)
      members.push_back({body.input(member, 0), body.input(member, 1), body.result(member, 0)});
  }
  return [members](const KernelArgs& args) {
    MaximumTable table;
    for (const auto& [a, b, to] : members) {
      table.entries[table.count++] = {at<const float>(args.in, a), at<const float>(args.in, b),
                                      at<float>(args.out, to)};
    }
    launch_maxima(table, args.stream);
  };
}

int32_t shift_of(int64_t divisor) { return divisor == 1 ? 0 : divisor == kScaleBlock ? 7 : 31; }

BoundKernel bind_dequantize(DeviceContext&, const Graph& graph, const Node& node) {
  if (!is_fp8(graph.dtype(node.inputs[0])) || !is_f32_or_bf16(node.results[0].dtype) ||
      graph.shape(node.inputs[0]).elements() >= int64_t{1} << 31)
    return {};
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

BoundKernel bind_dequantize_nf4(DeviceContext&, const Graph& graph, const Node& node) {
  const int64_t group = node.attr<int64_t>("group"), count = graph.shape(node.inputs[0]).elements();
  if (!is_f32_or_bf16(node.results[0].dtype) || count >= int64_t{1} << 34) return {};
  static const Nf4Tables kTables = {kNf4Values, nf4_magnitude_values()};
  return [group](const KernelArgs& args) {
    const Nf4Job job{.codes = args.in[0].as<const uint8_t>(),
                     .magnitudes = args.in[1].as<const int8_t>(),
                     .scales = args.in[2].as<const float>(),
                     .offsets = args.in[3].as<const float>(),
                     .count = args.in[0].elements(),
                     .row_blocks = static_cast<uint32_t>(args.in[1].shape().cols()),
                     .group_shift = static_cast<uint32_t>(std::countr_zero(static_cast<uint64_t>(group)))};
    if (job.count > 0) launch_dequantize_nf4(job, kTables, args.out[0].data, args.out[0].dtype(), args.stream);
  };
}

BoundKernel bind_stats(DeviceContext&, const Graph& graph, const Node& node) {
  if (!first_is_f32_or_bf16(graph, node)) return {};
  const Shape& shape = graph.shape(node.inputs[0]);
  const ScaleFormula tensor = formula_of(node);
  const ScaleFormula block{static_cast<float>(dtype_max(DType::kE4M3)), tensor.margin, true};
  const DType format = parse_dtype(node.attrs.get<std::string>("format"));
  const bool tiles = node.attrs.get<std::string>("blocks") == "128x128";
  const auto run = [=](const KernelArgs& args) {
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
  return {run, tensor_stats_workspace(shape.rows(), shape.cols())};
}

constexpr KernelEntry kKernels[] = {
    {Op::kQuantize, "quantize_tiles", bind_quantize},
    {{Producer::kPlain}, "scale_quantize_tiles", bind_scale_quantize},
    {Op::kDequantize, "dequantize_runs", bind_dequantize},
    {Op::kDequantizeNf4, "dequantize_nf4_runs", bind_dequantize_nf4},
    {Op::kComputeScale, "compute_scale", bind_if<are_f32, bind_compute_scale>},
    {Op::kUpdateScales, "update_scales", bind_if<are_f32, bind_update_scales>},
    {{Producer::kUpdate}, "update_scales_group", bind_scales_group},
    {{Producer::kUpdate}, "maximum_group", bind_maximum_group},
    {Op::kTensorStats, "tensor_stats_tiles", bind_stats},
};

}  // namespace

QuantizeDesc describe_quantize(const QuantizeJob& job, ScaleLayout grouping, const void* x) {
  const auto begins_at = [](const void* data, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % bytes == 0;
  };
  return {.rows = job.rows,
          .cols = job.cols,
          .grouping = grouping,
          .plain = job.codes != nullptr || job.scale_inv != nullptr || job.amax != nullptr,
          .transposed = job.codes_t != nullptr || (grouping != ScaleLayout::kTensor && job.scale_inv_t != nullptr),
          .row_vector = job.cols % kRowGroup == 0 && begins_at(x, 16) && begins_at(job.codes, kRowGroup)};
}

std::span<const KernelEntry> precision_kernels() { return kKernels; }

}  // namespace octet::cuda
