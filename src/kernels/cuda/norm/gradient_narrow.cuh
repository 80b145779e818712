// Gradients of norms of up to kNarrowCols columns: as gradient.cuh, but with eight columns a thread, whose weights stay
// in registers, and two rows a turn, which share a barrier and the tree of their sums: between barriers a turn has few
// instructions, and they, not memory, bound narrow rows.
#pragma once

#include <algorithm>

#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/quantize_tile.cuh"
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/row_access.cuh"

namespace octet::cuda {

// Eight elements at an address of shared memory.
template <typename T>
__device__ __forceinline__ Packed<T, kGroup> load_shared(uint32_t address) {
  Packed<T, kGroup> packed;
#pragma unroll
  for (int w = 0; w < packed.kWords; w += 4) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(packed.words[w]), "=r"(packed.words[w + 1]), "=r"(packed.words[w + 2]),
                   "=r"(packed.words[w + 3])
                 : "r"(address + 4 * w)
                 : "memory");
  }
  return packed;
}

inline constexpr int kRowsAtOnce = 2;

template <typename T, bool kLayer, bool kColumnSum, bool kAdds>
__global__ void __launch_bounds__(512, 1)
    norm_gradient_narrow_kernel(const __grid_constant__ NormGradient p, int stages) {
  extern __shared__ __align__(128) unsigned char ring[];  // [stages][kRows][x, dy, addend]
  constexpr int kRows = kRowsAtOnce, kOperands = kAdds ? 3 : 2, kDots = 1 + kLayer, kValues = kRows * kDots,
                kSums = 1 + kLayer + kColumnSum, kStep = 32 / kValues;
  __shared__ float shares[2][kValues][16];   // by turn; of the warps
  __shared__ float statistics[2][2][kRows];  // by turn: means, rstds
  __shared__ BulkBarrier full[kMaxStages];
  __shared__ uint32_t amaxes[32];
  wait_for_previous();
  allow_next();
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int column = thread * kGroup, warps = static_cast<int>(blockDim.x) >> 5;
  const bool has = column < static_cast<int>(p.cols);
  const auto row_bytes = static_cast<uint32_t>(p.cols) * static_cast<uint32_t>(sizeof(T));
  const auto rows = static_cast<unsigned>(p.rows);
  const uint32_t stage_bytes = kRows * kOperands * row_bytes, ring_begin = shared_address(ring);
  // `row` is the first of a turn's; the next is gridDim.x further.
  const auto request = [&](unsigned row, int stage) {
    if (row >= rows) return;
    const int count = row + gridDim.x < rows ? 2 : 1;
    full[stage].expect(row_bytes * static_cast<uint32_t>(kOperands * count));
#pragma unroll 1
    for (int r = 0; r < count; ++r, row += gridDim.x) {
      const int64_t at = row * p.cols;
      unsigned char* to =
          ring + static_cast<uint32_t>(stage) * stage_bytes + static_cast<uint32_t>(r) * kOperands * row_bytes;
      bulk_load(to, static_cast<const T*>(p.x) + at, row_bytes, full[stage]);
      bulk_load(to + row_bytes, static_cast<const T*>(p.dy) + at, row_bytes, full[stage]);
      if (kAdds) bulk_load(to + 2 * row_bytes, static_cast<const T*>(p.addend) + at, row_bytes, full[stage]);
    }
  };
  const unsigned turn_rows = kRows * gridDim.x;
  if (thread == 0) {
#pragma unroll 1
    for (int s = 0; s < stages; ++s) full[s].init();
    publish_barriers();
#pragma unroll 1
    for (int s = 0; s < stages; ++s) request(blockIdx.x + static_cast<unsigned>(s) * turn_rows, s);
  }
  float weight[kGroup] = {};
  if (has) load_channels(p.weight, p.weight_dtype, column, weight);
  // Thread t < 2 kRows brings one value of the statistics of a turn.
  const float* from = thread < kRows ? p.mean : p.rstd;
  const bool brings = thread < 2 * kRows && from != nullptr;
  const auto fetch = [&](unsigned first) {
    const unsigned row = first + static_cast<unsigned>(thread % kRows) * gridDim.x;
    return brings && row < rows ? from[row] : 0.0f;
  };
  if (const float first = fetch(blockIdx.x); thread < 2 * kRows) statistics[0][thread / kRows][thread % kRows] = first;
  __syncthreads();

  using M = Magnitudes<T>;
  float sums[kSums][kGroup] = {};
  const float scale = 1.0f / static_cast<float>(p.cols);
  uint32_t largest = 0, parity = 0;
  int stage = 0, turn = 0;
  uint32_t place = ring_begin + static_cast<uint32_t>(column) * static_cast<uint32_t>(sizeof(T));
  const uint32_t place_end = place + static_cast<uint32_t>(stages) * stage_bytes;
  int64_t at = blockIdx.x * p.cols + column;
  const int64_t row_step = gridDim.x * p.cols;
  for (unsigned row = blockIdx.x; row < rows; row += turn_rows, turn ^= 1) {
    const bool both = row + gridDim.x < rows;
    float h[kRows][kGroup], g[kRows][kGroup], dots[kValues] = {}, rstd[kRows];
    const float next = fetch(row + turn_rows);
    full[stage].wait(parity);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float mean = kLayer ? statistics[turn][0][r] : 0.0f;
      rstd[r] = statistics[turn][1][r];
      Packed<T, kGroup> x{}, dy{};
      if (has && (r == 0 || both)) {
        x = load_shared<T>(place + static_cast<uint32_t>(r) * kOperands * row_bytes);
        dy = load_shared<T>(place + (static_cast<uint32_t>(r) * kOperands + 1) * row_bytes);
      }
      x.unpack(h[r]), dy.unpack(g[r]);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const float d = g[r][i];
        h[r][i] = (kLayer ? h[r][i] - mean : h[r][i]) * rstd[r];
        sums[0][i] = fmaf(d, h[r][i], sums[0][i]);
        if constexpr (kLayer) sums[1][i] += d;
        g[r][i] = d * weight[i];
        dots[r * kDots] = fmaf(g[r][i], h[r][i], dots[r * kDots]);
        if constexpr (kLayer) dots[r * kDots + 1] += g[r][i];
      }
    }
    int which;
    const float share = warp_sums(dots, which);
    if (lane % kStep == 0) shares[turn][which][warp] = share;
    if (thread < 2 * kRows) statistics[turn ^ 1][thread / kRows][thread % kRows] = next;
    __syncthreads();
    // Everybody has done with the turn before.
    if (thread == 0 && row != blockIdx.x)
      request(row + static_cast<unsigned>(stages - 1) * turn_rows, stage == 0 ? stages - 1 : stage - 1);
