#include "compress/group_codes.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"

namespace octet {
namespace {

std::vector<float> normal(int64_t count, uint64_t seed) {
  Philox rng(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(0.05 + 0.1 * rng.normal());
  return values;
}

TEST(GroupCodes, ValuesAreWithinHalfAStepOfTheirGrid) {
  constexpr int64_t kRows = 5, kCols = 256;
  const std::vector<float> weights = normal(kRows * kCols, 3);
  for (const CodeRule& rule :
       {CodeRule{.group = 32}, CodeRule{.group = 64, .symmetric = false}, CodeRule{.group = 128}, CodeRule{.group = 0},
        CodeRule{.group = 0, .symmetric = false}, CodeRule{.bits = 8, .group = 0, .scale_type = DType::kF32}}) {
    const GroupCodes codes = round_to_nearest(weights, kRows, kCols, rule);
    const std::vector<float> values = dequantize(codes);
    EXPECT_EQ(codes.zeros.empty(), rule.symmetric);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_GE(codes.codes[i], rule.lowest());
      EXPECT_LE(codes.codes[i], rule.highest());
      const float scale = codes.scales[i / static_cast<size_t>(rule.width(kCols))];
      // Half a step; a scale rounded to bf16's 8 bits moves the ends of 15 steps by 15/512 of one more.
      EXPECT_LE(std::abs(values[i] - weights[i]), scale * (rule.symmetric ? 0.53f : 0.56f) + 1e-7f) << i;
    }
  }
}

TEST(GroupCodes, EndsOfARangeAreCodes) {
  std::vector<float> weights(32, 0.0f);
  weights[3] = -0.5f, weights[9] = 1.0f;  // steps of 0.1
  const Grid grid = fit_grid(weights, {.group = 32, .symmetric = false, .scale_type = DType::kF32});
  EXPECT_FLOAT_EQ(grid.scale, 0.1f);
  EXPECT_EQ(grid.zero, -3);
  EXPECT_EQ(grid.code(-0.5f), -8);
  EXPECT_EQ(grid.code(1.0f), 7);
  EXPECT_EQ(grid.nearest(0.0f), 0.0f);
  const Grid eight = fit_grid(weights, {.bits = 8, .group = 0, .scale_type = DType::kF32});
  EXPECT_FLOAT_EQ(eight.scale, 1.0f / 127);
  EXPECT_EQ(eight.code(1.0f), 127);
}

TEST(GroupCodes, GroupsOfZerosStayZero) {
  const std::vector<float> weights(64, 0.0f);
  for (const bool symmetric : {true, false})
    EXPECT_EQ(dequantize(round_to_nearest(weights, 2, 32, {.group = 32, .symmetric = symmetric})), weights);
}

TEST(GroupCodes, ColumnsFindTheirGroupByItsIndex) {
  GroupCodes codes = empty_codes({.group = 32}, 1, 64);
  codes.codes.assign(64, 1);
  codes.scales = {2, 3};
  codes.group_of.resize(64);
  for (size_t k = 0; k < 64; ++k) codes.group_of[k] = static_cast<int32_t>(k % 2);
  const std::vector<float> values = dequantize(codes);
  for (size_t k = 0; k < 64; ++k) EXPECT_EQ(values[k], k % 2 == 0 ? 2.0f : 3.0f);
}

TEST(GroupCodes, RulesThatDoNotFitAreNamed) {
  const auto message = [](const CodeRule& rule, int64_t cols) -> std::string {
    try {
      check_rule(rule, cols, "layers.0.mlp.down");
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_EQ(message({.group = 64}, 192), "");
  EXPECT_NE(message({.group = 128}, 192).find("layers.0.mlp.down: groups of 128 do not divide its 192 inputs"),
            std::string::npos);
  EXPECT_NE(message({.group = 48}, 96), "");
  EXPECT_NE(message({.bits = 8, .group = 128}, 128), "");
  EXPECT_NE(message({.bits = 3}, 128), "");
}

}  // namespace
}  // namespace octet
