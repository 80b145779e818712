// Products of int8 codes: the bits of a row do not depend on how many rows there are, nor on how they are split.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cuda/matmul/choose.h"
#include "kernels/cuda/testing/on_device.h"

namespace octet::cuda {
namespace {

TEST(ChooseInt8, TilesCoverTheResultAndSplitsLeaveWorkForEveryBlock) {
  const DeviceFacts h200{.sm_count = 132};
  for (const int64_t m : {9, 64, 65, 128, 300, 1024, 2000, 16384})
    for (const int64_t n : {8, 256, 4096, 22016, 128256})
      for (const int64_t k : {16, 272, 4096, 14336}) {
        for (const Int8Plan& plan : candidates(Int8Desc{m, n, k}, h200)) {
          const int64_t rows = (m + plan.tokens - 1) / plan.tokens, columns = (n + kInt8Columns - 1) / kInt8Columns;
          EXPECT_EQ(plan.tiles, rows * columns) << to_string(plan);
          EXPECT_TRUE(plan.splits == 1 || (plan.clusters == plan.tiles && plan.tokens <= 128)) << to_string(plan);
          EXPECT_LE(plan.clusters, plan.tiles) << to_string(plan);
          EXPECT_GE((k + kInt8Depth - 1) / kInt8Depth, plan.splits) << to_string(plan);
        }
      }
  EXPECT_EQ(to_string(choose(Int8Desc{16, 4096, 4096}, h200)), "64 rows, split-K 4");
  EXPECT_EQ(to_string(choose(Int8Desc{512, 4096, 4096}, h200)), "128 rows");
  EXPECT_EQ(to_string(choose(Int8Desc{1024, 4096, 4096}, h200)), "256 rows");
  EXPECT_EQ(to_string(choose(Int8Desc{16384, 12288, 4096}, h200)), "256 rows");
}

// The first `rows` rows of x and of the addend.
cpu::BuiltCase first_rows(const cpu::BuiltCase& of, const cpu::Case& c, int64_t rows) {
  cpu::Case few = c;
  for (const size_t i : {0, 1, 4}) few.inputs[i].shape[0] = rows;
  cpu::BuiltCase built = cpu::build_case(few, DType::kF32);
  for (size_t i = 0; i < built.inputs.size(); ++i) {
    auto& values = built.inputs[i].values;
    std::copy_n(of.inputs[i].values.begin(), values.size(), values.begin());
  }
  return built;
}

TEST(Int8Products, FewRowsHaveTheBitsOfMany) {
  std::string why;
  DeviceContext* context = test_context(&why);
  if (context == nullptr) GTEST_SKIP() << why;
  constexpr int64_t kRows = 700, kN = 776;
  for (const int64_t k : {400, 4112}) {
    const cpu::Case c{.op = Op::kScaledMatmul,
                      .name = "rows",
                      .inputs = {cpu::codes(DType::kI8, {kRows, k}), cpu::uniform(DType::kF32, {kRows}, 0.001, 0.1),
                                 cpu::codes(DType::kI8, {kN, k}), cpu::uniform(DType::kF32, {kN}, 0.001, 0.1),
                                 cpu::normal(DType::kF32, {kRows, kN}, 1000)},
                      .attrs = {{"trans_a", false},
                                {"trans_b", true},
                                {"scaling_a", std::string("row")},
                                {"scaling_b", std::string("row")},
                                {"to", std::string("f32")}},
                      .dtypes = {DType::kF32}};
    const cpu::BuiltCase many = cpu::build_case(c, DType::kF32);
    const auto all = run_node(*context, many.graph, many.node(), many.inputs);
    ASSERT_EQ(all[0].size(), size_t{kRows * kN * 4});
    for (const int64_t rows : {1, 3, 8, 9, 16, 64, 65, 128, 190, 500}) {
      const cpu::BuiltCase few = first_rows(many, c, rows);
      ASSERT_STREQ(select_kernel(few.graph, few.node()).name, "scaled_matmul_int8");
      const auto some = run_node(*context, few.graph, few.node(), few.inputs);
      EXPECT_TRUE(std::equal(some[0].begin(), some[0].end(), all[0].begin())) << rows << " rows, K " << k;
    }
  }
}

}  // namespace
}  // namespace octet::cuda
