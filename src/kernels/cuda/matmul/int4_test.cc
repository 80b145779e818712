// The choice of a product with 4-bit weights: what fits a block, and blocks that fill the device.
#include "kernels/cuda/matmul/int4.h"

#include <gtest/gtest.h>

namespace octet::cuda {
namespace {

TEST(ChooseInt4, StagesFitAndSplitsLeaveWorkForEveryBlock) {
  const DeviceFacts h200{.sm_count = 132};
  for (const DType x : {DType::kE4M3, DType::kBF16})
    for (const int64_t group : {32, 64, 128, 4096})
      for (const int64_t m : {1, 8, 9, 64, 65, 512, 4096})
        for (const int64_t n : {128, 1024, 4096, 28672})
          for (const int64_t k : {128, 256, 4096, 14336}) {
            const Int4Product p{.m = m, .n = n, .k = k, .group = group, .dtype = x};
            for (const Int4Plan& plan : candidates(p, h200)) {
              const int64_t most = x == DType::kE4M3 && group >= 128 ? 256 : 128;
              EXPECT_TRUE(plan.tokens >= std::min(m, most) && plan.tokens < std::max<int64_t>(2 * m, 17));
              EXPECT_TRUE(plan.splits >= 1 && plan.splits <= std::max<int64_t>(1, k / 512)) << to_string(plan);
              int64_t bytes = plan.stages * int4_stage_bytes(plan.tokens, x, std::min(group, kInt4Depth));
              if (plan.tokens >= kInt4ManyRows) bytes += kInt4StagingBytes;
              EXPECT_TRUE(plan.stages >= 2 && bytes + 1024 <= kSharedBytesPerBlock) << to_string(plan);
            }
          }
}

TEST(ChooseInt4, FewTilesShareK) {
  const DeviceFacts h200{.sm_count = 132};
  const auto splits = [&](int64_t m, int64_t n, int64_t k) {
    return choose(Int4Product{.m = m, .n = n, .k = k, .dtype = DType::kE4M3}, h200).splits;
  };
  EXPECT_EQ(splits(1, 14336, 4096), 1);  // as measured best on an H100
  EXPECT_EQ(splits(1, 28672, 4096), 1);
  EXPECT_EQ(splits(1, 4096, 14336), 6);
  EXPECT_EQ(splits(16, 6144, 4096), 4);
  EXPECT_EQ(splits(16, 4096, 4096), 4);
  EXPECT_EQ(splits(64, 4096, 14336), 3);
  EXPECT_EQ(splits(64, 14336, 4096), 1);
  EXPECT_EQ(splits(256, 4096, 4096), 3);
  EXPECT_EQ(splits(512, 4096, 14336), 2);
  EXPECT_EQ(splits(512, 14336, 4096), 1);
}

TEST(ChooseInt4, BlocksOfAFewStepsCopyFewTilesAhead) {
  const auto stages = [&](int64_t n, int64_t k) {
    return choose(Int4Product{.m = 16, .n = n, .k = k, .dtype = DType::kE4M3}, {.sm_count = 132}).stages;
  };
  EXPECT_EQ(stages(6144, 4096), 6);    // two blocks an SM, of 8 steps each
  EXPECT_EQ(stages(4096, 4096), 8);    // one, of 8
  EXPECT_EQ(stages(4096, 14336), 9);   // two, of 18 or 19
  EXPECT_EQ(stages(14336, 4096), 16);  // one, of all 32
  EXPECT_EQ(stages(128, 128), 2);
}

TEST(ChooseInt4, TilesHoldHalfMoreRowsThanAnExpertHasOnAverage) {
  const auto tokens = [&](int64_t m) {
    return choose(Int4Product{.m = m, .n = 768, .k = 4096, .dtype = DType::kE4M3, .experts = 128}, {.sm_count = 132})
        .tokens;
  };
  EXPECT_EQ(tokens(64), 16);  // of a row each, most experts none
  EXPECT_EQ(tokens(128 * 16), 32);
  EXPECT_EQ(tokens(128 * 128), 128);
  EXPECT_EQ(tokens(128 * 256), 256);
}

}  // namespace
}  // namespace octet::cuda
