// Norms of many rows up to 4096 columns: kernels that stay, and the choice among all of them. A multiprocessor needs
// some 100 KiB under way and has some 25 instructions an element: rows share barriers and trees, or need none.
// Instances per type are in forward_*.cu.
#pragma once

#include <algorithm>

#include "kernels/cuda/norm/forward.cuh"

namespace octet::cuda {

// Blocks stay, a group of columns a thread, kTurnRows rows a turn, which share barriers and trees; weights and biases
// stay in registers. Units of neighbouring rows come through the ring. Beyond what fills the rings, blocks draw their
// units from p.counters: some multiprocessors are closer to the memory than others, and shares of one size would wait
// for the furthest.
inline constexpr int kTurnRows = 2;
template <typename T, bool kLayer, Made kMade, bool kAdds>
__global__ void __launch_bounds__(512, 2)
    norm_rows_kernel(const __grid_constant__ NormForward p, int stages, unsigned unit_rows) {
  extern __shared__ __align__(128) unsigned char ring[];  // [stages][x, addend][unit_rows, C]
  __shared__ float scratch[kTeamScratch], maxima[kTeamScratch];
  __shared__ uint32_t amaxes[32];
  __shared__ BulkBarrier full[kMaxStages];
  __shared__ unsigned unit_at[kMaxStages];
  griddep_wait();
  griddep_launch_dependents();
  BlockReduce<false> team{maxima};
  MultiRowBlockReduce<kTurnRows> sums{scratch};
  using Row = NormRow<T, kLayer, 1, BlockReduce<false>, kMade>;
  Row part{p, team, {}};
  part.begin();
  const bool has = part.has(0);
  HeldChannels<kLayer, 1> channels;  // ahead of the rows, behind which they would come late
  if (has) channels.fetch(p, 0, part.column(0));
  constexpr int kOperands = kAdds ? 2 : 1;
  const auto cols = static_cast<unsigned>(p.cols), rows = static_cast<unsigned>(p.rows);
  const uint32_t row_bytes = cols * static_cast<uint32_t>(sizeof(T)), part_bytes = unit_rows * row_bytes;
  const unsigned units = (rows + unit_rows - 1) / unit_rows, filled = static_cast<unsigned>(stages) * gridDim.x;
  const auto place = [&](int stage, int operand) {
    return ring + static_cast<uint32_t>(stage * kOperands + operand) * part_bytes;
  };
  const auto request = [&](unsigned unit, int stage) {
    unit_at[stage] = unit;
    if (unit >= units) return;
    const int64_t at = int64_t{unit} * unit_rows * cols;
    const uint32_t bytes = row_bytes * std::min(rows - unit * unit_rows, unit_rows);
    full[stage].expect(bytes * static_cast<uint32_t>(kOperands));
    bulk_load(place(stage, 0), static_cast<const T*>(p.x) + at, bytes, full[stage]);
    if constexpr (kAdds) bulk_load(place(stage, 1), static_cast<const T*>(p.addend) + at, bytes, full[stage]);
  };
  // Every block draws until it is told that there are no more: with the last of all draws the count is 0 again.
  unsigned drawn = 0;
  const auto draw = [&] {
    if (drawn < units) drawn = filled + atomicInc(p.counters + kAmaxWords, units - filled + gridDim.x - 1);
  };
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) full[s].init();
    publish_barriers();
    for (int s = 0; s < stages; ++s) request(blockIdx.x + static_cast<unsigned>(s) * gridDim.x, s);
    draw();
  }
  for (unsigned i = threadIdx.x; i < kTeamScratch; i += blockDim.x) scratch[i] = 0;
  __syncthreads();
  const float scale = 1.0f / static_cast<float>(cols);
  const uint32_t mine = shared_address(ring) + threadIdx.x * kGroup * static_cast<uint32_t>(sizeof(T));
  constexpr unsigned kLanes = MultiRowBlockReduce<kTurnRows>::kLanes;  // that get the sums of a row
  const unsigned own = (threadIdx.x & 31) / kLanes;
  const bool tells = threadIdx.x < 32 && threadIdx.x % kLanes == 0;
  uint32_t largest = 0, phase = 0;
  int stage = 0;
  for (unsigned unit; (unit = unit_at[stage]) < units;) {
    unsigned first = unit * unit_rows;
    uint32_t from = mine + static_cast<uint32_t>(stage * kOperands) * part_bytes;
    const unsigned end = first + std::min(rows - first, unit_rows);
    full[stage].wait(phase);
#pragma unroll 1
    for (; first < end; first += kTurnRows) {
      float v[kTurnRows][kGroup], sum[kTurnRows], mean[kTurnRows] = {}, own_mean = 0;
#pragma unroll
      for (unsigned r = 0; r < kTurnRows; ++r, from += row_bytes) {
        Packed<T, kGroup> x{};
        if (has && first + r < end) {
          x = load_shared<T>(from);
          if constexpr (kAdds) {
            x = add_packed(x, load_shared<T>(from + part_bytes));
            if (p.sum != nullptr) {
              store_packed(static_cast<T*>(p.sum) + int64_t{first + r} * cols + threadIdx.x * kGroup, x);
            }
          }
        }
        x.unpack(v[r]);
      }
      const auto loaded = [&] {  // after a barrier: everybody has the unit's last rows
        if (threadIdx.x == 0 && first + kTurnRows >= end) request(drawn, stage), draw();
      };
      if constexpr (kLayer) {
#pragma unroll
        for (int r = 0; r < kTurnRows; ++r) {
          sum[r] = 0;
#pragma unroll
          for (float value : v[r]) sum[r] += value;
        }
        own_mean = sums.sums(sum) * scale;
        loaded();
#pragma unroll
        for (int r = 0; r < kTurnRows; ++r) mean[r] = sums.of_row(own_mean, r);
      }
#pragma unroll
      for (int r = 0; r < kTurnRows; ++r) {
        sum[r] = 0;
        if (!has) continue;
#pragma unroll
        for (float& value : v[r]) {
          if constexpr (kLayer) value -= mean[r];
          sum[r] = fmaf(value, value, sum[r]);
        }
      }
      const float own_rstd = rsqrtf(sums.sums(sum) * scale + p.eps);
      if constexpr (!kLayer) loaded();
      if (tells && first + own < end) {
        if (p.mean != nullptr) p.mean[first + own] = own_mean;
        if (p.rstd != nullptr) p.rstd[first + own] = own_rstd;
      }
#pragma unroll
      for (unsigned r = 0; r < kTurnRows; ++r) {
        const float rstd = sums.of_row(own_rstd, static_cast<int>(r));
        if (first + r >= end) continue;
#pragma unroll
        for (int i = 0; i < kGroup; ++i) part.v[0][i] = v[r][i];
        largest = max(largest, part.finish(first + r, rstd, channels));
      }
    }
    if (++stage == stages) stage = 0, phase ^= 1;
  }
  if constexpr (Row::kAmax) join_amax({p.amax, p.counters}, largest, amaxes);
}

