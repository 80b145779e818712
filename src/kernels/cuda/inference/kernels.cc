// scatter_rows, scatter_codes, copy_blocks and paged_attention. One call of attention may hold sequences to decode and
// sequences to prefill: both kernels run, each over its own sequences, unless the number of tokens or the attribute
// max_query_len says that there is nothing to prefill.
#include <bit>

#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/inference/inference.h"

namespace octet::cuda {
namespace {

const float* optional_factor(const KernelArgs& args, size_t index) {
  return index < args.in.size() ? args.in[index].as<const float>() : nullptr;
}
BoundKernel bind_scatter(DeviceContext&, const Graph& graph, const Node& node) {
  const DType rows = graph.dtype(node.inputs[1]), table = node.results[0].dtype;
  if (rows != table && !(is_wide_float(rows) && (is_wide_float(table) || is_fp8(table)))) return {};
  const int64_t slots = node.results[0].shape.rows();
  const bool copies = !is_wide_float(rows);
  const int64_t row_bytes = node.results[0].shape.cols() * dtype_bytes(node.results[0].dtype);
  const int width = static_cast<int>(node.results[0].shape.cols());
  const int tokens = static_cast<int>(graph.shape(node.inputs[2]).elements());
  return [=](const KernelArgs& args) {
    copy_tensor(args.in[0], args.out[0], args.stream);
    if (copies)
      return launch_scatter_copy(args.out[0].data, slots, args.in[1].data, args.in[2].as<const int32_t>(), tokens,
                                 row_bytes, args.stream);
    launch_scatter_rows(operand(args.out[0]), slots, operand(args.in[1]), args.in[2].as<const int32_t>(),
                        optional_factor(args, 3), tokens, width, args.stream);
  };
}

BoundKernel bind_codes(DeviceContext&, const Graph& graph, const Node& node) {
  if (!is_wide_float(graph.dtype(node.inputs[1]))) return {};
  const Shape &rows = graph.shape(node.inputs[1]), &scales = node.results[1].shape;
  const int tokens = static_cast<int>(rows.rows()), groups = static_cast<int>(scales.cols());
  return [=, slots = scales.rows(), width = static_cast<int>(rows.cols()) / groups](const KernelArgs& args) {
    copy_tensor(args.in[0], args.out[0], args.stream);
    copy_tensor(args.in[3], args.out[1], args.stream);
    launch_scatter_codes(args.out[0].as<int8_t>(), args.out[1].as<float>(), slots, operand(args.in[1]),
                         args.in[2].as<const int32_t>(), tokens, groups, width, args.stream);
  };
}

BoundKernel bind_copy(DeviceContext&, const Graph& graph, const Node& node) {
  const TensorType& cache = node.results[0];
  const int64_t block_size = node.attrs.get<int64_t>("block_size"), blocks = cache.shape.rows() / block_size;
  const int64_t block_bytes = block_size * cache.shape.cols() * dtype_bytes(cache.dtype);
  const int count = static_cast<int>(graph.shape(node.inputs[1]).rows());
  return [=](const KernelArgs& args) {
    copy_tensor(args.in[0], args.out[0], args.stream);
    launch_copy_blocks(args.out[0].data, block_bytes, blocks, args.in[1].as<const int32_t>(), count, args.stream);
  };
}

bool takes_paged(const Graph& graph, const Node& node) {
  const DType cache = graph.dtype(node.inputs[1]);
  return is_wide_float(graph.dtype(node.inputs[0])) && (is_wide_float(cache) || is_fp8(cache) || cache == DType::kI8) &&
         graph.dtype(node.inputs[2]) == cache && node.attrs.get<int64_t>("head_dim") <= kLargestPagedDim;
}

bool takes_paged_mma(const Graph& graph, const Node& node) {
  const DType cache = graph.dtype(node.inputs[1]);
  const int64_t block_size = node.attrs.get<int64_t>("block_size");
  return takes_paged(graph, node) && graph.dtype(node.inputs[0]) == DType::kBF16 &&
         (cache == DType::kBF16 || is_code(cache)) &&
         node.attrs.get<int64_t>("head_dim") % (is_code(cache) ? 16 : 8) == 0 && block_size >= 16 &&
         std::has_single_bit(static_cast<uint64_t>(block_size)) && node.attrs.get<double>("scale") > 0;
}

PagedProblem problem_of(const Graph& graph, const Node& node) {
  PagedProblem p;
  p.tokens = static_cast<int>(graph.shape(node.inputs[0]).rows());
  p.sequences = static_cast<int>(graph.shape(node.inputs[4]).elements());
  p.heads = static_cast<int>(node.attrs.get<int64_t>("heads"));
  p.kv_heads = static_cast<int>(node.attrs.get<int64_t>("kv_heads"));
  p.group = p.heads / p.kv_heads;
  p.first_head = static_cast<int>(node.attr<int64_t>("first_head"));
  p.all_heads = std::max(p.heads, static_cast<int>(node.attr<int64_t>("all_heads")));
  p.dim = static_cast<int>(node.attrs.get<int64_t>("head_dim"));
  p.block_size = static_cast<int>(node.attrs.get<int64_t>("block_size"));
  p.blocks = static_cast<int>(graph.shape(node.inputs[5]).cols());
  p.slots = static_cast<int>(graph.shape(node.inputs[1]).rows());
  p.window = static_cast<int>(std::min<int64_t>(node.attr<int64_t>("window"), int64_t{p.blocks} * p.block_size + 1));
  p.max_query_len = static_cast<int>(node.attr<int64_t>("max_query_len"));
  p.inputs_ready = true;  // no fusion has this op, whose leaves would be anything
  for (size_t i = 3; i < 6; ++i) {
    p.inputs_ready = p.inputs_ready && graph.node(node.inputs[i].node).op == Op::kInput;
  }
  p.scale = static_cast<float>(node.attrs.get<double>("scale"));
  p.alibi = node.attr<double>("alibi"), p.alibi_scale = node.attr<double>("alibi_scale");
  return p;
}

PagedOperands operands_of(const KernelArgs& args) {
  const Operand cache = operand(args.in[1]);
  const float *k_scale = optional_factor(args, 6), *v_scale = optional_factor(args, 7);
  const bool row_scales = cache.dtype == DType::kI8;
  return {.q = operand(args.in[0]),
          .k = cache,
          .v = operand(args.in[2]),
          .out = operand(args.out[0]),
          .segments = args.in[3].as<const int32_t>(),
          .lengths = args.in[4].as<const int32_t>(),
          .table = args.in[5].as<const int32_t>(),
          .k_scale = row_scales ? nullptr : k_scale,
          .v_scale = row_scales ? nullptr : v_scale,
          .k_scales = row_scales ? k_scale : nullptr,
          .v_scales = row_scales ? v_scale : nullptr};
}

BoundKernel bind_paged(DeviceContext& context, const Graph& graph, const Node& node) {
  const PagedProblem p = problem_of(graph, node);
  const SplitDecodePlan plan = choose_decode(p, context.facts());
  return {[p, plan](const KernelArgs& args) {
            const PagedOperands x = operands_of(args);
            if (may_prefill(p)) launch_paged_prefill(p, x, args.stream);
            launch_paged_decode(p, x, plan, args.workspace.data(), args.stream);
          },
          [p, plan](const KernelArgs&) { return to_string(plan) + (may_prefill(p) ? "; prefill" : ""); },
          plan.scratch_bytes};
}

BoundKernel bind_paged_mma(DeviceContext& context, const Graph& graph, const Node& node) {
  if (!context.has_device()) return without_device();
  const PagedProblem p = problem_of(graph, node);
  DecodePlan plan = plan_paged_decode_mma(p, graph.dtype(node.inputs[1]), context.facts());
  static_assert(kDecodeCounters <= DeviceContext::kCounters);
  plan.counters = context.counters();
  return {[p, plan, sm_count = context.sm_count()](const KernelArgs& args) {
            const PagedOperands x = operands_of(args);
            if (may_prefill(p))
              launch_paged_prefill_wgmma(p, x, args.workspace.data() + plan.scratch_bytes, sm_count, args.stream);
            launch_paged_decode_mma(p, x, plan, args.workspace.data(), args.stream);
          },
          [p, plan](const KernelArgs&) { return to_string(plan) + (may_prefill(p) ? "; prefill" : ""); },
          plan.scratch_bytes + (may_prefill(p) ? prefill_scratch_bytes(p) : 0)};
}

constexpr KernelEntry kKernels[] = {
    {Op::kScatterRows, "scatter_rows_copy", bind_scatter},
    {Op::kScatterCodes, "scatter_codes", bind_codes},
    {Op::kCopyBlocks, "copy_blocks", bind_copy},
    {Op::kPagedAttention, "paged_attention_mma", bind_if<takes_paged_mma, bind_paged_mma>},
    {Op::kPagedAttention, "paged_attention", bind_if<takes_paged, bind_paged>},
};

}  // namespace

std::span<const KernelEntry> inference_kernels() { return kKernels; }

}  // namespace octet::cuda
