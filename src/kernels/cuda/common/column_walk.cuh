// Sums and maxima over the rows of a matrix, and its amax where wanted, in one kernel: the order of column_sums.cuh,
// whose half tiles t, t + 8, ... are one group here. A block has a slab of columns and one group; a worker, 16
// threads side by side, walks the 64 rows of a half tile in registers with the next rows in flight. The last block of a
// slab to arrive joins the groups.
#pragma once

#include <algorithm>

#include "kernels/cuda/common/arrivals.cuh"
#include "kernels/cuda/common/column_sums.cuh"

namespace octet::cuda {

inline constexpr int kWalkGroups = 8, kWalkThreads = 256, kWalkLanes = 16, kWalkWorkers = kWalkThreads / kWalkLanes,
                     kHalfRows = kTile / 2;
inline constexpr int64_t kMaxSlabs = 8192;

struct ColumnWalk {
  const void* x;  // [rows, cols]
  int64_t rows, cols;
  float *partial, *y;  // [8, cols], [cols]; y may be null
  uint32_t* arrivals;  // [kMaxSlabs] of DeviceContext::counters
  GridAmax amax;
};

// The neutral element of Kind::join.
template <typename Kind>
__device__ __forceinline__ float nothing() {
  return std::is_same_v<Kind, SumOf> ? -0.0f : Kind::kIdentity;
}

// Rows 0 .. kHalfRows of the kVec columns at `from`, of which `left` exist: four rows in order, then these in order.
// kWhole: whole accesses of kVec columns, else `cols_left` of them.
template <typename Kind, typename T, int kVec, bool kWhole, bool kAmax>
__device__ __forceinline__ void walk_half_tile(const T* from, int64_t stride, int left, int64_t cols_left,
                                               float (&sum)[kVec], Amax<T>& amax) {
  constexpr int kRows = 4;
  Vec<T, kVec> now[kRows], next[kRows];
  const auto fetch = [&](Vec<T, kVec>(&to)[kRows], int first) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const T* row = from + (first + i) * stride;
      to[i] = {};
      if (first + i >= left) continue;
      if constexpr (kWhole) {
        to[i] = read<kVec>(row);
      } else {
#pragma unroll
        for (int k = 0; k < kVec; ++k)
          if (k < cols_left) to[i].at[k] = row[k];
      }
    }
  };
  const auto join = [&](const Vec<T, kVec>(&rows)[kRows], int first) {
    float four[kVec];
#pragma unroll
    for (float& x : four) x = Kind::kIdentity;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float v[kVec];
      widen(rows[i], v);
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        // Beyond the last row there are zeros.
        if (!std::is_same_v<Kind, MaxOf> || first + i < left) four[k] = Kind::join(four[k], Kind::element(v[k]));
      }
      if constexpr (kAmax) amax.see(rows[i]);
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) sum[k] = Kind::join(sum[k], four[k]);
  };
#pragma unroll
  for (float& x : sum) x = nothing<Kind>();
  fetch(now, 0);
#pragma unroll 1
  for (int first = 0; first < kHalfRows; first += 2 * kRows) {
    fetch(next, first + kRows);
    join(now, first);
    if (first + 2 * kRows < kHalfRows) fetch(now, first + 2 * kRows);
    join(next, first + kRows);
  }
}

