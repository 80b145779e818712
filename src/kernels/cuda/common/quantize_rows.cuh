// Codes of a matrix with a scale a row (a token), in one pass: a block a row, what a producer makes of the row stays in
// registers while its amax is found. Rows wider than that are made a second time.
//
//   struct Producer {
//     static constexpr bool kAnyColumns = true;      // else kVector only
//     using Element = bf16;                          // what the row's values round to before they are quantized
//     struct Operands;                               // what was read for eight of them
//     template <bool kVector>                        // elements column .. column + 7; `left` of them are in the row
//     __device__ Operands load(int64_t row, int64_t column, int64_t left) const;
//     template <bool kVector>                        // 0 beyond the row
//     __device__ Packed<Element, kRowGroup> make(const Operands&, int64_t column, int64_t left) const;
//   };
//
// kVector: every row is a multiple of eight elements and begins at 16 bytes.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/quantize_tile.cuh"

namespace octet::cuda {

inline constexpr int kRowGroup = 8;      // neighbours a thread takes at once
inline constexpr int kMaxRowBlocks = 8;  // of a row

// x[0 .. left) as it is stored, zeros after it. Read once: the level 1 cache is left to what every row reads, a bias.
template <bool kVector, typename T>
__device__ __forceinline__ Packed<T, kRowGroup> load_group(const T* x, int64_t left) {
  if constexpr (kVector) {
    Packed<T, kRowGroup> group{};
    if (left <= 0) return group;
#pragma unroll
    for (int i = 0; i < group.kWords; i += 4) {
      asm("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(group.words[i]), "=r"(group.words[i + 1]), "=r"(group.words[i + 2]), "=r"(group.words[i + 3])
          : "l"(reinterpret_cast<const uint32_t*>(x) + i)
          : "memory");
    }
    return group;
  } else {
    float values[kRowGroup];
#pragma unroll
    for (int i = 0; i < kRowGroup; ++i) values[i] = i < left ? to_float(x[i]) : 0.0f;
    return pack<T>(values);
  }
}

template <typename Code, bool kVector>
__device__ __forceinline__ void store_group(uint8_t* codes, int64_t left, const float (&x)[kRowGroup], float scale) {
  const uint2 words = {encode4<Code>(x[0], x[1], x[2], x[3], scale), encode4<Code>(x[4], x[5], x[6], x[7], scale)};
  if constexpr (kVector) {
    if (left > 0) *reinterpret_cast<uint2*>(codes) = words;
  } else {
#pragma unroll
    for (int i = 0; i < kRowGroup; ++i)
      if (i < left) codes[i] = static_cast<uint8_t>((i < 4 ? words.x : words.y) >> (i % 4 * 8));
  }
}

// The matrix as it is.
template <typename T>
struct PlainRows {
  static constexpr bool kAnyColumns = true;
  using Element = T;
  using Operands = Packed<T, kRowGroup>;
  const T* x;
  int64_t cols;
  template <bool kVector>
  __device__ __forceinline__ Operands load(int64_t row, int64_t column, int64_t left) const {
    return load_group<kVector>(x + row * cols + column, left);
  }
  template <bool kVector>
  __device__ __forceinline__ Operands make(const Operands& operands, int64_t, int64_t) const {
    return operands;
  }
};

// A thread holds kHeld groups of the row: t, t + threads, ... of the blocks of a cluster, which share a row where rows
// are few and wide. One block a multiprocessor is asked for, since ptxas saves registers otherwise: it then loads one
// group after the other.
template <typename Code, bool kVector, int kHeld, typename Producer>
__global__ void __launch_bounds__(1024, 1)
    quantize_rows_kernel(const __grid_constant__ Producer producer, const __grid_constant__ QuantizeJob job) {
  using T = typename Producer::Element;
  using M = Magnitudes<T>;
  __shared__ uint32_t scratch[32], of_blocks[kMaxRowBlocks];
  const auto cluster = cooperative_groups::this_cluster();
  const auto blocks = static_cast<int>(cluster.num_blocks()), rank = static_cast<int>(cluster.block_rank());
  if (blocks > 1) cluster.barrier_arrive();  // nobody writes into a block that has not begun
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row = blockIdx.x / static_cast<unsigned>(blocks), begin = row * job.cols;
  const int threads = static_cast<int>(blockDim.x), stride = blocks * threads * kRowGroup;
  const int first = (rank * threads + static_cast<int>(threadIdx.x)) * kRowGroup;
  const auto largest = [](uint32_t most, const Packed<T, kRowGroup>& group) {
#pragma unroll
    for (uint32_t word : group.words) most = M::max(most, word & M::kMask);
    return most;
  };
  typename Producer::Operands operands[kHeld];
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int64_t column = first + h * stride;
    operands[h] = producer.template load<kVector>(row, column, job.cols - column);
  }
  Packed<T, kRowGroup> held[kHeld];
  uint32_t most = 0;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int64_t column = first + h * stride;
    held[h] = producer.template make<kVector>(operands[h], column, job.cols - column);
    most = largest(most, held[h]);
  }
  const auto make_again = [&](int64_t column) {
    const int64_t left = job.cols - column;
    return producer.template make<kVector>(producer.template load<kVector>(row, column, left), column, left);
  };