// Warps stay, each with rows, a ring and barriers of its own: up to 768 columns, where a block's barriers and trees
// would cost more than its rows. kWhole: every lane has kGroups groups, and there is no addend.
inline constexpr int kLoneWarps = 4, kLoneBlocks = 4;  // warps of a block, blocks on a multiprocessor
template <typename T, bool kLayer, int kGroups, Made kMade, bool kWhole>
__global__ void __launch_bounds__(32 * kLoneWarps, kLoneBlocks) norm_warps_kernel(const NormForward p, int stages) {
  extern __shared__ __align__(128) unsigned char rings[];  // [warps][stages][x row, addend row]
  __shared__ uint32_t amaxes[32];
  __shared__ BulkBarrier barriers[kLoneWarps][kMaxStages];
  griddep_wait();
  griddep_launch_dependents();
  const int warp = static_cast<int>(threadIdx.x) >> 5, operands = !kWhole && p.addend != nullptr ? 2 : 1;
  const auto cols = static_cast<unsigned>(p.cols);
  const uint32_t row_bytes = cols * static_cast<uint32_t>(sizeof(T));
  unsigned char* ring = rings + static_cast<uint32_t>(warp * stages * operands) * row_bytes;
  BulkBarrier* full = barriers[warp];
  const int64_t first = int64_t{warp} * gridDim.x + blockIdx.x, step = int64_t{gridDim.x} * kLoneWarps;
  const auto place = [&](int stage, int operand) {
    return ring + static_cast<uint32_t>(stage * operands + operand) * row_bytes;
  };
  const auto request = [&](int64_t row, int stage) {
    if (row >= p.rows) return;
    full[stage].expect(row_bytes * static_cast<uint32_t>(operands));
    bulk_load(place(stage, 0), static_cast<const T*>(p.x) + row * cols, row_bytes, full[stage]);
    if (operands == 2) {
      bulk_load(place(stage, 1), static_cast<const T*>(p.addend) + row * cols, row_bytes, full[stage]);
    }
  };
  WarpReduce<kWhole> team{};
  if (team.thread() == 0) {
    for (int s = 0; s < stages; ++s) full[s].init();
    publish_barriers();
    for (int s = 0; s < stages; ++s) request(first + s * step, s);
  }
  __syncwarp();
  using Row = NormRow<T, kLayer, kGroups, WarpReduce<kWhole>, kMade>;
  Row part{p, team, {}};
  part.begin();
  HeldChannels<kLayer, kGroups> channels;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (part.has(g)) channels.fetch(p, g, part.column(g));
  }
  uint32_t largest = 0, phase = 0;
  int stage = 0;
  for (int64_t row = first; row < p.rows; row += step) {
    full[stage].wait(phase);
    const auto *x = reinterpret_cast<const T*>(place(stage, 0)), *addend = reinterpret_cast<const T*>(place(stage, 1));
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (!part.has(g)) {
#pragma unroll
        for (float& value : part.v[g]) value = 0;
      } else if (operands == 2) {
        part.take(row, g, load_packed<kGroup>(x + part.column(g)), load_packed<kGroup>(addend + part.column(g)));
      } else {
        part.take(g, load_packed<kGroup>(x + part.column(g)));
      }
    }
    float mean, rstd;
    part.statistics(row, mean, rstd, [&] {
      __syncwarp();
      if (team.thread() == 0) request(row + stages * step, stage);
    });
    largest = max(largest, part.finish(row, rstd, channels));
    if (++stage == stages) stage = 0, phase ^= 1;
  }
  if constexpr (Row::kAmax) join_amax({p.amax, p.counters}, largest, amaxes);
}

