// A row of logits read by a team: the blocks of one cluster, their warps dealt the row's strips of 1024 tokens.
//
// A strip is read by one warp in one order, whatever the number of blocks, and strips are joined in their own order, so
// that a row's sums do not depend on who read what. Everything else is a maximum or a sum of integers. All blocks of a
// team come to the same decisions from the same shared numbers.
#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"

namespace octet::cuda {

inline constexpr int kTeamThreads = 512;
inline constexpr int kTeamWarps = kTeamThreads / 32;
inline constexpr int kStrip = 1024;
inline constexpr int kStripSteps = 4;  // a lane has 8 neighbouring tokens in each
inline constexpr int kMaxBlocks = 8;

__device__ __forceinline__ float never() { return __uint_as_float(0xff800000u); }
// What ranks a logit: -infinity where it is not finite; -0 is 0.
__device__ __forceinline__ float rank_of(float x) { return fabsf(x) <= 3.402823466e38f ? x + 0.0f : never(); }
// Unsigned integers in the order of floats.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ float unordered(uint32_t order) {
  return __uint_as_float(order ^ (order >> 31 ? 0x80000000u : 0xffffffffu));
}
__device__ __forceinline__ float warp_largest(float x) { return unordered(__reduce_max_sync(kWholeWarp, ordered(x))); }

struct Team {
  cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  int rank = static_cast<int>(cluster.block_rank()), blocks = static_cast<int>(cluster.num_blocks());
  int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;

  // The same variable of another block of the team.
  template <typename V>
  __device__ V* of(V* mine, int other) const {
    return cluster.map_shared_rank(mine, static_cast<unsigned>(other));
  }
  // Writes a value for all blocks; called by a whole warp.
  template <typename V>
  __device__ void publish(V* mine, V value) const {
    if (lane < blocks) *of(mine, lane) = value;
  }
  __device__ void sync() const { cluster.sync(); }
};

// Elements [first, first + 8) of a row, ranked; beyond the row -infinity. kAligned: rows begin at 16 bytes.
template <typename T, bool kAligned>
struct Eight {
  uint4 packed[sizeof(T) == 4 ? 2 : 1];

  __device__ __forceinline__ void fetch(const T* row, int first, int vocab) {
    constexpr int kEach = kVecOf<T>;
    if (kAligned && first + 8 <= vocab) {
#pragma unroll
      for (int i = 0; i < 8 / kEach; ++i) packed[i] = *reinterpret_cast<const uint4*>(row + first + i * kEach);
      return;
    }
    uint32_t words[sizeof(packed) / 4];
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < 8; ++i) words[i] = first + i < vocab ? __float_as_uint(row[first + i]) : 0xff800000u;
    } else {
      const auto* halves = reinterpret_cast<const uint16_t*>(row);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t low = first + 2 * i < vocab ? halves[first + 2 * i] : 0xff80u;
        const uint32_t high = first + 2 * i + 1 < vocab ? halves[first + 2 * i + 1] : 0xff80u;
        words[i] = low | high << 16;
      }
    }
#pragma unroll
    for (unsigned i = 0; i < sizeof(packed) / 16; ++i) {
      packed[i] = {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]};
    }
  }
  __device__ __forceinline__ void ranks(float (&to)[8]) const {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(packed);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (sizeof(T) == 4) {
        to[i] = rank_of(__uint_as_float(words[i]));
      } else {
        to[i] = rank_of(__uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u));
      }
    }
  }
};

inline __host__ __device__ int strips_of(int vocab) { return (vocab + kStrip - 1) / kStrip; }

// body(strip, pieces): the lane's four pieces of each strip of this warp, all loads in flight before the first is used.
template <typename T, bool kAligned, typename Body>
__device__ __forceinline__ void for_strips(const Team& team, const T* row, int vocab, const Body& body) {
  const int warps = team.blocks * kTeamWarps;
  for (int strip = team.warp * team.blocks + team.rank; strip < strips_of(vocab); strip += warps) {
    Eight<T, kAligned> pieces[kStripSteps];
#pragma unroll
    for (int step = 0; step < kStripSteps; ++step) {
      pieces[step].fetch(row, strip * kStrip + step * 256 + team.lane * 8, vocab);
    }
    body(strip, pieces);
  }
}
// body(first, x): 8 neighbouring tokens at a time, by whole warps.
template <typename T, bool kAligned, typename Body>
__device__ __forceinline__ void for_eights(const Team& team, const T* row, int vocab, const Body& body) {
  for_strips<T, kAligned>(team, row, vocab, [&](int strip, const Eight<T, kAligned>(&pieces)[kStripSteps]) {
#pragma unroll
    for (int step = 0; step < kStripSteps; ++step) {
      float x[8];
      pieces[step].ranks(x);
      body(strip * kStrip + step * 256 + team.lane * 8, x);
    }
  });
}

