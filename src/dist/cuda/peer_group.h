// A group of ranks whose GPUs map each other's memory. What it cannot carry goes by another group of the same ranks.
#pragma once

#include <memory>
#include <vector>

#include "dist/cuda/peer_memory.h"
#include "kernels/cuda/collective/peer.h"
#include "kernels/cuda/collective/ranks.h"

namespace octet {

class PeerGroup final : public cuda::RankGroup {
 public:
  // `members` reach each other in `memory`, which outlives this; all of them make it together. `alike`: they run one
  // program, so that their operands lie at equal distances in the regions that they share.
  PeerGroup(std::unique_ptr<cuda::RankGroup> others, PeerMemory& memory, std::vector<int32_t> members, bool alike);
  ~PeerGroup() override;

  void all_reduce(const void* x, void* y, int64_t count, DType dtype, Stream stream) override;
  void reduce_scatter(const void* x, void* y, int64_t count, DType dtype, Stream stream) override;
  void all_gather(const void* x, void* y, int64_t bytes, Stream stream) override;
  void all_to_all(const void* x, void* y, int64_t bytes, Stream stream) override;
  void coalesce(FunctionRef<void()> calls, std::span<std::byte> scratch) override;
  int64_t scratch_bytes(int64_t bytes) const override;
  void coalesce_overlapped(FunctionRef<void()> work, FunctionRef<void()> calls, std::span<std::byte> scratch) override;
  const cuda::PeerPads* pads(int64_t bytes) const override;

 private:
  enum class Kind : uint8_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll };
  struct Call {
    Kind kind;
    const void* x;
    void* y;
    int64_t bytes;  // that one rank gives another
    DType dtype;
    Stream stream;
    bool sums() const { return kind == Kind::kAllReduce || kind == Kind::kReduceScatter; }
    int64_t stride() const { return kind == Kind::kReduceScatter || kind == Kind::kAllToAll ? bytes : 0; }
  };
  void check_running() const;
  bool fits_boxes(int64_t bytes) const { return bytes * (size() - 1) <= cuda::kPeerBoxBytes; }
  void add(const Call& call);
  using Work = const FunctionRef<void()>*;  // of together_beside; null: none
  std::vector<Call> collect(FunctionRef<void()> calls);
  void run(std::span<const Call> calls, std::span<std::byte> scratch = {});
  bool run_small(std::span<const Call> calls);
  bool run_large(std::span<const Call> calls, std::span<std::byte> scratch, Work work = nullptr);
  void run_others(std::span<const Call> calls);
  std::vector<const void*> sources(const Call& call) const;  // by rank, what this one reads; empty: out of reach
  void copy_others(const Call& call, const std::vector<const void*>& from, Stream stream);

  std::unique_ptr<cuda::RankGroup> others_;
  PeerMemory& memory_;
  std::vector<int32_t> members_;
  bool alike_;
  std::shared_ptr<const PeerMemory::Mapped> pad_;  // with the boxes
  cuda::PeerPads pads_;
  bool collecting_ = false;
  std::vector<Call> calls_;
  cudaStream_t beside_ = nullptr;  // of own parts, and of all that travels beside kernels
  cudaEvent_t begun_ = nullptr, copied_ = nullptr;
};

}  // namespace octet