template <typename T, bool kLayer, Made kMade>
void launch_norm_warps(const NormForward& call, cudaStream_t stream) {
  constexpr int kGroups = 3;
  constexpr int64_t kTeams = kLoneWarps * kLoneBlocks;
  if (call.rows < kMinRowsPerPersistentBlock * kTeams * call.sm_count)
    return launch_norm_block<T, kLayer, kMade>(call, stream);
  const int64_t stage = (call.addend != nullptr ? 2 : 1) * call.cols * static_cast<int64_t>(sizeof(T));
  const auto stages = static_cast<int>(std::clamp<int64_t>((int64_t{200} << 10) / (kTeams * stage), 1, kMaxStages));
  const auto shared = static_cast<size_t>(kLoneWarps * stages * stage);
  const auto run = [&](auto kernel) {
    allow_shared(kernel, shared);
    launch_overlapped(kernel, {static_cast<unsigned>(kLoneBlocks * call.sm_count), 32 * kLoneWarps, shared}, stream,
                      call, stages);
  };
  if (call.cols == 32 * kGroups * kGroup && call.addend == nullptr) {
    run(norm_warps_kernel<T, kLayer, kGroups, kMade, true>);
  } else {
    run(norm_warps_kernel<T, kLayer, kGroups, kMade, false>);
  }
}

