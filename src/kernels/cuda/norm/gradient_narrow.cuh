// Gradients of norms of up to kMaxTeamCols columns: as gradient.cu, but an SM has one block of several teams, each
// with rows, a ring and a barrier of its own: while one waits for its sums another computes. A thread has 8 columns and
// two rows per turn, or 16 columns and one row, and keeps their weights in registers; a turn has one barrier and one
// reduction for all its sums. The teams' sums over rows are joined in the order of the teams at the end.
#pragma once

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/quantize_tile.cuh"
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/row_access.cuh"
#include "kernels/cuda/norm/row_ring.cuh"

namespace octet::cuda {

__device__ __forceinline__ void wait_for_team(int team, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(threads) : "memory");
}

// p.blocks blocks of `teams` teams. Team t of block b has rows t blocks + b, then every (teams blocks)-th.
template <typename T, bool kLayer, bool kColumnSum, bool kAdds, int kChunks>
__global__ void __launch_bounds__(512, 1)
    norm_gradient_teams_kernel(const __grid_constant__ NormGradient p, int teams, int stages) {
  extern __shared__ __align__(128) unsigned char rings[];  // [teams][stages][kRows][x, dy, addend][C]; at the end sums
  constexpr int kRows = 2 / kChunks, kOperands = kAdds ? 3 : 2, kDots = 1 + kLayer, kValues = kRows * kDots,
                kSums = 1 + kLayer + kColumnSum, kStep = 32 / (kValues == 3 ? 4 : kValues);
  __shared__ float shares[kMaxTeams][2][32];  // by turn; sum v of warp w at v kTeamWarps + w
  __shared__ Mbarrier barriers[kMaxTeams][kMaxStages];
  __shared__ uint32_t amaxes[32];
  griddep_wait();
  griddep_launch_dependents();
  const int threads = static_cast<int>(blockDim.x) / teams, team = static_cast<int>(threadIdx.x) / threads,
            thread = static_cast<int>(threadIdx.x) % threads, lane = thread & 31, warp = thread >> 5;
  const auto cols = static_cast<unsigned>(p.cols), rows = static_cast<unsigned>(p.rows);
  const auto column_of = [&](int c) { return static_cast<unsigned>(c * threads + thread) * kGroup; };
  const uint32_t row_bytes = cols * static_cast<uint32_t>(sizeof(T)), operand_bytes = kOperands * row_bytes,
                 stage_bytes = kRows * operand_bytes;
  const unsigned step = gridDim.x * static_cast<unsigned>(teams), first = team * gridDim.x + blockIdx.x;
  RowRing ring{rings + static_cast<uint32_t>(team * stages) * stage_bytes, barriers[team], stages, kRows * kOperands,
               row_bytes};
  // `row` is the first of a turn's; the next is `step` further.
  const auto request = [&](unsigned row, int stage) {
    if (row >= rows) return;
    const int count = kRows == 2 && row + step < rows ? 2 : 1;
    Mbarrier& full = ring.full[stage];
    full.arrive_expect(operand_bytes * static_cast<uint32_t>(count));
#pragma unroll 1
    for (int r = 0; r < count; ++r, row += step) {
      const int64_t at = int64_t{row} * cols;
      unsigned char* to = ring.at(stage, r * kOperands);
      bulk_load(to, static_cast<const T*>(p.x) + at, row_bytes, full);
      bulk_load(to + row_bytes, static_cast<const T*>(p.dy) + at, row_bytes, full);
      if (kAdds) bulk_load(to + 2 * row_bytes, static_cast<const T*>(p.addend) + at, row_bytes, full);
    }
  };
  if (thread == 0) ring.begin([&](int s) { request(first + static_cast<unsigned>(s) * kRows * step, s); });
  bool has[kChunks];
  float weight[kChunks][kGroup] = {};
  unroll<kChunks>([&](int c) {
    has[c] = column_of(c) < cols;
    if (has[c]) load_channels(p.weight, p.weight_dtype, column_of(c), weight[c]);
  });
  // Shares of warps that the team does not have stay 0.
  if (thread < 32) shares[team][0][thread] = shares[team][1][thread] = 0.0f;
  float mean[kRows] = {}, rstd[kRows] = {};
  const auto fetch_statistics = [&](unsigned row) {
#pragma unroll
    for (int r = 0; r < kRows; ++r, row += step) {
      if (row >= rows) break;
      if constexpr (kLayer) mean[r] = p.mean[row];
      rstd[r] = p.rstd[row];
    }
  };
  fetch_statistics(first);
  __syncthreads();

  using M = Magnitudes<T>;
  float sums[kSums][kChunks][kGroup] = {};
  const float scale = 1.0f / static_cast<float>(cols);
  uint32_t largest = 0;
  int turn = 0;
  const uint32_t places = shared_address(ring.memory) + static_cast<uint32_t>(thread) * 16u * (sizeof(T) / 2);
  uint32_t place = places;
  const uint32_t chunk_bytes = static_cast<uint32_t>(threads * kGroup) * static_cast<uint32_t>(sizeof(T));
  T *dx_at = static_cast<T*>(p.dx), *sum_at = static_cast<T*>(p.sum);
  int64_t at = int64_t{first} * cols + column_of(0);
  for (unsigned row = first; row < rows; row += kRows * step, turn ^= 1) {
    const bool both = kRows == 1 || row + step < rows;
    float h[kRows][kChunks][kGroup], g[kRows][kChunks][kGroup], dots[kValues] = {}, by[kRows];
    ring.wait();
    unroll<kRows>([&](int r) {
      by[r] = rstd[r];
      unroll<kChunks>([&](int c) {
        Packed<T, kGroup> x{}, dy{};
        const bool here = has[c] && (r == 0 || both);
        const float center = kLayer && here ? mean[r] : 0.0f, factor = here ? by[r] : 0.0f;  // 0 stays 0 elsewhere
        if (here) {
          const uint32_t from =
              place + static_cast<uint32_t>(r) * operand_bytes + static_cast<uint32_t>(c) * chunk_bytes;
          x = load_shared<T>(from), dy = load_shared<T>(from + row_bytes);
        }
        x.unpack(h[r][c]), dy.unpack(g[r][c]);
        unroll<kGroup>([&](int i) {
          const float d = g[r][c][i];
          h[r][c][i] = (kLayer ? h[r][c][i] - center : h[r][c][i]) * factor;
          sums[0][c][i] = fmaf(d, h[r][c][i], sums[0][c][i]);
          if constexpr (kLayer) sums[1][c][i] += d;
          g[r][c][i] = d * weight[c][i];
          dots[r * kDots] = fmaf(g[r][c][i], h[r][c][i], dots[r * kDots]);
          if constexpr (kLayer) dots[r * kDots + 1] += g[r][c][i];
        });
      });
    });
    fetch_statistics(row + kRows * step);
    int which;
    const float share = warp_sums(dots, which);
    if (lane % kStep == 0) shares[team][turn][which * kTeamWarps + warp] = share;
    wait_for_team(team, threads);
    // Behind this barrier the whole team has finished the turn before: its stage may be filled again.
    if (thread == 0 && row != first)
      request(row + static_cast<unsigned>(stages - 1) * kRows * step, ring.stage == 0 ? stages - 1 : ring.stage - 1);
    const float sum = warp_reduce<Sum, kTeamWarps / 2>(shares[team][turn][lane]) * scale;
#pragma unroll
    for (int r = 0; r < kRows; ++r, at += int64_t{step} * cols) {
      const float mean_gh = __shfl_sync(kWholeWarp, sum, r * kDots * kTeamWarps),
                  mean_g = kLayer ? __shfl_sync(kWholeWarp, sum, (r * kDots + 1) * kTeamWarps) : 0.0f;
      unroll<kChunks>([&](int c) {
        if (!has[c] || (r == 1 && !both)) return;
        const int64_t to = at + c * threads * kGroup;
        float out[kGroup];
        unroll<kGroup>(
            [&](int i) { out[i] = by[r] * fmaf(-h[r][c][i], mean_gh, kLayer ? g[r][c][i] - mean_g : g[r][c][i]); });
        const Packed<T, kGroup> dx = pack<T>(out);
        if (dx_at != nullptr) store_packed(dx_at + to, dx);
        if constexpr (kAdds) {
          const Packed<T, kGroup> total =
              add_packed(dx, load_shared<T>(place + static_cast<uint32_t>(r) * operand_bytes + 2 * row_bytes +
                                            static_cast<uint32_t>(c) * chunk_bytes));
          if (sum_at != nullptr) store_packed(sum_at + to, total);
#pragma unroll
          for (uint32_t word : total.words) largest = M::max(largest, word & M::kMask);
          if constexpr (kColumnSum) {
            total.unpack(out);
            unroll<kGroup>([&](int i) { sums[kSums - 1][c][i] += out[i]; });
          }
        }
      });
    }
    ring.advance();
    place = ring.stage == 0 ? places : place + stage_bytes;
  }
  // Team 0 has the most turns; the others wait at their barriers as often: compute-sanitizer counts barriers, and would
  // otherwise report a race across the block's barrier below.
  for (unsigned row = blockIdx.x; row < rows; row += kRows * step) {
    if (row + (first - blockIdx.x) >= rows) wait_for_team(team, threads);
  }
  if (p.amax != nullptr) {
    largest = block_max(M::bits(largest), amaxes);
    if (threadIdx.x == 0) p.block_amaxes[blockIdx.x] = largest;
  }
  // The teams' sums [teams - 1, kSums, C] are joined in the rings' memory; partials [kSums, blocks, C].
  __syncthreads();
  auto* joined = reinterpret_cast<float*>(rings);
  const auto each = [&](auto&& body) {
    unroll<kSums, kChunks>([&](int s, int c) {
      if (has[c]) body(s, c);
    });
  };
  if (team > 0) {
    each([&](int s, int c) {
      store(joined + static_cast<unsigned>((team - 1) * kSums + s) * cols + column_of(c), sums[s][c]);
    });
  }
  __syncthreads();
  if (team > 0) return;
  each([&](int s, int c) {
#pragma unroll 1
    for (int t = 0; t < teams - 1; ++t) {
      float other[kGroup];
      load(joined + static_cast<unsigned>(t * kSums + s) * cols + column_of(c), other);
      unroll<kGroup>([&](int i) { sums[s][c][i] += other[i]; });
    }
    store(p.partials + (int64_t{s} * gridDim.x + blockIdx.x) * p.cols + column_of(c), sums[s][c]);
  });
}

}  // namespace octet::cuda
