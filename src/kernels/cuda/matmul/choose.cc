#include "kernels/cuda/matmul/choose.h"

#include <fmt/format.h>

namespace octet::cuda {
namespace {

constexpr int64_t kMinChunksPerWarp = 4;   // a warp loads four chunks at once: fewer leave some of its loads empty
constexpr int64_t kMinChunksPerSplit = 8;  // what pays for the join of a cluster
constexpr int64_t kTwoTilesPerSm = 6;      // above this many tiles per SM a block takes two

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

// Measured on an H200, back to back: 4 warps a block where there are blocks enough, else more warps per row.
GemvPlan choose_gemv(const GemvDesc& desc, const DeviceFacts& device) {
  const int64_t tiles = divide_up(desc.n, kGemvTileRows), sms = device.sm_count;
  const int64_t chunks = divide_up(desc.k * dtype_bytes(desc.dtype), kGemvChunkBytes);
  GemvPlan plan;
  plan.warps = 2 * tiles <= sms ? kMaxGemvWarps : tiles <= 2 * sms ? 8 : kMinGemvWarps;
  while (plan.warps > kMinGemvWarps && chunks < kMinChunksPerWarp * plan.warps) plan.warps /= 2;
  while (plan.splits < kMaxGemvSplits && 4 * tiles * plan.splits <= sms &&
         chunks >= kMinChunksPerSplit * plan.splits * plan.warps) {
    plan.splits *= 2;
  }
  plan.tiles = desc.dtype == DType::kE4M3 && !desc.blocks && tiles > kTwoTilesPerSm * sms ? 2 : 1;
  plan.grid = divide_up(desc.n, int64_t{plan.tiles} * kGemvTileRows);
  return plan;
}

std::string to_string(const GemvPlan& plan) {
  return fmt::format("{} warps{}{}", plan.warps, plan.splits > 1 ? fmt::format(", split-K {}", plan.splits) : "",
                     plan.tiles > 1 ? fmt::format(", {} tiles", plan.tiles) : "");
}

}  // namespace octet::cuda
