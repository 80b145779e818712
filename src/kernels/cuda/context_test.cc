// Which devices of a host are used: told from what they are, without a GPU.
#include "kernels/cuda/context.h"

#include <gtest/gtest.h>

namespace octet::cuda {
namespace {

const DeviceFacts kHopper{"NVIDIA H200", 9, 0}, kAda{"NVIDIA L40S", 8, 9}, kBlackwell{"NVIDIA B200", 10, 0};

TEST(Devices, HostsWithOtherCardsUseThoseTheKernelsRunOn) {
  const auto usable = [](const std::vector<DeviceFacts>& devices) { return devices_with_kernels(devices); };
  EXPECT_EQ(usable({kHopper, kHopper}), (std::vector<int>{0, 1}));
  EXPECT_EQ(usable({kAda, kHopper, kBlackwell, kHopper}), (std::vector<int>{1, 3}));
  EXPECT_TRUE(usable({}).empty());
}

TEST(Devices, WhereNoneWillDoEachIsNamed) {
  std::string why;
  EXPECT_TRUE(devices_with_kernels(std::vector<DeviceFacts>{kAda, kBlackwell}, &why).empty());
  EXPECT_EQ(why,
            "the kernels need compute capability 9.0 (H100, H200); device 0 is NVIDIA L40S with 8.9, device 1 is "
            "NVIDIA B200 with 10.0");
}

// Says in `log` when it is made and destroyed.
std::vector<std::string>* log = nullptr;
struct First final : DeviceLibrary {
  explicit First(DeviceContext&) { log->emplace_back("first"); }
  ~First() override { log->emplace_back("first gone"); }
  void save() override { log->emplace_back("first saved"); }
};
struct Second final : DeviceLibrary {
  explicit Second(DeviceContext& context) : first(context.library<First>()) { log->emplace_back("second"); }
  ~Second() override { log->emplace_back("second gone"); }
  First& first;
};
struct Missing final : DeviceLibrary {
  explicit Missing(DeviceContext&) { fail(ErrorCode::kUnsupported, "not installed"); }
};

class ContextOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (device_count(&why) == 0) GTEST_SKIP() << why;
  }
};

TEST_F(ContextOnDevice, LibrariesAreMadeOnceForEachContextAndOutliveTheirUsers) {
  std::vector<std::string> seen;
  log = &seen;
  {
    DeviceContext context({.gemm_cache = ""}), other({.gemm_cache = ""});
    Second& second = context.library<Second>();
    EXPECT_EQ(&second, &context.library<Second>());
    EXPECT_EQ(&second.first, &context.library<First>());
    EXPECT_THROW(context.library<Missing>(), Error);
    context.save_libraries();
    EXPECT_EQ(seen, (std::vector<std::string>{"first", "second", "first saved"}));
    EXPECT_NE(&second.first, &other.library<First>());
    seen.clear();
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"first gone", "second gone", "first gone"}));
  log = nullptr;
}

TEST_F(ContextOnDevice, OneStreamWaitsForAnother) {
  DeviceContext context({.gemm_cache = ""});
  const DeviceGuard guard(context.device());
  constexpr size_t kBytes = size_t{1} << 30;  // a fill takes longer than the launch of a copy
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, kBytes), "allocating");
  const cudaStream_t compute = context.stream(), copy = context.stream(StreamRole::kCopy);
  ASSERT_NE(compute, copy);
  for (int round = 1; round <= 20; ++round) {
    context.order(StreamRole::kCopy, StreamRole::kCompute);
    check_cuda(cudaMemsetAsync(memory, round, kBytes, compute), "filling");
    context.order(StreamRole::kCompute, StreamRole::kCopy);
    uint8_t last = 0;
    check_cuda(cudaMemcpyAsync(&last, static_cast<uint8_t*>(memory) + kBytes - 1, 1, cudaMemcpyDeviceToHost, copy),
               "reading");
    check_cuda(cudaStreamSynchronize(copy), "waiting");
    ASSERT_EQ(last, round);
  }
  cudaFree(memory);
}

}  // namespace
}  // namespace octet::cuda