template <typename Kind, typename T, bool kWhole, bool kAmax>
__global__ void __launch_bounds__(kWalkThreads, 4) column_walk_kernel(const __grid_constant__ ColumnWalk p) {
  constexpr int kVec = kVecOf<T>, kWidth = kWalkLanes * kVec;
  __shared__ alignas(16) float sums[kWalkWorkers][kWidth];
  __shared__ uint32_t amaxes[kWalkThreads / 32];
  __shared__ bool last;
  griddep_wait();
  griddep_launch_dependents();
  const unsigned slabs = gridDim.x / kWalkGroups, slab = blockIdx.x % slabs;
  const int group = static_cast<int>(blockIdx.x / slabs), thread = static_cast<int>(threadIdx.x);
  const int worker = thread / kWalkLanes, lane = thread % kWalkLanes;
  const int64_t column = int64_t{slab} * kWidth + lane * kVec;
  const auto count = static_cast<int>((2 * ((p.rows + kTile - 1) / kTile) - group + kWalkGroups - 1) / kWalkGroups);
  Amax<T> amax{p.amax};
  float held = Kind::kIdentity;  // of column `thread` of the slab
  for (int first = 0; first < count; first += kWalkWorkers) {
    if (first + worker < count && column < p.cols) {
      const int64_t row = int64_t{group + kWalkGroups * (first + worker)} * kHalfRows;
      const auto left = static_cast<int>(std::clamp<int64_t>(p.rows - row, 0, kHalfRows));
      float sum[kVec];
      walk_half_tile<Kind, T, kVec, kWhole, kAmax>(static_cast<const T*>(p.x) + row * p.cols + column, p.cols, left,
                                                   p.cols - column, sum, amax);
      store(&sums[worker][lane * kVec], sum);
    }
    if constexpr (kAmax) {
      const uint32_t most = warp_max(amax.bits());
      if (thread % 32 == 0) amaxes[thread / 32] = most;
    }
    __syncthreads();
    if (thread < kWidth) {
#pragma unroll 8
      for (int w = 0; w < min(count - first, int{kWalkWorkers}); ++w) held = Kind::join(held, sums[w][thread]);
    }
    if (first + kWalkWorkers < count) __syncthreads();
  }
  if (kAmax && thread >= kWalkThreads - 32) {  // while others join their columns
    const uint32_t most = warp_max(thread % 32 < kWalkThreads / 32 ? amaxes[thread % 32] : 0u);
    if (thread % 32 == 0 && most > 0) atomicMax(p.amax.words, most);
  }
  const int64_t mine = int64_t{slab} * kWidth + thread;
  const bool joins = p.y != nullptr && thread < kWidth && mine < p.cols;
  if (joins) p.partial[group * p.cols + mine] = held;
  __syncthreads();
  // Two threads arrive at once: for the slab, and for the matrix.
  if (thread == 0) last = p.y != nullptr && arrives_last(p.arrivals + slab, kWalkGroups);
  if (kAmax && thread == kWalkThreads - 32 && arrives_last(p.amax.words + 1, gridDim.x)) {
    *p.amax.to = __uint_as_float(atomicExch(p.amax.words, 0u));
  }
  __syncthreads();
  if (!last || !joins) return;
  float of[kWalkGroups];
#pragma unroll
  for (int g = 0; g < kWalkGroups; ++g) of[g] = __ldcg(p.partial + g * p.cols + mine);
#pragma unroll
  for (int g = 1; g < kWalkGroups; ++g) of[0] = Kind::join(of[0], of[g]);
  p.y[mine] = of[0];
}

// Whether there are enough rows for all workers and enough columns for two blocks per SM; otherwise tiles are used,
// which need less.
template <typename T>
bool walks_columns(int64_t rows, int64_t cols) {
  const int64_t slabs = (cols + kWalkLanes * kVecOf<T> - 1) / (kWalkLanes * kVecOf<T>);
  return rows >= kWalkGroups * kWalkWorkers * kHalfRows && kWalkGroups * slabs >= 256 && slabs <= kMaxSlabs;
}

template <typename Kind, typename T, bool kAmax = false>
void launch_column_walk(const ColumnWalk& walk, cudaStream_t stream) {
  constexpr int64_t kWidth = kWalkLanes * kVecOf<T>;
  const auto kernel =
      walk.cols % kVecOf<T> == 0 ? column_walk_kernel<Kind, T, true, kAmax> : column_walk_kernel<Kind, T, false, kAmax>;
  const auto slabs = static_cast<unsigned>((walk.cols + kWidth - 1) / kWidth);
  launch_overlapped(kernel, {kWalkGroups * slabs, kWalkThreads}, stream, walk);
}

}  // namespace octet::cuda
