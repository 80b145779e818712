// Sums and maxima over the rows of matrices large enough to be walked (common/column_walk.cuh): the bits that tiles
// give the same columns in a narrower matrix, which the case list compares with the reference.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cuda/activation/activation.h"
#include "kernels/cuda/common/fill_random.h"
#include "kernels/cuda/shape/shape.h"
#include "kernels/cuda/testing/on_device.h"

namespace octet::cuda {
namespace {

class Device {
 public:
  explicit Device(size_t bytes) { check_cuda(cudaMalloc(&data_, bytes), "allocating"); }
  Device(const Device&) = delete;
  ~Device() { cudaFree(data_); }
  template <typename T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

class WideSums : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    context_ = test_context(&why);
    if (context_ == nullptr) GTEST_SKIP() << why;
  }
  std::vector<uint32_t> download(const Device& from, int64_t count) {
    check_cuda(cudaStreamSynchronize(context_->stream()), "waiting");
    std::vector<uint32_t> words(static_cast<size_t>(count));
    check_cuda(cudaMemcpy(words.data(), from.as(), words.size() * 4, cudaMemcpyDeviceToHost), "downloading");
    return words;
  }
  // Over x [rows, cols] in device memory, the bits of the results.
  std::vector<uint32_t> reduced(Reduction kind, DType dtype, const Device& x, int64_t rows, int64_t cols) {
    const Device y(static_cast<size_t>(4 * cols)), scratch(static_cast<size_t>(reduce_rows_scratch(rows, cols)));
    check_cuda(cudaDeviceSynchronize(), "filling");
    launch_reduce_rows(kind, dtype, x.as(), y.as<float>(), rows, cols, scratch.as<float>(), context_->counters(),
                       context_->stream());
    return download(y, cols);
  }
  DeviceContext* context_ = nullptr;
};

// Rows that end within a half tile, columns that end within a slab and within an access; infinities and a NaN.
TEST_F(WideSums, HaveTheBitsOfNarrowOnes) {
  constexpr int64_t kRows = 8200, kFew = 264;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t cols : {4104, 4101}) {
      const auto size = static_cast<size_t>(dtype_bytes(dtype)), width = static_cast<size_t>(cols) * size;
      const Device x(static_cast<size_t>(kRows) * width), few(static_cast<size_t>(kRows * kFew) * size);
      fill_random(dtype, x.as(), kRows * cols, 3);
      const auto put = [&](int64_t row, int64_t col, uint32_t bits) {  // of float32
        const uint32_t value = dtype == DType::kF32 ? bits : bits >> 16;
        check_cuda(cudaMemcpy(x.as<char>() + (row * cols + col) * static_cast<int64_t>(size), &value, size,
                              cudaMemcpyHostToDevice),
                   "uploading");
      };
      put(8199, cols - 1, 0x7fc00000u), put(70, cols - 2, 0x7f800000u), put(8191, 3, 0xff800000u);
      put(4000, cols - 3, 0x7f000000u);
      for (const int64_t from : {int64_t{0}, cols - kFew}) {
        check_cuda(
            cudaMemcpy2D(few.as(), static_cast<size_t>(kFew) * size, x.as<char>() + from * static_cast<int64_t>(size),
                         width, static_cast<size_t>(kFew) * size, kRows, cudaMemcpyDeviceToDevice),
            "copying columns");
        for (const Reduction kind : {Reduction::kSum, Reduction::kMax, Reduction::kAmax}) {
          SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << cols << " columns from " << from << " kind "
                                          << static_cast<int>(kind));
          const std::vector<uint32_t> wide = reduced(kind, dtype, x, kRows, cols),
                                      narrow = reduced(kind, dtype, few, kRows, kFew);
          EXPECT_TRUE(std::equal(narrow.begin(), narrow.end(), wide.begin() + from));
        }
      }
    }
  }
}

// With the amax of the matrix, as bias_grad_amax has it: the same sums, and again by a second call, which finds the
// counters as the first did.
TEST_F(WideSums, ComeWithTheAmax) {
  constexpr int64_t kRows = 8192, kCols = 4112;
  const Device x(static_cast<size_t>(kRows * kCols * 2)), y(static_cast<size_t>(kCols * 4)), amax(4),
      scratch(static_cast<size_t>(tile_end_scratch(kRows, kCols)));
  for (const uint64_t seed : {5, 6}) {
    fill_random(DType::kBF16, x.as(), kRows * kCols, seed);
    const std::vector<uint32_t> sums = reduced(Reduction::kSum, DType::kBF16, x, kRows, kCols),
                                maxima = reduced(Reduction::kAmax, DType::kBF16, x, kRows, kCols);
    TileEnd end;
    end.job.rows = kRows, end.job.cols = kCols, end.job.amax = amax.as<float>();
    end.column_sums = y.as<float>(), end.scratch = scratch.as<float>();
    launch_plain_tiles(x.as(), end, context_->counters(), context_->stream());
    EXPECT_EQ(download(y, kCols), sums);
    EXPECT_EQ(download(amax, 1)[0], *std::max_element(maxima.begin(), maxima.end()));
  }
}

}  // namespace
}  // namespace octet::cuda
