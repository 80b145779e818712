// Memory that GPUs map into each other, by ranks that are threads of one process: made and unmade over and over, while
// other ranks make and unmake theirs.
#include "dist/cuda/peer_memory.h"

#include <gtest/gtest.h>

#include "cuda/gpu_ranks.h"

namespace octet {
namespace {

constexpr int kRounds = 100;

class PeerMemoryOf : public testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    mesh_[Axis::kData] = GetParam();
    if (const std::string why = no_ranks(Wire::kNccl, mesh_); !why.empty()) GTEST_SKIP() << why;
  }
  Mesh mesh_;
};

// Nothing holds a rank back between unmapping and its next allocation.
TEST_P(PeerMemoryOf, IsMadeAndUnmadeAHundredTimes) {
  run_thread_ranks(mesh_, [&](Communicator& ranks) {
    const int device = cuda::device_facts(ranks.rank()).index;
    for (int round = 0; round < kRounds; ++round) {
      PeerMemory memory(ranks, device);
      ASSERT_TRUE(memory.any()) << "the GPUs do not reach each other";
      const std::shared_ptr<std::byte> small = memory.share(1 << 12, "a test");
      std::shared_ptr<std::byte> large = memory.share(int64_t{8} << 20, "a test");
      const int32_t next = (ranks.rank() + 1) % mesh_.ranks();
      const cuda::DeviceGuard guard(device);
      cuda::check_cuda(cudaMemset(memory.there(large.get(), next), round, 1 << 20), "writing to another GPU");
      cuda::check_cuda(cudaDeviceSynchronize(), "writing to another GPU");
      barrier(ranks);
      unsigned char found = 0;
      cuda::check_cuda(cudaMemcpy(&found, large.get(), 1, cudaMemcpyDeviceToHost), "reading");
      EXPECT_EQ(found, round);
      barrier(ranks);
      large.reset();
      large = memory.share(int64_t{4} << 20, "a test");
    }
  });
}

// The groups of a run, with NCCL's own memory beside.
TEST_P(PeerMemoryOf, OfGroupsIsMadeAndUnmade) {
  for (int round = 0; round < kRounds / 10; ++round) {
    run_gpu_ranks(Wire::kNccl, mesh_, [&](Communicator& ranks, cuda::DeviceRanks& devices) {
      const cuda::DeviceGuard guard(device_of(Wire::kNccl, ranks.rank()));
      const std::shared_ptr<std::byte> shared = devices.allocate(1 << 20, "a test");
      cuda::RankGroup& group = devices.group({Axis::kData});
      auto* values = reinterpret_cast<float*>(shared.get());
      const std::vector<float> own(1024, static_cast<float>(ranks.rank() + 1));
      cuda::check_cuda(cudaMemcpy(values, own.data(), own.size() * 4, cudaMemcpyHostToDevice), "writing");
      group.all_reduce(values, values + 1024, 1024, DType::kF32, nullptr);
      std::vector<float> sums(1024);
      cuda::check_cuda(cudaMemcpy(sums.data(), values + 1024, sums.size() * 4, cudaMemcpyDeviceToHost), "reading");
      const auto n = static_cast<float>(mesh_.ranks());
      EXPECT_EQ(sums, std::vector<float>(1024, n * (n + 1) / 2));
      barrier(ranks);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PeerMemoryOf, testing::Values(2, 3, 4));

}  // namespace
}  // namespace octet