// Of a row: its largest logit, the lowest token that has it, and sums of e^((x - largest) factor).
struct RowSums {
  float largest, sum, tempered;  // of factor 1, and of 1 / temperature where asked for
  int token;                     // -1 when nothing is finite
};
// Per strip, in shared memory of every block: [strips] each.
struct StripSums {
  float *largest, *sum, *tempered;
};

__device__ __forceinline__ float warp_sum(float x) { return warp_reduce<Sum>(x); }

// Sums of one strip, from registers; called by a whole warp. `inverse` = 0: no tempered sum.
template <typename T, bool kAligned>
__device__ __forceinline__ void sum_strip(const Team& team, int strip, const Eight<T, kAligned> (&pieces)[kStripSteps],
                                          float inverse, const StripSums& strips) {
  float largest = never();
#pragma unroll
  for (int step = 0; step < kStripSteps; ++step) {
    float x[8];
    pieces[step].ranks(x);
#pragma unroll
    for (float value : x) largest = fmaxf(largest, value);
  }
  largest = warp_largest(largest);
  float sum = 0, tempered = 0;
  if (largest != never()) {
    const float factor = inverse * kLog2E;
#pragma unroll
    for (int step = 0; step < kStripSteps; ++step) {
      float x[8];
      pieces[step].ranks(x);
#pragma unroll
      for (float value : x) sum += exp2_fast((value - largest) * kLog2E);
      if (inverse != 0) {
#pragma unroll
        for (float value : x) tempered += exp2_fast((value - largest) * factor);
      }
    }
    sum = warp_sum(sum);
    if (inverse != 0) tempered = warp_sum(tempered);
  }
  team.publish(strips.largest + strip, largest);
  team.publish(strips.sum + strip, sum);
  if (inverse != 0) team.publish(strips.tempered + strip, tempered);
}

// The strips' sums joined in order. Called by all threads after team.sync(); `result` is shared memory of this block.
template <typename T, bool kAligned>
__device__ __forceinline__ RowSums join_strips(const Team& team, const T* row, int vocab, float inverse,
                                               const StripSums& strips, RowSums* result) {
  if (team.warp == 0) {
    const int count = strips_of(vocab);
    float largest = never();
    for (int i = team.lane; i < count; i += 32) largest = fmaxf(largest, strips.largest[i]);
    largest = warp_largest(largest);
    RowSums sums{largest, 0, 0, -1};
    if (largest != never()) {
      int first = count;
      for (int i = team.lane; i < count; i += 32) {
        sums.sum += strips.sum[i] * exp2_fast((strips.largest[i] - largest) * kLog2E);
        if (inverse != 0) {
          sums.tempered += strips.tempered[i] * exp2_fast((strips.largest[i] - largest) * (inverse * kLog2E));
        }
        if (strips.largest[i] == largest) first = min(first, i);
      }
      sums.sum = warp_sum(sums.sum), sums.tempered = warp_sum(sums.tempered);
      first = __reduce_min_sync(kWholeWarp, first);
      unsigned token = 0xffffffffu;
      for (int at = first * kStrip + team.lane; at < min(vocab, (first + 1) * kStrip); at += 32) {
        if (rank_of(to_float(row[at])) == largest) token = min(token, static_cast<unsigned>(at));
      }
      sums.token = static_cast<int>(__reduce_min_sync(kWholeWarp, token));
    }
    if (team.lane == 0) *result = sums;
  }
  __syncthreads();
  return *result;
}

// Grid and cluster of one team a row; `kernel` takes the arguments.
template <typename... Parameters>
void launch_teams(void (*kernel)(Parameters...), int rows, int blocks_per_row, size_t shared, cudaStream_t stream,
                  Parameters... arguments) {
  const Grid grid{static_cast<unsigned>(rows * blocks_per_row), kTeamThreads, shared,
                  static_cast<unsigned>(blocks_per_row)};
  launch_overlapped(kernel, grid, stream, arguments...);
}

}  // namespace octet::cuda