#pragma unroll 1
  for (int64_t column = first + kHeld * stride; column < job.cols; column += stride) {
    most = largest(most, make_again(column));
  }
  most = block_max(M::bits(most), scratch);
  if (blocks > 1) {
    cluster.barrier_wait();
    if (static_cast<int>(threadIdx.x) < blocks) *cluster.map_shared_rank(of_blocks + rank, threadIdx.x) = most;
    cluster.sync();
    for (int i = 0; i < blocks; ++i) most = max(most, of_blocks[i]);
  }
  const float scale = ScaleFormula{job.max, job.margin, job.pow2}(most);
  if (threadIdx.x == 0 && rank == 0) {
    if (job.scale_inv != nullptr) job.scale_inv[row] = 1.0f / scale;
    if (job.amax != nullptr) atomicMax(reinterpret_cast<uint32_t*>(job.amax), most);
  }
  if (job.codes == nullptr) return;
  const auto encode = [&](const Packed<T, kRowGroup>& group, int64_t column) {
    float values[kRowGroup];
    group.unpack(values);
    store_group<Code, kVector>(job.codes + begin + column, job.cols - column, values, scale);
  };
#pragma unroll
  for (int h = 0; h < kHeld; ++h) encode(held[h], first + h * stride);
#pragma unroll 1
  for (int64_t column = first + kHeld * stride; column < job.cols; column += stride) {
    encode(make_again(column), column);
  }
}

// Whether every group of x [rows, cols] and of its codes is one access.
template <typename T>
bool fits_groups(const QuantizeJob& job, const T* x) {
  return job.cols % kRowGroup == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(job.codes) % kRowGroup == 0;
}

// Rows that leave multiprocessors idle get as many threads as they can use, for the shortest time; others as few as
// keep enough bytes in flight. The result does not depend on it.
inline constexpr int64_t kFewRows = 264;  // two blocks a multiprocessor

// job.vector: whether rows fit kVector. Codes, scale_inv and amax only; amax has been cleared.
template <typename Code, typename Producer>
void launch_quantize_rows(const Producer& producer, const QuantizeJob& job, cudaStream_t stream) {
  const int64_t groups = (job.cols + kRowGroup - 1) / kRowGroup;
  const auto threads_for = [&](int64_t held) {
    return std::min<int64_t>(((groups + held - 1) / held + 31) / 32 * 32, 1024);
  };
  const auto launch = [&]<int kHeld, bool kVector>(unsigned blocks = 1) {
    const Grid grid{static_cast<unsigned>(job.rows) * blocks, static_cast<unsigned>(threads_for(kHeld * blocks)), 0,
                    blocks};
    launch_overlapped(quantize_rows_kernel<Code, kVector, kHeld, Producer>, grid, stream, producer, job);
  };
  if (!job.vector) {
    if constexpr (Producer::kAnyColumns) launch.template operator()<4, false>();
  } else if (groups > 1024 && groups <= 1024 * kMaxRowBlocks && job.rows * kMaxRowBlocks <= kFewRows) {
    launch.template operator()<1, true>(kMaxRowBlocks);
  } else if (groups > 2048 || job.rows > kFewRows) {
    launch.template operator()<4, true>();
  } else if (groups > 1024) {
    launch.template operator()<2, true>();
  } else {
    launch.template operator()<1, true>();
  }
}

}  // namespace octet::cuda
