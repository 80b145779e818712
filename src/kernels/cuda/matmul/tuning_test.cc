// The file of algorithm choices: what is written is read, damage is found, foreign files are refused and left alone.
#include "kernels/cuda/matmul/tuning.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "kernels/cuda/on_device.h"

namespace octet::cuda {
namespace {

using Choices = std::map<std::string, cublasLtMatmulAlgo_t>;

Choices some_choices() {
  return {{"H200, 132 SMs, cuBLASLt 130100: m1 n2 k3 = odd", {{1, 2, 3, 4, 5, 6, 7, ~uint64_t{0}}}},
          {"m4", {{0xfedcba9876543210u, 0, 0, 0, 0, 0, 0, 9}}}};
}

std::vector<uint64_t> words(const cublasLtMatmulAlgo_t& algorithm) {
  return {std::begin(algorithm.data), std::end(algorithm.data)};
}

TEST(GemmChoices, WrittenIsRead) {
  int damaged = -1;
  const Choices read = read_gemm_choices(write_gemm_choices(some_choices()), damaged);
  EXPECT_EQ(damaged, 0);
  ASSERT_EQ(read.size(), 2u);
  for (const auto& [key, algorithm] : some_choices()) EXPECT_EQ(words(read.at(key)), words(algorithm)) << key;
}

TEST(GemmChoices, DamagedLinesAreCountedAndLeftOut) {
  std::string text = write_gemm_choices(some_choices());
  text.resize(text.size() - 5);  // the last line is cut off
  text += "\nm5 = 12\nno equals sign\n = " + std::string(128, '0') + "\nm6 = " + std::string(128, 'x') + "\n";
  int damaged = 0;
  const Choices read = read_gemm_choices(text, damaged);
  EXPECT_EQ(damaged, 5);
  EXPECT_EQ(read.size(), 1u);
}

TEST(GemmChoices, ForeignFilesAreRefused) {
  int damaged = 0;
  EXPECT_THROW(read_gemm_choices("", damaged), Error);
  EXPECT_THROW(read_gemm_choices("{\"version\": 2}\n", damaged), Error);
}

class GemmTuningOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (device_count(&why) == 0) GTEST_SKIP() << why;
    file_ = testing::TempDir() + "octet_gemm_choices.txt";
    remove_path(file_);
  }
  // The algorithm a fresh context chooses.
  std::vector<uint64_t> choose(ContextOptions options = {}) const {
    options.gemm_cache = file_;
    DeviceContext context(options);
    Gemm gemm(context, {.m = 256, .n = 512, .k = 1024, .trans_b = true});
    const auto algorithm = context.gemm_tuning().choose(gemm);
    EXPECT_TRUE(algorithm.has_value());
    return words(algorithm.value_or(cublasLtMatmulAlgo_t{}));
  }
  std::string file_;
};

TEST_F(GemmTuningOnDevice, LaterRunsReadTheChoice) {
  const auto first = choose();
  EXPECT_EQ(choose(), first);
  // A choice put into the file by hand is taken: nothing is timed again.
  DeviceContext context({.gemm_cache = ""});
  Gemm gemm(context, {.m = 256, .n = 512, .k = 1024, .trans_b = true});
  const auto candidates = gemm.candidates(16);
  ASSERT_GT(candidates.size(), 1u);
  int damaged = 0;
  Choices choices = read_gemm_choices(read_file(file_), damaged);
  ASSERT_EQ(choices.size(), 1u);
  choices.begin()->second = candidates.back();
  write_file(file_, write_gemm_choices(choices));
  EXPECT_EQ(choose(), words(candidates.back()));
}

TEST_F(GemmTuningOnDevice, DeterministicRunsReadAndWriteNothing) {
  const auto first = choose({.deterministic = true});
  EXPECT_FALSE(path_exists(file_));
  DeviceContext context({.gemm_cache = ""});
  EXPECT_EQ(first, words(Gemm(context, {.m = 256, .n = 512, .k = 1024, .trans_b = true}).candidates(16)[0]));
}

TEST_F(GemmTuningOnDevice, ChoicesThatCannotRunAreMadeAgain) {
  choose();
  int damaged = 0;
  Choices choices = read_gemm_choices(read_file(file_), damaged);
  choices.begin()->second = {};  // of no algorithm
  choices.begin()->second.data[0] = 0x123456789abcdefu;
  write_file(file_, write_gemm_choices(choices));
  choose();
  EXPECT_NE(words(read_gemm_choices(read_file(file_), damaged).begin()->second)[0], 0x123456789abcdefu);
}

TEST_F(GemmTuningOnDevice, ForeignFilesStayAsTheyAre) {
  write_file(file_, "somebody's notes\n");
  choose();
  EXPECT_EQ(read_file(file_), "somebody's notes\n");
}

// GPT-J's second MLP product: where the library has no epilogue for the bias, it can start from the bias.
TEST_F(GemmTuningOnDevice, AProductWithABiasHasAKernelInOneFormOrTheOther) {
  DeviceContext context({.gemm_cache = ""});
  for (const int64_t m : {272, 384, 512, 768, 1024}) {
    GemmSpec epilogue{.m = m,
                      .n = 4096,
                      .k = 16384,
                      .a = DType::kE4M3,
                      .b = DType::kE4M3,
                      .trans_b = true,
                      .bias = DType::kBF16,
                      .scaling_a = GemmScaling::kOuter,
                      .scaling_b = GemmScaling::kOuter,
                      .fast_accumulation = true};
    GemmSpec addend = epilogue, plain = epilogue, slow = epilogue;
    addend.bias.reset(), addend.addend = true;
    plain.bias.reset();
    slow.fast_accumulation = false;
    std::vector<size_t> kernels;
    for (const GemmSpec& spec : {epilogue, addend, plain, slow})
      kernels.push_back(Gemm(context, spec).candidates(8).size());
    EXPECT_GT(kernels[0] + kernels[1], 0u)
        << m << " rows; kernels with the bias, an addend, neither, slow sums: " << kernels[0] << ", " << kernels[1]
        << ", " << kernels[2] << ", " << kernels[3];
  }
}

}  // namespace
}  // namespace octet::cuda
