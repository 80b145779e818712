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
            const Int4Plan plan = choose_int4({.m = m, .n = n, .k = k, .group = group, .dtype = x}, h200);
            const int64_t most = x == DType::kE4M3 && group >= 128 ? 256 : 128;
            EXPECT_TRUE(plan.tokens >= std::min(m, most) && plan.tokens < std::max<int64_t>(2 * m, 9));
            EXPECT_TRUE(plan.splits >= 1 && plan.splits <= std::max<int64_t>(1, k / 512)) << to_string(plan);
            int64_t bytes = plan.stages * int4_stage_bytes(plan.tokens, x, std::min(group, kInt4Depth));
            if (plan.tokens >= kInt4ManyRows) bytes += kInt4StagingBytes;
            EXPECT_TRUE(plan.stages >= 2 && bytes + 1024 <= kSharedBytesPerBlock) << to_string(plan);
          }
}

TEST(ChooseInt4, FewTilesShareK) {
  const DeviceFacts h200{.sm_count = 132};
  const auto splits = [&](int64_t m, int64_t n, int64_t k) {
    return choose_int4({.m = m, .n = n, .k = k, .dtype = DType::kE4M3}, h200).splits;
  };
  EXPECT_EQ(splits(1, 14336, 4096), 3);  // as measured best on an H200
  EXPECT_EQ(splits(1, 4096, 14336), 6);
  EXPECT_EQ(splits(1, 6144, 4096), 4);
  EXPECT_EQ(splits(16, 14336, 4096), 2);
  EXPECT_EQ(splits(64, 4096, 14336), 3);
  EXPECT_EQ(splits(64, 14336, 4096), 1);
  EXPECT_EQ(splits(256, 4096, 4096), 3);
  EXPECT_EQ(splits(512, 4096, 14336), 2);
  EXPECT_EQ(splits(512, 14336, 4096), 1);
}

TEST(ChooseInt4, BlocksOfAFewStepsCopyAFewTilesAhead) {
  const auto stages = [&](int64_t m, int64_t n, int64_t k) {
    return choose_int4({.m = m, .n = n, .k = k, .dtype = DType::kE4M3}, {.sm_count = 132}).stages;
  };
  EXPECT_EQ(stages(16, 6144, 4096), 4);   // of 8 steps each
  EXPECT_EQ(stages(1, 14336, 4096), 5);   // of 10 or 11
  EXPECT_EQ(stages(16, 4096, 14336), 8);  // of 18 or 19
  EXPECT_EQ(stages(16, 28672, 4096), 8);  // of all 32
}

TEST(ChooseInt4, TilesHoldHalfMoreRowsThanAnExpertHasOnAverage) {
  const auto tokens = [&](int64_t m) {
    return choose_int4({.m = m, .n = 768, .k = 4096, .dtype = DType::kE4M3, .experts = 128}, {.sm_count = 132}).tokens;
  };
  EXPECT_EQ(tokens(64), 8);  // of a row each, most experts none
  EXPECT_EQ(tokens(128 * 16), 32);
  EXPECT_EQ(tokens(128 * 128), 128);
  EXPECT_EQ(tokens(128 * 256), 256);
}

}  // namespace
}  // namespace octet::cuda
