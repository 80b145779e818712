#include "kernels/cuda/matmul/choose.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/integers.h"

namespace octet::cuda {
namespace {

constexpr int64_t kMinChunksPerWarp = 4;   // a warp loads four chunks at once: fewer leave some of its loads empty
constexpr int64_t kMinChunksPerSplit = 8;  // what pays for the join of a cluster
constexpr int64_t kTwoTilesPerSm = 6;      // above this many tiles per SM a block takes two

}  // namespace

// Measured on an H200, back to back: 4 warps a block where there are blocks enough, else more warps per row.
std::vector<GemvPlan> candidates(const GemvDesc& desc, const DeviceFacts& device) {
  const int64_t tiles = ceil_div(desc.n, kGemvTileRows), sms = device.sm_count;
  const int64_t chunks = ceil_div(desc.k * dtype_bytes(desc.dtype), kGemvChunkBytes);
  GemvPlan plan;
  plan.warps = 2 * tiles <= sms ? kMaxGemvWarps : tiles <= 2 * sms ? 8 : kMinGemvWarps;
  while (plan.warps > kMinGemvWarps && chunks < kMinChunksPerWarp * plan.warps) plan.warps /= 2;
  while (plan.splits < kMaxGemvSplits && 4 * tiles * plan.splits <= sms &&
         chunks >= kMinChunksPerSplit * plan.splits * plan.warps) {
    plan.splits *= 2;
  }
  plan.tiles = desc.dtype != DType::kBF16 && !desc.blocks && tiles > kTwoTilesPerSm * sms ? 2 : 1;
  plan.grid = ceil_div(desc.n, int64_t{plan.tiles} * kGemvTileRows);
  std::vector<GemvPlan> plans = {plan};
  for (int warps = kMinGemvWarps; warps <= kMaxGemvWarps; warps *= 2)
    for (int splits = 1; splits <= kMaxGemvSplits; splits *= 2)
      if ((warps != plan.warps || splits != plan.splits) && chunks >= kMinChunksPerWarp * warps * splits)
        plans.push_back({plan.grid, plan.tiles, warps, splits});
  return plans;
}

std::string to_string(const GemvPlan& plan) {
  return fmt::format("{} warps{}{}", plan.warps, plan.splits > 1 ? fmt::format(", split-K {}", plan.splits) : "",
                     plan.tiles > 1 ? fmt::format(", {} tiles", plan.tiles) : "");
}

// The least time, in clocks, by a model: a step multiplies 4 a token, or reads its bytes from L2 at 24 a clock; a tile
// ends in its results being stored, 12 a token.
std::vector<Int8Plan> candidates(const Int8Desc& desc, const DeviceFacts& device) {
  constexpr int64_t kMaxSplits = 4, kMinSteps = 4, kPerTile = 1500, kPerJoin = 2000;
  const int64_t pairs = std::max(device.sm_count / 2, 1), steps = ceil_div(desc.k, kInt8Depth);
  std::vector<std::pair<int64_t, Int8Plan>> timed;
  for (const int tokens : {64, 128, 192, 256}) {
    if (tokens > 64 && desc.m <= tokens - 64) break;
    const int64_t tiles = ceil_div(desc.m, tokens) * ceil_div(desc.n, kInt8Columns);
    const int64_t step = std::max<int64_t>(4 * tokens, (128 * 128 + 64 * tokens) / 24);
    for (int splits = 1; splits <= (tokens <= 128 ? kMaxSplits : 1); ++splits) {
      if (splits > 1 && steps < kMinSteps * splits) break;
      const int64_t turns = ceil_div(tiles * splits, pairs);
      const int64_t end = kPerTile + 12 * tokens + (splits > 1 ? kPerJoin : 0);
      const int64_t time = turns * (ceil_div(steps, splits) * step + end);
      timed.push_back({time, {tokens, splits, tiles, splits > 1 ? tiles : std::min(tiles, pairs)}});
    }
  }
  std::ranges::stable_sort(timed, {}, [](const auto& plan) { return plan.first; });
  std::vector<Int8Plan> plans;
  for (const auto& [time, plan] : timed) plans.push_back(plan);
  return plans;
}

std::string to_string(const Int8Plan& plan) {
  return fmt::format("{} rows{}", plan.tokens, plan.splits > 1 ? fmt::format(", split-K {}", plan.splits) : "");
}

}  // namespace octet::cuda
