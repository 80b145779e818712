// Launchers of exchanges between GPUs that map each other's memory (NVLink): no more than kMaxPeers of one machine.
//
// Small tensors are pushed into boxes in the other ranks' memory, every eight bytes with the number of the call, for
// which the reader polls: one hop, no barrier. Boxes of two calls in turn are enough, since a rank that is in call n +
// 1 has read all of call n - 1. Large ones are read where they lie, between two barriers. All ranks of a group make the
// same calls in one order, which their streams keep.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace octet::cuda {

inline constexpr int kMaxPeers = 8;
inline constexpr int64_t kPeerBoxBytes = int64_t{1} << 20;  // the most that a rank pushes to another in one call

// A rank's counters, in its own memory; 0 at first.
struct PeerPad {
  std::array<uint32_t, kMaxPeers> arrived;  // by rank: the barriers that it has come to
  uint32_t barriers;                        // that this rank has come to
  uint32_t calls, finished;                 // pushes; blocks of the one under way that have ended
};

struct PeerPads {
  int size = 0, own = 0;
  std::array<PeerPad*, kMaxPeers> pads = {};
  std::array<std::byte*, kMaxPeers> boxes = {};  // [2 calls][rank that pushes][2 kPeerBoxBytes]
  const int* aborted = nullptr;                  // of the host: no kernel waits any longer
};
// Of a rank's pad with its boxes behind it.
inline constexpr int64_t kPeerPadBytes = 256;
constexpr int64_t peer_memory_bytes(int size) { return kPeerPadBytes + 2 * size * 2 * kPeerBoxBytes; }

// What is before the call on every rank's stream has ended, and its memory can be read, when it ends.
void launch_peer_barrier(const PeerPads& pads, cudaStream_t stream);

// Of small tensors. Rank r is given x + r * stride, `bytes` of it; y is their sum, or their rows [size, bytes].
struct PeerTensor {
  const void* x;
  void* y;
  int64_t bytes, stride;
};
// bytes as the boxes count them: all tensors of a call together take at most kPeerBoxBytes.
constexpr int64_t peer_box_bytes(int64_t bytes) { return (bytes + 7) / 8 * 8; }
bool peer_sums(DType dtype);  // f32, bf16, f16, f64, i32
// Sums are made in order of ranks, in float32 (f64: float64), rounded once.
void launch_peer_sum_small(const PeerPads& pads, DType dtype, std::span<const PeerTensor> all, cudaStream_t stream);
void launch_peer_rows_small(const PeerPads& pads, std::span<const PeerTensor> all, cudaStream_t stream);

// y = the sum of the ranks' x, as above: x [size] in order of ranks, of `bytes` each, multiples of 16 and aligned so.
// `own`: all of them lie in this device's memory, whose bandwidth takes all SMs.
void launch_peer_sum(DType dtype, std::span<const void* const> x, void* y, int64_t bytes, bool own,
                     cudaStream_t stream);

}  // namespace octet::cuda
