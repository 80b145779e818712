// The rows of sampling.
#include <algorithm>
#include <bit>

#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/sampling/sampling.h"

namespace octet::cuda {
namespace {

BoundKernel bind_feed(DeviceContext&, const Graph& graph, const Node& node) {
  if (graph.dtype(node.inputs[0]) != DType::kI32 || graph.dtype(node.inputs[1]) != DType::kI32) return {};
  const auto tokens = static_cast<int>(graph.shape(node.inputs[0]).elements());
  const auto sequences = static_cast<int>(graph.shape(node.inputs[1]).elements());
  return [=](const KernelArgs& args) {
    launch_select_token_ids(args.in[0].as<int32_t>(), args.in[1].as<int32_t>(), args.in[2].as<int32_t>(), tokens,
                            sequences, args.out[0].as<int32_t>(), args.stream);
  };
}

BoundKernel bind_adjust(DeviceContext&, const Graph& graph, const Node& node) {
  const bool masked = node.inputs.size() > 3 && node.inputs[3].exists();
  if (!is_f32_or_bf16(node.results[0].dtype) || graph.dtype(node.inputs[1]) != DType::kI32 ||
      (masked && graph.dtype(node.inputs[3]) != DType::kI32))
    return {};
  LogitChanges changes{.rows = static_cast<int>(node.results[0].shape[0]),
                       .vocab = static_cast<int>(node.results[0].shape[1]),
                       .count = static_cast<int>(graph.shape(node.inputs[1])[0])};
  if (masked) changes.mask_count = static_cast<int>(graph.shape(node.inputs[3])[0]);
  return [changes, masked](const KernelArgs& args) mutable {
    copy_tensor(args.in[0], args.out[0], args.stream);
    changes.logits = operand(args.out[0]);
    changes.entries = args.in[1].as<int32_t>(), changes.values = args.in[2].as<float>();
    if (masked) changes.masks = args.in[3].as<uint32_t>(), changes.mask_rows = args.in[4].as<int32_t>();
    launch_adjust_logits(changes, args.stream);
  };
}

// As many blocks a row as fill the device, as long as each has something to read.
int blocks_per_row(const DeviceContext& context, int64_t rows, int64_t vocab) {
  const int64_t fill = 2 * context.sm_count() / std::max<int64_t>(1, rows), useful = (vocab + 8191) / 8192;
  return static_cast<int>(std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(std::min(fill, useful), 1, 8))));
}

BoundKernel bind_sample(DeviceContext& context, const Graph& graph, const Node& node) {
  const bool has_raw = node.inputs.size() > 4 && node.inputs[4].exists();
  if (!first_is_f32_or_bf16(graph, node) || (has_raw && !is_f32_or_bf16(graph.dtype(node.inputs[4])))) return {};
  const Shape& shape = graph.shape(node.inputs[0]);
  SampleCall call{.rows = static_cast<int>(shape[0]), .vocab = static_cast<int>(shape[1])};
  call.blocks_per_row = blocks_per_row(context, shape[0], shape[1]);
  return [call](const KernelArgs& args) mutable {
    call.logits = operand(args.in[0]), call.params = args.in[1].as<float>(), call.top_k = args.in[2].as<int32_t>();
    call.seeds = args.in[3].as<int64_t>();
    call.raw = args.in.size() > 4 ? operand(args.in[4]) : Operand{};
    call.ids = args.out[0].as<int32_t>(), call.logprobs = args.out[1].as<float>();
    launch_sample(call, args.stream);
  };
}

BoundKernel bind_top(DeviceContext& context, const Graph& graph, const Node& node) {
  const Shape& shape = graph.shape(node.inputs[0]);
  TopLogprobsCall call{.rows = static_cast<int>(shape[0]), .vocab = static_cast<int>(shape[1])};
  call.k = static_cast<int>(node.results[0].shape[1]);
  call.blocks_per_row = blocks_per_row(context, shape[0], shape[1]);
  return [call](const KernelArgs& args) mutable {
    call.logits = operand(args.in[0]);
    call.logprobs = args.out[0].as<float>(), call.ids = args.out[1].as<int32_t>();
    launch_top_logprobs(call, args.stream);
  };
}

constexpr KernelEntry kKernels[] = {{Op::kSelectTokenIds, "select_token_ids", bind_feed},
                                    {Op::kAdjustLogits, "adjust_logits_scatter", bind_adjust},
                                    {Op::kSample, "sample_team", bind_sample},
                                    {Op::kTopLogprobs, "top_logprobs_team", bind_if<first_is_f32_or_bf16, bind_top>}};

}  // namespace

std::span<const KernelEntry> sampling_kernels() { return kKernels; }

}  // namespace octet::cuda
