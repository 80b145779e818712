// Norms of many rows of up to 4096 columns by persistent kernels, norms of any number of columns, the launch of any
// plan, and what follows the rows: transposed codes, tiles. An SM needs some 100 KiB in flight and has time for some 25
// instructions an element: rows share barriers and reductions, or need none.
#include "kernels/cuda/norm/forward.cuh"

namespace octet::cuda {
namespace {

// Persistent blocks, a group of columns per thread, kRowsPerTurn rows per turn, which share barriers and reductions;
// weights and biases stay in registers. A stage of the ring is a tile: unit_rows neighbouring rows. Beyond the first
// tiles, a dynamic tile scheduler: blocks take the next tile from an atomic counter in p.counters, because some SMs are
// closer to the memory than others and equal shares would wait for the furthest.
template <typename T, bool kLayer, Epilogue kEpilogue, bool kAdds>
__global__ void __launch_bounds__(512, 2)
    norm_multi_row_persistent_kernel(const __grid_constant__ NormForward p, int stages, unsigned unit_rows) {
  extern __shared__ __align__(128) unsigned char ring_memory[];  // [stages][x, addend][unit_rows, C]
  __shared__ float scratch[kTeamScratch], maxima[kTeamScratch];
  __shared__ uint32_t amaxes[32];
  __shared__ Mbarrier full[kMaxStages];
  __shared__ unsigned unit_at[kMaxStages];
  griddep_wait();
  griddep_launch_dependents();
  BlockReduce<false> team{maxima};
  MultiRowBlockReduce<kRowsPerTurn> sums{scratch};
  using Row = NormRow<T, kLayer, 1, BlockReduce<false>, kEpilogue>;
  Row part{p, team, {}};
  part.begin();
  const bool has = part.has(0);
  HeldChannels<kLayer, 1> channels;  // loaded before the rows are requested, behind which they would queue
  if (has) channels.fetch(p, 0, part.column(0));
  constexpr int kOperands = kAdds ? 2 : 1;
  const auto cols = static_cast<unsigned>(p.cols), rows = static_cast<unsigned>(p.rows);
  const uint32_t row_bytes = cols * static_cast<uint32_t>(sizeof(T)), part_bytes = unit_rows * row_bytes;
  const unsigned units = (rows + unit_rows - 1) / unit_rows, filled = static_cast<unsigned>(stages) * gridDim.x;
  RowRing ring{ring_memory, full, stages, kOperands, part_bytes};
  const auto request = [&](unsigned unit, int stage) {
    unit_at[stage] = unit;
    if (unit >= units) return;
    const uint32_t bytes = row_bytes * std::min(rows - unit * unit_rows, unit_rows);
    ring.request<T>(stage, int64_t{unit} * unit_rows * cols, bytes, p.x, p.addend);
  };
  // Every block takes units until it gets one past the end: with the last of all these calls the counter is 0 again.
  unsigned next_unit = 0;
  const auto take_unit = [&] {
    if (next_unit < units) next_unit = filled + atomicInc(p.counters + kAmaxWords, units - filled + gridDim.x - 1);
  };
  if (threadIdx.x == 0) {
    ring.begin([&](int s) { request(blockIdx.x + static_cast<unsigned>(s) * gridDim.x, s); });
    take_unit();
  }
  for (unsigned i = threadIdx.x; i < kTeamScratch; i += blockDim.x) scratch[i] = 0;
  __syncthreads();
  const float scale = 1.0f / static_cast<float>(cols);
  const uint32_t mine = shared_address(ring_memory) + threadIdx.x * kGroup * static_cast<uint32_t>(sizeof(T));
  constexpr unsigned kLanes = MultiRowBlockReduce<kRowsPerTurn>::kLanes;  // that get the sums of a row
  const unsigned own = (threadIdx.x & 31) / kLanes;
  const bool stores_statistics = threadIdx.x < 32 && threadIdx.x % kLanes == 0;
  uint32_t largest = 0;
  for (unsigned unit; (unit = unit_at[ring.stage]) < units;) {
    unsigned first = unit * unit_rows;
    uint32_t from = mine + static_cast<uint32_t>(ring.stage * kOperands) * part_bytes;
    const unsigned end = first + std::min(rows - first, unit_rows);
    ring.wait();
#pragma unroll 1
    for (; first < end; first += kRowsPerTurn) {
      float v[kRowsPerTurn][kGroup], sum[kRowsPerTurn], mean[kRowsPerTurn] = {}, own_mean = 0;
#pragma unroll
      for (unsigned r = 0; r < kRowsPerTurn; ++r, from += row_bytes) {
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
      const auto loaded = [&] {  // after a barrier: every thread has loaded the unit's last rows
        if (threadIdx.x == 0 && first + kRowsPerTurn >= end) request(next_unit, ring.stage), take_unit();
      };
      if constexpr (kLayer) {
        unroll<kRowsPerTurn>([&](int r) {
          sum[r] = 0;
#pragma unroll
          for (float value : v[r]) sum[r] += value;
        });
        own_mean = sums.sums(sum) * scale;
        loaded();
        unroll<kRowsPerTurn>([&](int r) { mean[r] = sums.of_row(own_mean, r); });
      }
      unroll<kRowsPerTurn>([&](int r) {
        sum[r] = 0;
        if (!has) return;
#pragma unroll
        for (float& value : v[r]) {
          if constexpr (kLayer) value -= mean[r];
          sum[r] = fmaf(value, value, sum[r]);
        }
      });
      const float own_rstd = rsqrtf(sums.sums(sum) * scale + p.eps);
      if constexpr (!kLayer) loaded();
      if (stores_statistics && first + own < end) {
        if (p.mean != nullptr) p.mean[first + own] = own_mean;
        if (p.rstd != nullptr) p.rstd[first + own] = own_rstd;
      }
#pragma unroll
      for (unsigned r = 0; r < kRowsPerTurn; ++r) {
        const float rstd = sums.of_row(own_rstd, static_cast<int>(r));
        if (first + r >= end) continue;
        unroll<kGroup>([&](int i) { part.v[0][i] = v[r][i]; });
        largest = max(largest, part.finish(first + r, rstd, channels));
      }
    }
    ring.advance();
  }
  if constexpr (Row::kAmax) join_amax({p.amax, p.counters}, largest, amaxes);
}

// Persistent warps, each with rows, a ring and barriers of its own: up to 768 columns, where a block's barriers and
// reductions would cost more than its rows. kWhole: every lane has kGroups groups, and there is no addend.
template <typename T, bool kLayer, int kGroups, Epilogue kEpilogue, bool kWhole>
__global__ void __launch_bounds__(32 * kPersistentWarps, kPersistentWarpBlocks)
    norm_warp_persistent_kernel(const NormForward p, int stages) {
  extern __shared__ __align__(128) unsigned char rings[];  // [warps][stages][x, addend][C]
  __shared__ uint32_t amaxes[32];
  __shared__ Mbarrier barriers[kPersistentWarps][kMaxStages];
  griddep_wait();
  griddep_launch_dependents();
  const int warp = static_cast<int>(threadIdx.x) >> 5, operands = !kWhole && p.addend != nullptr ? 2 : 1;
  const auto cols = static_cast<unsigned>(p.cols);
  const uint32_t row_bytes = cols * static_cast<uint32_t>(sizeof(T));
  RowRing ring{rings + static_cast<uint32_t>(warp * stages * operands) * row_bytes, barriers[warp], stages, operands,
               row_bytes};
  const int64_t first = int64_t{warp} * gridDim.x + blockIdx.x, step = int64_t{gridDim.x} * kPersistentWarps;
  const auto request = [&](int64_t row, int stage) {
    if (row < p.rows) ring.request<T>(stage, row * cols, row_bytes, p.x, p.addend);
  };
  WarpReduce<kWhole> team{};
  if (team.thread() == 0) ring.begin([&](int s) { request(first + s * step, s); });
  __syncwarp();
  using Row = NormRow<T, kLayer, kGroups, WarpReduce<kWhole>, kEpilogue>;
  Row part{p, team, {}};
  part.begin();
  HeldChannels<kLayer, kGroups> channels;
  unroll<kGroups>([&](int g) {
    if (part.has(g)) channels.fetch(p, g, part.column(g));
  });
  uint32_t largest = 0;
  for (int64_t row = first; row < p.rows; row += step) {
    ring.wait();
    part.take_stage(row, ring);
    float mean, rstd;
    part.statistics(row, mean, rstd, [&] {
      __syncwarp();
      if (team.thread() == 0) request(row + stages * step, ring.stage);
    });
    largest = max(largest, part.finish(row, rstd, channels));
    ring.advance();
  }
  if constexpr (Row::kAmax) join_amax({p.amax, p.counters}, largest, amaxes);
}

template <typename T, bool kLayer, Epilogue kEpilogue>
void launch_norm_plan(const NormForward& call, const NormPlan& plan, cudaStream_t stream) {
  const auto run = [&](auto kernel, auto... arguments) {
    const Grid grid{static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.threads),
                    static_cast<size_t>(plan.shared)};
    launch_overlapped(kernel, grid, stream, call, arguments...);
  };
  switch (plan.kernel) {
    case NormKernel::kElementwise: return;  // forward.cu
    case NormKernel::kWarpPerRow:
      if (call.amax != nullptr) cudaMemsetAsync(call.amax, 0, sizeof(float), stream);  // too many blocks to count
      return plan.groups == 1 ? run(norm_warp_per_row_kernel<T, kLayer, 1, kEpilogue>)
                              : run(norm_warp_per_row_kernel<T, kLayer, 2, kEpilogue>);
    case NormKernel::kWarpPersistent:
      return plan.whole_warp ? run(norm_warp_persistent_kernel<T, kLayer, 3, kEpilogue, true>, plan.stages)
                             : run(norm_warp_persistent_kernel<T, kLayer, 3, kEpilogue, false>, plan.stages);
    case NormKernel::kMultiRowPersistent:
      return run(call.addend != nullptr ? norm_multi_row_persistent_kernel<T, kLayer, kEpilogue, true>
                                        : norm_multi_row_persistent_kernel<T, kLayer, kEpilogue, false>,
                 plan.stages, static_cast<unsigned>(plan.unit_rows));
    case NormKernel::kRowPersistent:
      return run(plan.groups == 3 ? norm_row_persistent_kernel<T, kLayer, 3, kEpilogue>
                                  : norm_row_persistent_kernel<T, kLayer, 4, kEpilogue>,
                 plan.stages);
    case NormKernel::kBlockPerRow:
      return plan.groups == 1 ? run(norm_block_per_row_kernel<T, kLayer, 1, kEpilogue>)
                              : run(norm_block_per_row_kernel<T, kLayer, 2, kEpilogue>);
  }
}

template <typename T, bool kLayer>
void launch_norm_epilogue(const NormForward& call, const NormPlan& plan, cudaStream_t stream) {
  const NormQuantize& q = call.quantize;
  if (q.codes == nullptr && q.scale_inv == nullptr && q.scale_inv_t == nullptr) {
    call.amax == nullptr ? launch_norm_plan<T, kLayer, Epilogue::kPlain>(call, plan, stream)
                         : launch_norm_plan<T, kLayer, Epilogue::kAmax>(call, plan, stream);
  } else if (call.amax == nullptr && q.scaling == ScaleLayout::kRow) {
    launch_norm_plan<T, kLayer, Epilogue::kRowCodes>(call, plan, stream);
  } else {
    launch_norm_plan<T, kLayer, Epilogue::kCodes>(call, plan, stream);
  }
}

// A block a row, element by element; x is read again for every pass.
template <typename T>
__global__ void norm_elementwise_kernel(const NormForward p) {
  __shared__ float scratch[kTeamScratch];
  BlockReduce<false> team{scratch};
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(p.x) + row * p.cols;
  const float scale = 1.0f / static_cast<float>(p.cols);
  float mean = 0, squares = 0;
  if (p.layer) {
    float sum = 0;
    for (int64_t c = threadIdx.x; c < p.cols; c += blockDim.x) sum += to_float(x[c]);
    mean = team.sum(sum) * scale;
  }
  for (int64_t c = threadIdx.x; c < p.cols; c += blockDim.x) {
    const float d = to_float(x[c]) - mean;
    squares = fmaf(d, d, squares);
  }
  const float rstd = rsqrtf(team.sum(squares) * scale + p.eps);
  if (threadIdx.x == 0) {
    if (p.mean != nullptr) p.mean[row] = mean;
    if (p.rstd != nullptr) p.rstd[row] = rstd;
  }
  if (p.y == nullptr) return;
  T* y = static_cast<T*>(p.y) + row * p.cols;
  for (int64_t c = threadIdx.x; c < p.cols; c += blockDim.x) {
    const float h = (to_float(x[c]) - mean) * rstd, weight = load_channel(p.weight, p.weight_dtype, c);
    y[c] = from_float<T>(p.layer ? fmaf(h, weight, load_channel(p.bias, p.bias_dtype, c)) : h * weight);
  }
}

}  // namespace

NormPasses norm_passes(const NormForward& call) {
  const NormQuantize& q = call.quantize;
  if (q.codes_t != nullptr && q.codes != nullptr && q.scaling == ScaleLayout::kTensor)
    return NormPasses::kTransposeCodes;
  return q.codes_t != nullptr || (q.scale_inv_t != nullptr && q.scaling == ScaleLayout::kRow128) ? NormPasses::kTiles
                                                                                                 : NormPasses::kRows;
}

void launch_norm(const NormForward& call, const NormPlan& plan, cudaStream_t stream) {
  if (plan.kernel == NormKernel::kElementwise) {
    return with_f32_or_bf16(call.dtype, [&]<typename T>(T) {
      launch_overlapped(norm_elementwise_kernel<T>,
                        {static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.threads)}, stream, call);
    });
  }
  const NormPasses passes = norm_passes(call);
  NormForward rows = call;
  if (passes == NormPasses::kTiles) {
    if (call.amax != nullptr) cudaMemsetAsync(call.amax, 0, sizeof(float), stream);
    if (rows.mean == nullptr) rows.mean = call.statistics;
    if (rows.rstd == nullptr) rows.rstd = call.statistics + call.rows;
    rows.quantize = {}, rows.amax = nullptr;
  }
  with_f32_or_bf16(call.dtype, [&]<typename T>(T) {
    call.layer ? launch_norm_epilogue<T, true>(rows, plan, stream) : launch_norm_epilogue<T, false>(rows, plan, stream);
  });
  if (passes == NormPasses::kTransposeCodes)
    launch_transpose_codes(call.quantize.codes, call.quantize.codes_t, call.rows, call.cols, stream);
  if (passes != NormPasses::kTiles) return;
  rows.quantize = call.quantize, rows.amax = call.amax;
  launch_norm_tiles(rows, stream);
}

}  // namespace octet::cuda
