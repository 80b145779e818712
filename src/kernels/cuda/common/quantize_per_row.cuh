// FP8 codes of a matrix with one scale per row (token), in one pass: a block per row, whose values stay in registers
// while the amax is reduced. What does not fit the registers is computed a second time.
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

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/quantize_tile.cuh"

namespace octet::cuda {

// x[0 .. left) as it is stored, zeros after it. Read once: L1 is left to what every row reads, a bias.
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
    unroll<kRowGroup>([&](int i) { values[i] = i < left ? to_float(x[i]) : 0.0f; });
    return pack<T>(values);
  }
}

template <typename Code, bool kVector>
__device__ __forceinline__ void store_group(uint8_t* codes, int64_t left, const float (&x)[kRowGroup], float scale) {
  const uint2 words = {encode4<Code>(x[0], x[1], x[2], x[3], scale), encode4<Code>(x[4], x[5], x[6], x[7], scale)};
  if constexpr (kVector) {
    if (left > 0) *reinterpret_cast<uint2*>(codes) = words;
  } else {
    unroll<kRowGroup>([&](int i) {
      if (i < left) codes[i] = static_cast<uint8_t>((i < 4 ? words.x : words.y) >> (i % 4 * 8));
    });
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

// A thread holds kHeld groups of the row: t, t + threads, ... of the blocks of a cluster, which share a row through
// DSMEM where rows are few and wide. Launch bounds of one block per SM: otherwise ptxas saves registers by loading one
// group after the other.
template <typename Code, bool kVector, int kHeld, typename Producer>
__global__ void __launch_bounds__(1024, 1)
    quantize_per_row_kernel(const __grid_constant__ Producer producer, const __grid_constant__ QuantizeJob job) {
  using T = typename Producer::Element;
  using M = Magnitudes<T>;
  __shared__ uint32_t scratch[32], of_blocks[kMaxRowBlocks];
  const auto cluster = cooperative_groups::this_cluster();
  const auto blocks = static_cast<int>(cluster.num_blocks()), rank = static_cast<int>(cluster.block_rank());
  if (blocks > 1) cluster.barrier_arrive();  // no block writes into the DSMEM of one that has not begun
  griddep_begin(job.next_reads_ahead);
  const int64_t row = blockIdx.x / static_cast<unsigned>(blocks), begin = row * job.cols;
  const int threads = static_cast<int>(blockDim.x), stride = blocks * threads * kRowGroup;
  const int first = (rank * threads + static_cast<int>(threadIdx.x)) * kRowGroup;
  const auto largest = [](uint32_t most, const Packed<T, kRowGroup>& group) {
#pragma unroll
    for (uint32_t word : group.words) most = M::max(most, word & M::kMask);
    return most;
  };
  typename Producer::Operands operands[kHeld];
  unroll<kHeld>([&](int h) {
    const int64_t column = first + h * stride;
    operands[h] = producer.template load<kVector>(row, column, job.cols - column);
  });
  Packed<T, kRowGroup> held[kHeld];
  uint32_t most = 0;
  unroll<kHeld>([&](int h) {
    const int64_t column = first + h * stride;
    held[h] = producer.template make<kVector>(operands[h], column, job.cols - column);
    most = largest(most, held[h]);
  });
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
  const float scale = scale_of(job.formula, most);
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
  unroll<kHeld>([&](int h) { encode(held[h], first + h * stride); });
#pragma unroll 1
  for (int64_t column = first + kHeld * stride; column < job.cols; column += stride) {
    encode(make_again(column), column);
  }
}

// Codes, scale_inv and amax only; amax has been cleared.
template <typename Code, typename Producer>
void launch_quantize_per_row(const Producer& producer, const QuantizeJob& job, const PerRowPlan& plan,
                             cudaStream_t stream) {
  const auto launch = [&]<int kHeld, bool kVector>() {
    const Grid grid{static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.threads), 0,
                    static_cast<unsigned>(plan.cluster)};
    launch_overlapped(quantize_per_row_kernel<Code, kVector, kHeld, Producer>, grid, stream, producer, job);
  };
  if (!plan.vector) {
    if constexpr (Producer::kAnyColumns) launch.template operator()<4, false>();
  } else if (plan.held == 4) {
    launch.template operator()<4, true>();
  } else if (plan.held == 2) {
    launch.template operator()<2, true>();
  } else {
    launch.template operator()<1, true>();
  }
}

}  // namespace octet::cuda
