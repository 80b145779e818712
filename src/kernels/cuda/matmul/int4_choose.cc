#include <fmt/format.h>

#include <algorithm>

#include "kernels/cuda/matmul/int4.h"

namespace octet::cuda {

// Measured on an H200 with N and K of 4096, 6144 and 14336: clusters of a power of two fill the device worst.
Int4Plan choose_int4(const Int4Product& p, const DeviceFacts& device) {
  constexpr int64_t kMostStages = 8;
  Int4Plan plan;
  // Of an expert's rows half more than there are on average: a second tile reads the weights again.
  const int64_t rows = p.experts == 1 ? p.m : p.m * 3 / 2 / std::min<int64_t>(p.experts, p.m);
  // 256 rows take half more time than 128, so that experts need many.
  const bool wide = p.dtype == DType::kE4M3 && p.group >= kInt4Depth && (p.experts == 1 || rows > 256);
  const int most = wide ? 256 : 128;
  while (plan.tokens < most && plan.tokens < rows) plan.tokens *= 2;
  const int64_t tiles = int4_row_tiles(p, plan.tokens) * (p.n / kInt4Rows), steps = p.k / kInt4Depth;
  const int64_t sms = device.sm_count, per_sm = int4_blocks_per_sm(plan.tokens, p.dtype);
  int64_t splits = plan.tokens <= 32 ? 3 * sms / 2 / tiles : 3 * sms / 4 / tiles;
  if (splits <= 1) splits = plan.tokens <= 32 ? 17 * sms * per_sm / 20 / tiles : sms / tiles;
  plan.splits =
      static_cast<int>(std::clamp<int64_t>(splits, 1, std::min<int64_t>(kInt4Splits, std::max<int64_t>(steps / 4, 1))));
  const int64_t resident = std::min(per_sm, (tiles * plan.splits + sms - 1) / sms);
  const bool many = plan.tokens >= kInt4ManyRows, persistent = plan.splits == 1 && p.experts == 1;
  plan.blocks = persistent ? std::min(tiles, sms) : tiles;
  const int64_t shared = std::min(kSharedBytesPerSm / resident - (2 << 10), kSharedBytesPerBlock - (1 << 10));
  const int64_t stage = int4_stage_bytes(plan.tokens, p.dtype, std::min(p.group, kInt4Depth));
  plan.stages =
      static_cast<int>(std::clamp<int64_t>((shared - (many ? kInt4StagingBytes : 0) - 1024) / stage, 2, kMostStages));
  // Weights copied early by blocks of a few steps delay the last ones of the product in front.
  if (plan.tokens <= 32 && plan.splits > 1 && resident == per_sm)
    plan.stages = static_cast<int>(std::min<int64_t>(plan.stages, std::max<int64_t>(steps / plan.splits / 2, 4)));
  return plan;
}

std::string to_string(const Int4Plan& plan) {
  return fmt::format("{} rows, {} stages{}", plan.tokens, plan.stages,
                     plan.splits > 1 ? fmt::format(", split-K {}", plan.splits) : "");
}

}  // namespace octet::cuda
