// Several executors of one process on GPUs: on one device in separate threads, on several devices, used by a thread
// that did not create them. Each gives the bits that it gives alone.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "exec/testing/program_conformance.h"
#include "exec/testing/train_together.h"
#include "kernels/cuda/context.h"

namespace octet {
namespace {

class CudaExecutors : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda_available(&why)) GTEST_SKIP() << why;
  }
};

// GEMMs are not tuned: two timings could choose different algorithms.
tiny::MakeExecutor on_device(const char* architecture, const char* recipe, int device = 0, bool eager = false) {
  const CudaOptions options{.device = device, .eager = eager, .deterministic = true};
  return [options, plan = conformance::compiled_plan({architecture, recipe}, cuda_target(options))] {
    return make_cuda_executor(plan, options);
  };
}

// Captures, replays and launches of executors interleave.
TEST_F(CudaExecutors, OnOneDeviceInThreadsGiveTheBitsOfEachAlone) {
  const std::vector<tiny::MakeExecutor> makes = {on_device("gpt2", "bf16"), on_device("llama", "fp8-current"),
                                                 on_device("gpt2", "fp8-delayed", 0, true)};
  for (int round = 0; round < 3; ++round) tiny::expect_the_bits_of_each_alone(makes);
}

TEST_F(CudaExecutors, WorkInAnotherThreadThanMadeThem) {
  const tiny::MakeExecutor make = on_device("llama", "fp8-current");
  std::unique_ptr<Executor> made = make();
  const tiny::Trained moved = tiny::train_together({[&] { return std::move(made); }})[0];
  EXPECT_EQ(moved, tiny::train_alone(make, 0));
}

// One thread alternates between executors at every call.
TEST_F(CudaExecutors, TakeTurnsInOneThread) {
  const tiny::MakeExecutor make = on_device("gpt2", "bf16"), other = on_device("llama", "fp8-block");
  const std::unique_ptr<Executor> between = other();
  tiny::initialize(*between);
  const tiny::Trained turns = tiny::train_alone(make, 0, [&] { tiny::train(*between, 1); });
  EXPECT_EQ(turns, tiny::train_alone(make, 0));
}

class CudaDevices : public CudaExecutors {
 protected:
  void SetUp() override {
    CudaExecutors::SetUp();
    if (!IsSkipped() && cuda::device_count() < 2)
      GTEST_SKIP() << "one device: an H200 more shows whether executors stay on their own";
  }
};

TEST_F(CudaDevices, ExecutorsOfTwoDevicesGiveTheBitsOfEachAlone) {
  tiny::expect_the_bits_of_each_alone({on_device("gpt2", "bf16", 0), on_device("gpt2", "bf16", 1)});
  const tiny::Trained first = tiny::train_alone(on_device("llama", "fp8-current", 0), 0);
  EXPECT_EQ(first, tiny::train_alone(on_device("llama", "fp8-current", 1), 0)) << "two devices of one kind";
}

TEST_F(CudaDevices, AnExecutorLeavesTheThreadItsDevice) {
  cuda::check_cuda(cudaSetDevice(cuda::device_facts(0).index), "choosing a device");
  const std::unique_ptr<Executor> executor = on_device("gpt2", "bf16", 1)();
  tiny::initialize(*executor);
  tiny::train(*executor, 3);
  int device = -1;
  cuda::check_cuda(cudaGetDevice(&device), "asking for the device");
  EXPECT_EQ(device, cuda::device_facts(0).index);
}

// Free memory is that of the given device.
TEST_F(CudaDevices, FactsAreThoseOfTheDeviceAskedFor) {
  EXPECT_NE(cuda_bus_id({.device = 0}), cuda_bus_id({.device = 1}));
  const int64_t before[2] = {free_cuda_memory({.device = 0}), free_cuda_memory({.device = 1})};
  constexpr int64_t kBytes = int64_t{4} << 30;
  void* memory = nullptr;
  const cuda::DeviceGuard guard(cuda::device_facts(1).index);
  cuda::check_cuda(cudaMalloc(&memory, static_cast<size_t>(kBytes)), "allocating");
  EXPECT_LE(free_cuda_memory({.device = 1}), before[1] - kBytes);
  EXPECT_GT(free_cuda_memory({.device = 0}), before[0] - kBytes);
  cudaFree(memory);
}

}  // namespace
}  // namespace octet
