// Products whose rows go in pieces: the same results as whole ones, and a shape the library has no kernel for.
#include "kernels/cuda/matmul/gemm_rows.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/dtype.h"
#include "kernels/cuda/on_device.h"

namespace octet::cuda {
namespace {

// Device memory with these bytes.
class Buffer {
 public:
  explicit Buffer(const std::vector<std::byte>& bytes) : size_(bytes.size()) {
    check_cuda(cudaMalloc(&data_, size_), "a test's memory");
    check_cuda(cudaMemcpy(data_, bytes.data(), size_, cudaMemcpyDefault), "filling it");
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { cudaFree(data_); }
  void* data() const { return data_; }
  std::vector<std::byte> read() const {
    std::vector<std::byte> bytes(size_);
    check_cuda(cudaMemcpy(bytes.data(), data_, size_, cudaMemcpyDefault), "reading a test's memory");
    return bytes;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

// Whole numbers from -2 to 2 in turn with an odd stride: every sum is exact in any order.
std::vector<std::byte> whole_numbers(DType dtype, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7919 % 127 % 5) - 2;
  std::vector<std::byte> bytes(static_cast<size_t>(count * dtype_bytes(dtype)));
  convert(DType::kF32, values.data(), dtype, bytes.data(), count);
  return bytes;
}

std::vector<std::byte> powers_of_two(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 3 == 0 ? 0.5f : i % 3 == 1 ? 1.0f : 2.0f;
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class GemmRowsOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    context_ = test_context(&why);
    if (context_ == nullptr) GTEST_SKIP() << why;
  }

  struct Result {
    size_t pieces = 0;
    std::vector<std::byte> out;
  };
  Result run(const GemmSpec& spec, int64_t most_rows) {
    const auto rows = GemmRows::make(*context_, spec, most_rows);
    if (rows == nullptr) return {};
    const Buffer a(whole_numbers(spec.a, spec.m * spec.k)), b(whole_numbers(spec.b, spec.n * spec.k)),
        c(whole_numbers(spec.out, spec.m * spec.n)), bias(whole_numbers(DType::kBF16, spec.n)),
        scale_a(powers_of_two(spec.m)), scale_b(powers_of_two(spec.n)), out(whole_numbers(spec.out, spec.m * spec.n)),
        workspace(std::vector<std::byte>(static_cast<size_t>(kGemmWorkspace)));
    rows->run({.a = a.data(),
               .b = b.data(),
               .scale_a = static_cast<const float*>(scale_a.data()),
               .scale_b = static_cast<const float*>(scale_b.data()),
               .c = spec.addend ? c.data() : out.data(),
               .bias = bias.data(),
               .out = out.data(),
               .workspace = workspace.data()},
              context_->stream());
    check_cuda(cudaStreamSynchronize(context_->stream()), "a product");
    return {rows->pieces(), out.read()};
  }

  DeviceContext* context_ = nullptr;
};

TEST_F(GemmRowsOnDevice, PiecesGiveTheResultsOfTheWhole) {
  GemmSpec fp8{.m = 480,
               .n = 256,
               .k = 512,
               .a = DType::kE4M3,
               .b = DType::kE4M3,
               .trans_b = true,
               .scaling_a = GemmScaling::kOuter,
               .scaling_b = GemmScaling::kOuter};
  GemmSpec biased = fp8, summed = fp8, plain{.m = 480, .n = 256, .k = 512, .addend = true};
  biased.bias = DType::kBF16;
  summed.addend = true;
  for (const GemmSpec& spec : {fp8, biased, summed, plain}) {
    const Result whole = run(spec, spec.m), parts = run(spec, 200);
    EXPECT_EQ(whole.pieces, 1u) << spec.key();
    EXPECT_GE(parts.pieces, 3u) << spec.key();
    EXPECT_TRUE(whole.out == parts.out) << spec.key();
  }
}

// GPT-J's second MLP product for 513 to 768 tokens: cuBLASLt 13.1 has no kernel for all the rows at once.
TEST_F(GemmRowsOnDevice, AShapeTheLibraryLacks) {
  const GemmSpec spec{.m = 768,
                      .n = 4096,
                      .k = 16384,
                      .a = DType::kE4M3,
                      .b = DType::kE4M3,
                      .trans_b = true,
                      .bias = DType::kBF16,
                      .scaling_a = GemmScaling::kOuter,
                      .scaling_b = GemmScaling::kOuter,
                      .fast_accumulation = true};
  EXPECT_GE(run(spec, spec.m).pieces, 1u);
}

}  // namespace
}  // namespace octet::cuda
