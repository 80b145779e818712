// The devices of the other ranks of a mesh, as kernels of collectives see them. dist/cuda/nccl.h makes them of NCCL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/threads.h"
#include "ir/layout.h"

struct CUstream_st;

namespace octet::cuda {

struct PeerPads;  // kernels/cuda/collective/peer.h

// The ranks that differ from this one in some axes only, in order of their parts. All of them make the same calls in
// one order. A call puts its work on the stream and returns; it may be captured. Operands and results lie apart.
class RankGroup {
 public:
  using Stream = CUstream_st*;

  RankGroup(int64_t size, int64_t own) : size_(size), own_(own) {}
  virtual ~RankGroup() = default;
  RankGroup(const RankGroup&) = delete;
  int64_t size() const { return size_; }
  int64_t own() const { return own_; }  // the place of this rank

  // y [count] = the sum of the ranks' x [count]; f32, bf16, f16, f64 or i32.
  virtual void all_reduce(const void* x, void* y, int64_t count, DType dtype, Stream stream) = 0;
  // y [count] = row own() of the sum of the ranks' x [size, count].
  virtual void reduce_scatter(const void* x, void* y, int64_t count, DType dtype, Stream stream) = 0;
  // Row i of y [size, bytes] = x [bytes] of rank i.
  virtual void all_gather(const void* x, void* y, int64_t bytes, Stream stream) = 0;
  // Row i of y [size, bytes] = row own() of x [size, bytes] of rank i.
  virtual void all_to_all(const void* x, void* y, int64_t bytes, Stream stream) = 0;
  // The calls that `calls` makes go as one. With `scratch` they run beside kernels, which keep their multiprocessors
  // while parts travel: of the size that scratch_bytes says, added up over the calls; device memory of their own.
  virtual void coalesce(FunctionRef<void()> calls, std::span<std::byte> scratch) = 0;
  void coalesce(FunctionRef<void()> calls) { coalesce(calls, {}); }
  // The same beside kernels that `work` puts on the stream: they make row own() of what is scattered, and read no part
  // of y of what is gathered. In turn where there is no better way.
  virtual void coalesce_overlapped(FunctionRef<void()> work, FunctionRef<void()> calls, std::span<std::byte> scratch) {
    work();
    coalesce(calls, scratch);
  }
  // For a reduce_scatter of so many bytes a rank; 0: it runs in one way only.
  virtual int64_t scratch_bytes(int64_t) const { return 0; }
  // For a kernel that pushes so many bytes to every other rank itself (PushCall), asked for each; null: it cannot here.
  virtual const PeerPads* pads(int64_t) const { return nullptr; }

 private:
  int64_t size_, own_;
};

// From one rank to another, or back: one direction. Both ends make the same calls in one order; each puts its work on
// the stream and returns, and is not captured.
class DeviceLink {
 public:
  using Stream = RankGroup::Stream;
  virtual ~DeviceLink() = default;
  virtual void send(const void* x, Stream stream) = 0;
  virtual void receive(void* y, Stream stream) = 0;
};

// One rank's. Belongs to one thread at a time, as its executor does, and outlives it: graphs that captured a group's
// calls end before the group.
class DeviceRanks {
 public:
  DeviceRanks(const Mesh& mesh, int32_t rank) : mesh_(mesh), rank_(rank) {}
  virtual ~DeviceRanks() = default;
  DeviceRanks(const DeviceRanks&) = delete;
  const Mesh& mesh() const { return mesh_; }
  int32_t rank() const { return rank_; }
  Coordinate coordinate() const { return mesh_.coordinate(rank_); }

  // The group along these axes, whose order is that of the parts. Its first call makes it: all its ranks call then, and
  // rank by rank groups are made in one order.
  virtual RankGroup& group(const AxisList& over) = 0;
  // Memory of the device, where all ranks of one program put operands at equal places: other devices may read it where
  // it lies. All ranks call it, in one order, for no bytes too. Null: there is no such memory here, or no bytes.
  virtual std::shared_ptr<std::byte> allocate(int64_t bytes, const std::string& purpose) { return nullptr; }
  // A link for `bytes` a call, on which this rank sends or receives; `other` makes its end at the same time. Null: none
  // here.
  virtual std::shared_ptr<DeviceLink> link(int32_t other, bool sends, int64_t bytes) { return nullptr; }
  // Throws kIo when a rank is lost or a call has failed: for the host while it waits for the device.
  virtual void check() = 0;
  // Ends what is under way on the device, whose results are then no results; later calls throw. Graphs that captured
  // calls must be gone, or it waits for them.
  virtual void abort() = 0;
  virtual bool aborted() const = 0;
  virtual int64_t bytes() const = 0;  // of device memory that the groups took when they were made

 private:
  Mesh mesh_;
  int32_t rank_;
};

}  // namespace octet::cuda
