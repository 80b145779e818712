// The file of algorithm choices: what is written is read, damage is found, foreign files are refused and left alone.
#include "kernels/cuda/matmul/tuning.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>

#include "base/codec.h"
#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "kernels/cuda/testing/on_device.h"

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
    check_cuda(cudaSetDevice(device_facts(0).index), "choosing the device");
    const std::string test =
        testing::UnitTest::GetInstance()->current_test_info()->name();  // others run at the same time
    file_ = testing::TempDir() + "octet_gemm_choices_" + test + ".txt";
    remove_path(file_);
  }
  // The algorithm a fresh context chooses.
  std::vector<uint64_t> choose(ContextOptions options = {}) const {
    options.gemm_cache = file_;
    DeviceContext context(options);
    Gemm gemm(context, {.m = 256, .n = 512, .k = 1024, .trans_b = true});
    const auto algorithm = context.library<GemmTuning>().choose(gemm);
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

// Which suggestion is the fastest changes from run to run: each must be right. Those that split K must add in float32.
TEST_F(GemmTuningOnDevice, EverySuggestionRoundsOnce) {
  DeviceContext context({.gemm_cache = ""});
  for (const auto& [m, n, k] : {std::array{3, 67, 1001}, {1, 64, 4096}, {16, 128, 8192}, {64, 64, 2048}}) {
    for (const auto& [out_f32, adds] : {std::pair{false, false}, {true, false}, {false, true}}) {
      const GemmSpec spec{
          .m = m, .n = n, .k = k, .out = out_f32 ? DType::kF32 : DType::kBF16, .trans_b = true, .addend = adds};
      std::vector<uint16_t> a(static_cast<size_t>(m) * k), b(static_cast<size_t>(n) * k), c(static_cast<size_t>(m) * n);
      Philox random(7);
      for (auto* values : {&a, &b, &c})
        for (uint16_t& value : *values) store_element(DType::kBF16, &value, 0, random.normal());
      const auto on_device = [](size_t bytes, const void* from) {
        void* data = nullptr;
        check_cuda(cudaMalloc(&data, bytes), "allocating");
        if (from != nullptr) check_cuda(cudaMemcpy(data, from, bytes, cudaMemcpyHostToDevice), "copying");
        return std::shared_ptr<void>(data, cudaFree);
      };
      const auto a_device = on_device(a.size() * 2, a.data()), b_device = on_device(b.size() * 2, b.data()),
                 c_device = on_device(c.size() * 2, c.data());
      const auto out_device = on_device(static_cast<size_t>(m * n) * 4, nullptr);
      const auto workspace = on_device(kGemmWorkspace, nullptr);
      Gemm gemm(context, spec);
      const auto candidates = gemm.candidates(16);
      ASSERT_FALSE(candidates.empty());
      for (size_t i = 0; i < candidates.size(); ++i) {
        gemm.use(candidates[i]);
        gemm.run({.a = a_device.get(),
                  .b = b_device.get(),
                  .c = c_device.get(),
                  .out = out_device.get(),
                  .workspace = workspace.get()},
                 context.stream());
        check_cuda(cudaStreamSynchronize(context.stream()), "running a product");
        std::vector<std::byte> out(static_cast<size_t>(m * n * dtype_bytes(spec.out)));
        check_cuda(cudaMemcpy(out.data(), out_device.get(), out.size(), cudaMemcpyDeviceToHost), "copying");
        for (int64_t at = 0; at < int64_t{m} * n; ++at) {
          double want = adds ? load_element(DType::kBF16, c.data(), at) : 0;
          for (int64_t j = 0; j < k; ++j) {
            want += load_element(DType::kBF16, a.data(), at / n * k + j) *
                    load_element(DType::kBF16, b.data(), at % n * k + j);
          }
          // A unit of the result, and for every 8 products one of float32 at a partial sum of at most 4 deviations.
          const double sums = static_cast<double>(k) / 8 * 0x1p-23 * 4 * std::sqrt(static_cast<double>(k));
          const double allowed = (out_f32 ? 0x1p-23 : 0x1p-8) * std::abs(want) + sums;
          ASSERT_NEAR(load_element(spec.out, out.data(), at), want, allowed)
              << "suggestion " << i << " of " << candidates.size() << ", element " << at << " of " << spec.key();
        }
      }
    }
  }
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
                      .scaling_a = ScaleLayout::kRow,
                      .scaling_b = ScaleLayout::kRow,
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
