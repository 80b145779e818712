#include "kernels/cuda/inference/choose.h"

#include <fmt/format.h>

#include <algorithm>

namespace octet::cuda {
namespace {

constexpr int kBlocksPerSm = 4;  // wanted of choose_decode: fewer leave an SM idle while blocks join
constexpr int64_t kScratchAlignment = 256;

template <typename T>
T divide_up(T a, T b) {
  return (a + b - 1) / b;
}

}  // namespace

SplitDecodePlan choose_decode(const PagedProblem& p, const DeviceFacts& device) {
  const int blocks = p.sequences * p.kv_heads, context = p.blocks * p.block_size;
  const int wanted = divide_up(kBlocksPerSm * device.sm_count, blocks);
  const int useful = divide_up(context, kDecodeKeys * kDecodeWarps);  // at least one turn per warp
  const int chunks = divide_up(std::min(kDecodeQueries, p.tokens) * p.group, kDecodeRows);
  SplitDecodePlan plan{.lanes = p.dim <= 64    ? 8
                                : p.dim <= 128 ? 16
                                               : 32,
                       .splits = std::max(1, std::min({wanted, useful, kMaxDecodeSplits}))};
  plan.grid = {p.sequences, int64_t{p.kv_heads} * chunks, plan.splits};
  if (plan.splits > 1) {
    const int64_t rows = int64_t{p.tokens} * p.heads * plan.splits;
    plan.scratch_bytes = rows * (kDecodePartialBytes + p.dim * int64_t{sizeof(float)});
  }
  return plan;
}

std::string to_string(const SplitDecodePlan& plan) { return fmt::format("decode float32, split-K {}", plan.splits); }

std::vector<DecodePlan> candidates(const DecodeDesc& desc, const DeviceFacts& device) {
  const PagedProblem& p = desc.problem;
  const DecodeKernelFacts& kernel = desc.kernel;
  // As many rows as the sequences need on average: those with more queries take several chunks.
  const int sequences = std::max(p.sequences, 1);
  const int queries = std::min(kDecodeQueries, divide_up(p.tokens, sequences));
  const auto plan_of = [&](int head_shift) {
    DecodePlan plan{
        .head_shift = head_shift, .groups = p.kv_heads >> head_shift, .rows = std::min(kernel.rows, p.group * queries)};
    // Warps that share a key head join through shared memory.
    const bool shares_heads = head_shift < decode::kWarpShift;
    plan.shared = kernel.ring_bytes + (shares_heads ? decode::kWarps * plan.rows * kernel.sums_bytes : 0);
    plan.blocks = std::min(std::max(desc.blocks_per_sm(plan.shared), 1) * device.sm_count, decode::kMaxBlocks);
    const int64_t rows = (int64_t{plan.blocks} * 2 * plan.rows) << head_shift;
    plan.parts_bytes = divide_up(rows * kDecodePartialBytes, kScratchAlignment) * kScratchAlignment;
    plan.scratch_bytes = plan.parts_bytes + rows * p.dim * int64_t{sizeof(float)};
    return plan;
  };
  // Neighbouring heads are contiguous in memory, and warps that take whole heads need no join; but where items are few,
  // each of them would be split over many blocks.
  std::vector<DecodePlan> plans, split;
  for (int head_shift = decode::kWarpShift; head_shift > 0; --head_shift) {
    if (p.kv_heads % (1 << head_shift) != 0) continue;
    const DecodePlan plan = plan_of(head_shift);
    (plan.groups * p.sequences >= plan.blocks / 2 ? plans : split).push_back(plan);
  }
  plans.push_back(plan_of(0));
  plans.insert(plans.end(), split.begin(), split.end());
  return plans;
}

std::string to_string(const DecodePlan& plan) {
  return fmt::format("decode on tensor cores, {} blocks, heads {}, rows {}", plan.blocks, 1 << plan.head_shift,
                     plan.rows);
}

}  // namespace octet::cuda