template <typename T, bool kLayer, Made kMade>
void launch_norm_units(const NormForward& call, cudaStream_t stream) {
  const int64_t threads = (call.cols + 32 * kGroup - 1) / (32 * kGroup) * 32;
  const int64_t row = (call.addend != nullptr ? 2 : 1) * call.cols * static_cast<int64_t>(sizeof(T));
  // Some 128 KiB under way on a multiprocessor; draws beyond some 8000 would wait for each other.
  const int64_t room = int64_t{128} << 10, max_blocks = 1024 / threads;
  int64_t unit = kTurnRows;
  while (call.rows / unit > 8192 && 2 * unit * row * 2 * max_blocks <= room) unit *= 2;
  const int64_t blocks = std::clamp<int64_t>((int64_t{200} << 10) / (2 * unit * row), 1, max_blocks);
  const int64_t max_stages = (int64_t{200} << 10) / (blocks * unit * row);
  const auto stages = static_cast<int>(
      std::clamp<int64_t>(std::max(room / (blocks * unit * row), std::min<int64_t>(max_stages, 3)), 2, kMaxStages));
  const int64_t grid = blocks * call.sm_count;
  if (call.rows < kMinRowsPerPersistentBlock * grid || call.rows < (stages + 1) * grid * unit) {
    return launch_norm_block<T, kLayer, kMade>(call, stream);
  }
  // Room for no block more: one of the next launch would begin beside these, and its own would lie unevenly.
  const auto shared =
      static_cast<size_t>(std::max(stages * unit * row, (int64_t{228} << 10) / (blocks + 1) / kGroup * kGroup));
  const auto kernel =
      call.addend != nullptr ? norm_rows_kernel<T, kLayer, kMade, true> : norm_rows_kernel<T, kLayer, kMade, false>;
  allow_shared(kernel, shared);
  launch_overlapped(kernel, {static_cast<unsigned>(grid), static_cast<unsigned>(threads), shared}, stream, call, stages,
                    static_cast<unsigned>(unit));
}

// Columns to threads: a warp a row up to 768 columns, a group a thread up to 4096, above that a block with as little
// idle as 3 or 4 groups allow.
template <typename T, bool kLayer, Made kMade>
void launch_norm_rows(const NormForward& call, cudaStream_t stream) {
  const int64_t groups = (call.cols + kGroup - 1) / kGroup;
  if (groups <= 64) {
    constexpr int kRows = 4;
    if (call.amax != nullptr) cudaMemsetAsync(call.amax, 0, sizeof(float), stream);  // too many blocks to count
    const auto grid = static_cast<unsigned>((call.rows + kRows - 1) / kRows);
    if (groups <= 32) {
      launch_overlapped(norm_row_kernel<T, kLayer, 1, kMade>, {grid, 32 * kRows}, stream, call);
    } else {
      launch_overlapped(norm_row_kernel<T, kLayer, 2, kMade>, {grid, 32 * kRows}, stream, call);
    }
    return;
  }
  if (groups <= 96) return launch_norm_warps<T, kLayer, kMade>(call, stream);
  if (groups <= 512) return launch_norm_units<T, kLayer, kMade>(call, stream);
  const int64_t by_3 = (groups + 95) / 96 * 32, by_4 = (groups + 127) / 128 * 32;
  if (by_3 * 3 < by_4 * 4 && by_3 <= 512) {
    launch_norm_blocks<T, kLayer, 3, kMade>(call, static_cast<int>(by_3), stream);
  } else {
    launch_norm_blocks<T, kLayer, 4, kMade>(call, static_cast<int>(by_4), stream);
  }
}

template <typename T, bool kLayer>
void launch_norm_made(const NormForward& call, cudaStream_t stream) {
  const NormQuantize& q = call.quantize;
  if (q.codes == nullptr && q.scale_inv == nullptr && q.scale_inv_t == nullptr) {
    call.amax == nullptr ? launch_norm_rows<T, kLayer, Made::kPlain>(call, stream)
                         : launch_norm_rows<T, kLayer, Made::kAmax>(call, stream);
  } else if (call.amax == nullptr && q.scaling == CodeScaling::kRow && q.format == DType::kE4M3) {
    launch_norm_rows<T, kLayer, Made::kRowCodes>(call, stream);
  } else {
    launch_norm_rows<T, kLayer, Made::kCodes>(call, stream);
  }
}

template <typename T>
void launch_norm_of(const NormForward& call, cudaStream_t stream) {
  call.layer ? launch_norm_made<T, true>(call, stream) : launch_norm_made<T, false>(call, stream);
}

}  // namespace octet::cuda
