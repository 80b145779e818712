// Pushes of small tensors between GPUs and sums in order of ranks (peer.h), for the kernels that make them.
#pragma once

#include <type_traits>

#include "kernels/cuda/collective/peer.h"
#include "kernels/cuda/common/numbers.cuh"

namespace octet::cuda {

// Whether to go on polling: the host's word is read now and then.
__device__ __forceinline__ bool waits(const int* aborted, int spins) {
  return (spins & 4095) != 4095 || *static_cast<const volatile int*>(aborted) == 0;
}

// One call of pushes, which all blocks of one kernel make, after griddep_wait. A box holds units: eight bytes of a
// tensor as two words, each with the number of the call. Eight bytes arrive as a whole.
struct PushCall {
  const PeerPads& pads;
  PeerPad& own;
  uint32_t number;

  __device__ __forceinline__ explicit PushCall(const PeerPads& pads)
      : pads(pads), own(*pads.pads[pads.own]), number(*static_cast<volatile uint32_t*>(&own.calls) + 1) {}

  // In the memory of `rank`, for what `from` pushes: where byte `at` of the tensors goes, a multiple of 8.
  __device__ __forceinline__ std::byte* box(int rank, int from, int64_t at) const {
    return pads.boxes[rank] + ((number & 1) * pads.size + from) * 2 * kPeerBoxBytes + 2 * at;
  }

  // kUnits neighbouring units.
  template <int kUnits>
  __device__ __forceinline__ void push(std::byte* box, const uint2 (&units)[kUnits]) const {
    unroll<kUnits>([&](int i) {
      asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(box + 16 * i), "r"(units[i].x),
                   "r"(number), "r"(units[i].y)
                   : "memory");
    });
  }
  template <int kUnits>
  __device__ __forceinline__ void take(const std::byte* box, uint2 (&units)[kUnits]) const {
    for (int spins = 0;; ++spins) {
      bool arrived = true;
      unroll<kUnits>([&](int i) {
        uint32_t first, second;
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(units[i].x), "=r"(first), "=r"(units[i].y), "=r"(second)
                     : "l"(box + 16 * i)
                     : "memory");
        arrived = arrived && first == number && second == number;
      });
      if (arrived || !waits(pads.aborted, spins)) return;
    }
  }

  // By all threads, when they have taken what they wait for: what end() is given, by thread 0. No fence: what a block
  // has read of `calls` and of boxes it has used by now.
  __device__ __forceinline__ uint32_t arrive(uint32_t blocks) const {
    __syncthreads();
    if (threadIdx.x != 0) return 0;
    return blocks == 1 ? 1 : atomicAdd(&own.finished, 1) + 1;
  }
  // Some way behind it, for an atomic takes its time.
  __device__ __forceinline__ void end(uint32_t arrived, uint32_t blocks) const {
    if (arrived != blocks) return;
    own.finished = 0;
    own.calls = number;
  }
};

template <typename T>
struct Accumulator {
  using Type = float;
};
template <>
struct Accumulator<double> {
  using Type = double;
};
template <>
struct Accumulator<int32_t> {
  using Type = int32_t;
};

__device__ __forceinline__ double widened(double x) { return x; }
__device__ __forceinline__ int32_t widened(int32_t x) { return x; }
template <typename T>
__device__ __forceinline__ float widened(T x) {
  return to_float(x);
}
template <typename T>
__device__ __forceinline__ T narrowed(typename Accumulator<T>::Type x) {
  if constexpr (std::is_same_v<T, typename Accumulator<T>::Type>) {
    return x;
  } else {
    return from_float<T>(x);
  }
}

// The sum of `Words` (uint2 or uint4) of elements T.
template <typename T, typename Words>
struct Added {
  static constexpr int kCount = sizeof(Words) / sizeof(T);
  typename Accumulator<T>::Type sums[kCount];

  __device__ __forceinline__ void add(const Words& words, bool first) {
    const T* x = reinterpret_cast<const T*>(&words);
    unroll<kCount>([&](int i) { sums[i] = first ? widened(x[i]) : sums[i] + widened(x[i]); });
  }
  __device__ __forceinline__ Words rounded() const {
    Words words;
    T* y = reinterpret_cast<T*>(&words);
    unroll<kCount>([&](int i) { y[i] = narrowed<T>(sums[i]); });
    return words;
  }
};

}  // namespace octet::cuda
