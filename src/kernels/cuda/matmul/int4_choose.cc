#include <fmt/format.h>

#include <algorithm>

#include "kernels/cuda/matmul/int4.h"

namespace octet::cuda {

namespace {

// With so many rows of x a block and blocks that share K.
Int4Plan plan_of(const Int4Product& p, const DeviceFacts& device, int tokens, int64_t splits) {
  const int64_t tiles = int4_row_tiles(p, tokens) * (p.n / kInt4Rows), steps = p.k / kInt4Depth;
  const int64_t sms = device.sm_count, per_sm = int4_blocks_per_sm(tokens);
  const bool many = tokens >= kInt4ManyRows;
  const int64_t resident = std::min(per_sm, (tiles * splits + sms - 1) / sms);
  const int64_t shared = std::min(kSharedBytesPerSm / resident - (2 << 10), kSharedBytesPerBlock - (1 << 10));
  const int64_t stage = int4_stage_bytes(tokens, p.dtype, std::min(p.group, kInt4Depth));
  const int64_t beside = 1024 + (many ? kInt4StagingBytes + int4_list_bytes(p.experts) : 0);
  int64_t stages = std::min<int64_t>((shared - beside) / stage, kInt4MostStages);
  if (!many) {  // a block's own steps; half of them where copies ahead delay the last of the product in front
    const int64_t own = (steps + splits - 1) / splits;
    stages = std::min(stages, splits > 1 && resident == per_sm ? std::max<int64_t>(own / 2, 6) : own);
  }
  return {.tokens = tokens,
          .splits = static_cast<int>(splits),
          .stages = static_cast<int>(std::max<int64_t>(stages, 2)),
          .blocks = splits == 1 ? std::min(tiles, sms) : tiles};
}

}  // namespace

// Measured on an H100 and an H200 with N and K of 4096, 6144, 14336 and 28672: clusters of a power of two fill the
// device worst where a block fills an SM.
std::vector<Int4Plan> candidates(const Int4Product& p, const DeviceFacts& device) {
  const bool wide_x = p.dtype == DType::kBF16;
  int tokens = wide_x ? 8 : 16;
  // Of an expert's rows half more than there are on average: a second tile reads the weights again.
  const int64_t rows = p.experts == 1 ? p.m : p.m * 3 / 2 / std::min<int64_t>(p.experts, p.m);
  // 256 rows take half more time than 128, so that experts need many.
  const bool wide = !wide_x && p.group >= kInt4Depth && (p.experts == 1 || rows > 256);
  const int most = wide ? 256 : 128;
  while (tokens < most && tokens < rows) tokens *= 2;
  const int64_t tiles = int4_row_tiles(p, tokens) * (p.n / kInt4Rows), steps = p.k / kInt4Depth;
  const int64_t sms = device.sm_count;
  const bool many = tokens >= kInt4ManyRows;
  int64_t splits = (many ? 3 * sms / 4 : 3 * sms / 2) / tiles;
  if (many && splits <= 1) splits = sms / tiles;
  const int64_t useful = std::clamp<int64_t>(steps / (many || wide_x ? 4 : 8), 1, kInt4Splits);
  splits = std::clamp<int64_t>(splits, 1, useful);
  std::vector<Int4Plan> plans = {plan_of(p, device, tokens, splits)};
  for (int64_t other = 1; other <= useful; ++other)
    if (other != splits) plans.push_back(plan_of(p, device, tokens, other));
  return plans;
}

std::string to_string(const Int4Plan& plan) {
  return fmt::format("{} rows, {} stages{}", plan.tokens, plan.stages,
                     plan.splits > 1 ? fmt::format(", split-K {}", plan.splits) : "");
}

}  // namespace octet::cuda
