#include "kernels/cuda/norm/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/integers.h"

namespace octet::cuda {
namespace {

// Rows a persistent block must get: what it loads once and the ring it fills must pay.
constexpr int64_t kMinRowsPerBlock = 8;
// Shared memory of an SM for rings: the rest is for static shared memory, 1 KiB of each block, and the L1 cache.
constexpr int64_t kRingBytes = 200 << 10;
constexpr int64_t kGradientBytes = 216 << 10;  // of few and large blocks, for rings and weights
// In flight on an SM: what covers the latency of memory at its bandwidth.
constexpr int64_t kBytesInFlight = 128 << 10;
constexpr int64_t kMaxUnits = 8192;           // atomic adds on the scheduler's counter beyond these wait for each other
constexpr int64_t kThreadsOfMultiRow = 1024;  // of an SM, by the registers of norm_multi_row_persistent_kernel
constexpr int64_t kColsOfGradientSm = 12288;  // norm_gradient_persistent_kernel: 768 threads of two groups

int whole_warps(int64_t threads) { return static_cast<int>(ceil_div(threads, 32) * 32); }

int64_t row_bytes(const NormDesc& desc, int operands) { return operands * desc.cols * dtype_bytes(desc.dtype); }

// As many threads as a row has groups where rows are few, for the shortest time; else two groups a thread.
NormPlan block_per_row(const NormDesc& desc, const DeviceFacts& device) {
  const int64_t groups = desc.cols / kGroup, few = 2 * device.sm_count;
  const int held = groups <= kThreadsPerBlock && (desc.rows <= few || groups <= 128) ? 1 : 2;
  return {.kernel = NormKernel::kBlockPerRow,
          .grid = desc.rows,
          .threads = whole_warps(ceil_div(groups, held)),
          .groups = held};
}

NormPlan warp_per_row(const NormDesc& desc) {
  return {.kernel = NormKernel::kWarpPerRow,
          .grid = ceil_div(desc.rows, kWarpRows),
          .threads = 32 * kWarpRows,
          .groups = desc.cols <= 32 * kGroup ? 1 : 2};
}

// None: too few rows, as of the next two.
std::optional<NormPlan> warp_persistent(const NormDesc& desc, const DeviceFacts& device) {
  constexpr int kGroups = 3;
  constexpr int64_t kWarps = kPersistentWarps * kPersistentWarpBlocks;
  if (desc.rows < kMinRowsPerBlock * kWarps * device.sm_count) return std::nullopt;
  const int64_t stage = row_bytes(desc, desc.adds ? 2 : 1);
  const int64_t stages = std::clamp<int64_t>(kRingBytes / (kWarps * stage), 1, kMaxStages);
  return NormPlan{.kernel = NormKernel::kWarpPersistent,
                  .grid = int64_t{kPersistentWarpBlocks} * device.sm_count,
                  .threads = 32 * kPersistentWarps,
                  .groups = kGroups,
                  .stages = static_cast<int>(stages),
                  .whole_warp = desc.cols == 32 * kGroups * kGroup && !desc.adds,
                  .shared = kPersistentWarps * stages * stage};
}

std::optional<NormPlan> multi_row_persistent(const NormDesc& desc, const DeviceFacts& device) {
  const int threads = whole_warps(desc.cols / kGroup);
  const int64_t row = row_bytes(desc, desc.adds ? 2 : 1), max_blocks = kThreadsOfMultiRow / threads;
  int64_t unit = kRowsPerTurn;
  while (desc.rows / unit > kMaxUnits && 2 * unit * row * 2 * max_blocks <= kBytesInFlight) unit *= 2;
  const int64_t blocks = std::clamp<int64_t>(kRingBytes / (2 * unit * row), 1, max_blocks);
  const int64_t max_stages = kRingBytes / (blocks * unit * row);
  const int64_t stages = std::clamp<int64_t>(
      std::max(kBytesInFlight / (blocks * unit * row), std::min<int64_t>(max_stages, 3)), 2, kMaxStages);
  const int64_t grid = blocks * device.sm_count;
  if (desc.rows < kMinRowsPerBlock * grid || desc.rows < (stages + 1) * grid * unit) return std::nullopt;
  // Shared memory that no further block of the SM has: one of the next kernel (PDL) would become resident next to
  // these, and its grid would be spread unevenly.
  const int64_t no_further_block = kSharedBytesPerSm / (blocks + 1) / kGroup * kGroup;
  return NormPlan{.kernel = NormKernel::kMultiRowPersistent,
                  .grid = grid,
                  .threads = threads,
                  .stages = static_cast<int>(stages),
                  .unit_rows = static_cast<int>(unit),
                  .shared = std::max(stages * unit * row, no_further_block)};
}

// Three or four groups a thread, whichever leaves fewer threads idle.
std::optional<NormPlan> row_persistent(const NormDesc& desc, const DeviceFacts& device) {
  const int64_t groups = desc.cols / kGroup;
  const int by_3 = whole_warps(ceil_div(groups, 3)), by_4 = whole_warps(ceil_div(groups, 4));
  const int held = by_3 * 3 < by_4 * 4 && by_3 <= kRingThreads ? 3 : 4, threads = held == 3 ? by_3 : by_4;
  const int64_t blocks = kRingThreads / threads;  // of an SM
  if (desc.rows < kMinRowsPerBlock * blocks * device.sm_count) return std::nullopt;
  const int64_t stage = row_bytes(desc, desc.adds ? 2 : 1);
  const int64_t stages = std::clamp<int64_t>(kRingBytes / (blocks * stage), 1, kMaxStages);
  return NormPlan{.kernel = NormKernel::kRowPersistent,
                  .grid = std::min(desc.rows, blocks * device.sm_count),
                  .threads = threads,
                  .groups = held,
                  .stages = static_cast<int>(stages),
                  .shared = stages * stage};
}

NormGradientPlan gradient_by_teams(const NormDesc& desc, int blocks) {
  const int groups = desc.cols <= kTeamWarps * 32 * kGroup ? 1 : 2, rows = 2 / groups;  // rows of a turn
  const int64_t stage = rows * row_bytes(desc, desc.adds ? 3 : 2);
  const int threads = whole_warps(ceil_div(desc.cols, groups * kGroup)),
            teams = std::min(kRingThreads / threads, kMaxTeams);
  const int64_t stages = std::clamp<int64_t>(kRingBytes / (teams * stage), 2, kMaxStages);
  return {.kernel = NormGradientKernel::kTeams,
          .blocks = blocks,
          .threads = threads * teams,
          .groups = groups,
          .teams = teams,
          .stages = static_cast<int>(stages),
          .shared = teams * stages * stage};
}

NormGradientPlan gradient_row_persistent(const NormDesc& desc, int blocks, int64_t blocks_per_sm) {
  const int64_t groups = desc.cols / kGroup, stage = row_bytes(desc, desc.adds ? 3 : 2);
  const int held = groups <= 1536 ? 2 : 4;
  // Weights lie in shared memory where two stages fit as well: L1 has no room for many.
  const int64_t room = kGradientBytes / blocks_per_sm, weights = desc.cols * int64_t{sizeof(float)};
  const bool shared_weights = weights + 2 * stage <= room;
  const int64_t kept = shared_weights ? weights : 0;
  const int64_t stages = std::clamp<int64_t>((room - kept) / stage, 1, kMaxStages);
  return {.kernel = NormGradientKernel::kRowPersistent,
          .blocks = blocks,
          .threads = whole_warps(ceil_div(groups, held)),
          .groups = held,
          .stages = static_cast<int>(stages),
          .shared_weights = shared_weights,
          .shared = stages * stage + kept};
}

}  // namespace

bool norm_fits_registers(int64_t cols) { return cols % kGroup == 0 && cols <= int64_t{kRingThreads} * 4 * kGroup; }

std::vector<NormPlan> candidates(const NormDesc& desc, const DeviceFacts& device) {
  if (!norm_fits_registers(desc.cols)) return {{.kernel = NormKernel::kElementwise, .grid = desc.rows, .threads = 256}};
  if (desc.cols <= 512) return {warp_per_row(desc)};
  const std::optional<NormPlan> persistent = desc.cols <= 768    ? warp_persistent(desc, device)
                                             : desc.cols <= 4096 ? multi_row_persistent(desc, device)
                                                                 : row_persistent(desc, device);
  if (!persistent) return {block_per_row(desc, device)};
  return {*persistent, block_per_row(desc, device)};
}

std::string to_string(const NormPlan& plan) {
  switch (plan.kernel) {
    case NormKernel::kElementwise: return "elementwise";
    case NormKernel::kWarpPerRow: return "warp per row";
    case NormKernel::kWarpPersistent: return fmt::format("persistent warps, {} stages", plan.stages);
    case NormKernel::kBlockPerRow: return fmt::format("block per row, {} threads", plan.threads);
    case NormKernel::kRowPersistent: return fmt::format("persistent, 1 row, {} stages", plan.stages);
    case NormKernel::kMultiRowPersistent: break;
  }
  return fmt::format("persistent, {} rows, {} stages", plan.unit_rows, plan.stages);
}

NormGradientPlan choose_norm_gradient(const NormDesc& desc, const DeviceFacts& device) {
  const int64_t blocks_per_sm = desc.cols <= kMaxTeamCols ? 1 : std::max<int64_t>(kColsOfGradientSm / desc.cols, 1);
  const auto blocks = static_cast<int>(std::min<int64_t>(desc.rows, blocks_per_sm * device.sm_count));
  if (!norm_fits_registers(desc.cols)) return {.blocks = blocks, .threads = 256};
  return desc.cols <= kMaxTeamCols ? gradient_by_teams(desc, blocks)
                                   : gradient_row_persistent(desc, blocks, blocks_per_sm);
}

std::string to_string(const NormGradientPlan& plan) {
  switch (plan.kernel) {
    case NormGradientKernel::kElementwise: return "elementwise";
    case NormGradientKernel::kTeams: return fmt::format("{} teams, {} stages", plan.teams, plan.stages);
    case NormGradientKernel::kRowPersistent: break;
  }
  return fmt::format("persistent, {} stages{}", plan.stages, plan.shared_weights ? ", weights in shared memory" : "");
}

}  // namespace octet::cuda