#pragma unroll
    for (int v = 0; v < kValues; ++v) dots[v] = lane < warps ? shares[turn][v][lane] : 0.0f;
    const float sum = warp_sums(dots, which) * scale;
#pragma unroll
    for (int r = 0; r < kRows; ++r, at += row_step) {
      const float mean_gh = __shfl_sync(kWholeWarp, sum, r * kDots * kStep),
                  mean_g = kLayer ? __shfl_sync(kWholeWarp, sum, (r * kDots + 1) * kStep) : 0.0f;
      if (!has || (r == 1 && !both)) continue;
      float out[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) out[i] = rstd[r] * fmaf(-h[r][i], mean_gh, kLayer ? g[r][i] - mean_g : g[r][i]);
      const Packed<T, kGroup> dx = pack<T>(out);
      if (p.dx != nullptr) store_packed(static_cast<T*>(p.dx) + at, dx);
      if constexpr (kAdds) {
        float other[kGroup];
        load_shared<T>(place + (static_cast<uint32_t>(r) * kOperands + 2) * row_bytes).unpack(other);
        dx.unpack(out);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) out[i] += other[i];
        const Packed<T, kGroup> total = pack<T>(out);
        if (p.sum != nullptr) store_packed(static_cast<T*>(p.sum) + at, total);
#pragma unroll
        for (uint32_t word : total.words) largest = M::max(largest, word & M::kMask);
        if constexpr (kColumnSum) {
          total.unpack(out);
#pragma unroll
          for (int i = 0; i < kGroup; ++i) sums[kSums - 1][i] += out[i];
        }
      }
    }
    place += stage_bytes;
    if (++stage == stages) stage = 0, parity ^= 1, place = place_end - static_cast<uint32_t>(stages) * stage_bytes;
  }
  if (p.amax != nullptr) {
    largest = block_max(M::bits(largest), amaxes);
    if (thread == 0) p.block_amaxes[blockIdx.x] = largest;
  }
  // partials [kSums, blocks, C]
  if (!has) return;
#pragma unroll
  for (int s = 0; s < kSums; ++s) store(p.partials + (int64_t{s} * gridDim.x + blockIdx.x) * p.cols + column, sums[s]);
}

template <typename T, bool kLayer, bool kColumnSum>
void launch_norm_gradient_narrow(const NormGradient& call, cudaStream_t stream) {
  const int64_t stage = kRowsAtOnce * (call.addend != nullptr ? 3 : 2) * call.cols * static_cast<int64_t>(sizeof(T));
  const int64_t room = (int64_t{200} << 10) / norm_gradient_blocks_per_sm(call.cols);
  const auto stages = static_cast<int>(std::clamp<int64_t>(room / stage, 2, kMaxStages));
  const auto shared = static_cast<size_t>(stages * stage);
  const auto threads = static_cast<unsigned>((call.cols / kGroup + 31) / 32 * 32);
  const auto run = [&](auto kernel) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    launch_overlapped(kernel, {static_cast<unsigned>(call.blocks), threads, shared}, stream, call, stages);
  };
  if constexpr (kColumnSum) {
    run(norm_gradient_narrow_kernel<T, kLayer, true, true>);
  } else {
    run(call.addend != nullptr ? norm_gradient_narrow_kernel<T, kLayer, false, true>
                               : norm_gradient_narrow_kernel<T, kLayer, false, false>);
  }
}

}  // namespace octet::cuda
