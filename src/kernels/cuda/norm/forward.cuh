// layer_norm and rms_norm with a row in registers: read once, statistics in two passes over the registers, and
// whatever is fused (residual, amax, codes) made on the way. Here: what is made of a row, few rows, and many of more
// than 4096 columns; forward_narrow.cuh has the others and the choice.
//
// Bound by memory: x (and the addend) read, y, sum or codes written; weights stay in registers or come from the level 1
// cache.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/common/arrivals.cuh"
#include "kernels/cuda/common/bulk_copy.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/quantize_tile.cuh"
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/row_access.cuh"

namespace octet::cuda {

__device__ __forceinline__ void store_codes(DType format, void* codes, int64_t at, const float (&x)[kGroup],
                                            float scale) {
  uint2 words;
  if (format == DType::kE4M3) {
    words = {encode4<e4m3>(x[0], x[1], x[2], x[3], scale), encode4<e4m3>(x[4], x[5], x[6], x[7], scale)};
  } else {
    words = {encode4<e5m2>(x[0], x[1], x[2], x[3], scale), encode4<e5m2>(x[4], x[5], x[6], x[7], scale)};
  }
  *reinterpret_cast<uint2*>(static_cast<uint8_t*>(codes) + at) = words;
}

// Weights and biases of a thread's groups, applied to x less the mean: from the level 1 cache for every row, or held in
// registers over many rows.
template <bool kLayer>
struct CachedChannels {
  __device__ __forceinline__ void fetch(const NormForward&, int, int64_t) {}
  __device__ __forceinline__ void normalise(const NormForward& p, int, int64_t column, float rstd,
                                            float (&x)[kGroup]) const {
    float weight[kGroup];
    load_channels(p.weight, p.weight_dtype, column, weight);
    if constexpr (kLayer) {
      float bias[kGroup];
      load_channels(p.bias, p.bias_dtype, column, bias);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[i] = fmaf(x[i] * rstd, weight[i], bias[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[i] = x[i] * rstd * weight[i];
    }
  }
};
template <bool kLayer, int kGroups>
struct HeldChannels {
  float weight[kGroups][kGroup], bias[kLayer ? kGroups : 1][kGroup];
  __device__ __forceinline__ void fetch(const NormForward& p, int g, int64_t column) {
    load_channels(p.weight, p.weight_dtype, column, weight[g]);
    if constexpr (kLayer) load_channels(p.bias, p.bias_dtype, column, bias[g]);
  }
  __device__ __forceinline__ void normalise(const NormForward&, int g, int64_t, float rstd, float (&x)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if constexpr (kLayer) {
        x[i] = fmaf(x[i] * rstd, weight[g][i], bias[g][i]);
      } else {
        x[i] = x[i] * rstd * weight[g][i];
      }
    }
  }
};

template <bool kLayer>
__device__ __forceinline__ void prefetch_channels(const NormForward& p, int64_t column) {
  const auto at = [&](const void* data, DType dtype) {
    prefetch_line(static_cast<const char*>(data) + column * (dtype == DType::kF32 ? 4 : 2));
  };
  at(p.weight, p.weight_dtype);
  if constexpr (kLayer) at(p.bias, p.bias_dtype);
}

// What is made beside y: nothing; its amax; e4m3 codes with a scale a row and no more; codes of any scaling, and the
// amax.
enum class Made : uint8_t { kPlain, kAmax, kRowCodes, kCodes };

// A thread's groups of one row, x (+ addend) in registers: statistics, then y, row codes and amax.
template <typename T, bool kLayer, int kGroups, typename Team, Made kMade>
struct NormRow {
  static constexpr bool kCoded = kMade == Made::kRowCodes || kMade == Made::kCodes, kSeen = kMade != Made::kPlain,
                        kAmax = kMade == Made::kAmax || kMade == Made::kCodes;
  const NormForward& p;
  Team& team;
  float v[kGroups][kGroup];
  float given = 1.0f;  // scale of the tensor's codes: once a thread, after its wait

  __device__ __forceinline__ void begin() {
    if (kMade == Made::kCodes && p.quantize.scaling == CodeScaling::kTensor) given = *p.quantize.scale;
  }

  __device__ __forceinline__ int column(int g) const { return (g * team.threads() + team.thread()) * kGroup; }
  __device__ __forceinline__ bool has(int g) const { return Team::kWhole || column(g) < static_cast<int>(p.cols); }

  __device__ __forceinline__ void take(int g, const Packed<T, kGroup>& x) { x.unpack(v[g]); }
  __device__ __forceinline__ void take(int64_t row, int g, const Packed<T, kGroup>& x,
                                       const Packed<T, kGroup>& addend) {
    const Packed<T, kGroup> sum = add_packed(x, addend);
    sum.unpack(v[g]);
    if (p.sum != nullptr) store_packed(static_cast<T*>(p.sum) + row * p.cols + column(g), sum);
  }

  // Groups past the end hold zeros, the others the values less their mean from here on. `loaded` runs after the first
  // sum: everybody has its values then.
  template <typename Loaded>
  __device__ __forceinline__ void statistics(int64_t row, float& mean, float& rstd, const Loaded& loaded) {
    const float scale = 1.0f / static_cast<float>(p.cols);
    float sums[kGroups];
    mean = 0;
    if constexpr (kLayer) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        sums[g] = 0;
#pragma unroll
        for (float value : v[g]) sums[g] += value;
      }
      mean = team.group_sums(sums) * scale;
      loaded();
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      sums[g] = 0;
      if (!has(g)) continue;
#pragma unroll
      for (float& value : v[g]) {
        if constexpr (kLayer) value -= mean;
        sums[g] = fmaf(value, value, sums[g]);
      }
    }
    rstd = rsqrtf(team.group_sums(sums) * scale + p.eps);
    if constexpr (!kLayer) loaded();
    if (team.thread() == 0) {
      if (p.mean != nullptr) p.mean[row] = mean;
      if (p.rstd != nullptr) p.rstd[row] = rstd;
    }
  }

  // Returns the amax bits of the thread's y when kSeen.
  template <typename Channels>
  __device__ __forceinline__ uint32_t finish(int64_t row, float rstd, const Channels& channels) {
    if constexpr (!kSeen) {
      if (p.y == nullptr) return 0;
    }
    using M = Magnitudes<T>;
    const NormQuantize& q = p.quantize;
    const CodeScaling scaling = kMade == Made::kRowCodes ? CodeScaling::kRow : q.scaling;
    const DType format = kMade == Made::kRowCodes ? DType::kE4M3 : q.format;
    const ScaleFormula formula{q.format_max, q.margin, q.pow2};
    uint32_t largest = 0;  // packed as T is
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int64_t at = row * p.cols + column(g);
      uint32_t most = 0;
      if (has(g)) {
        channels.normalise(p, g, column(g), rstd, v[g]);
        const Packed<T, kGroup> y = pack<T>(v[g]);
        if (p.y != nullptr) store_packed(static_cast<T*>(p.y) + at, y);
        if constexpr (kSeen) {
#pragma unroll
          for (uint32_t word : y.words) most = M::max(most, word & M::kMask);
        }
        if constexpr (kCoded) {
          y.unpack(v[g]);
          if (scaling == CodeScaling::kTensor && q.codes != nullptr) store_codes(format, q.codes, at, v[g], given);
        }
      }
      if constexpr (kSeen) largest = M::max(largest, most);
      if constexpr (kCoded) {
        if (scaling == CodeScaling::kRow128) {  // a block of 128 is 16 threads
#pragma unroll
          for (int lanes = 8; lanes > 0; lanes >>= 1) most = M::max(most, __shfl_xor_sync(kWholeWarp, most, lanes));
          if (has(g)) {
            const float scale = formula(M::bits(most));
            if (q.scale_inv != nullptr && team.thread() % 16 == 0) {
              q.scale_inv[row128_scale_index(row, column(g) / 128, p.rows)] = __fdiv_rn(1.0f, scale);
            }
            if (q.codes != nullptr) store_codes(format, q.codes, at, v[g], scale);
          }
        }
      }
    }
    if constexpr (!kCoded) return M::bits(largest);
    if (scaling == CodeScaling::kRow) {
      const float scale = formula(team.max_bits(M::bits(largest)));
      if (q.scale_inv != nullptr && team.thread() == 0) q.scale_inv[row] = __fdiv_rn(1.0f, scale);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if (has(g) && q.codes != nullptr) store_codes(format, q.codes, row * p.cols + column(g), v[g], scale);
      }
    }
    if (scaling == CodeScaling::kTensor && row == 0 && team.thread() == 0) {
      if (q.scale_inv != nullptr) *q.scale_inv = __fdiv_rn(1.0f, given);
      if (q.scale_inv_t != nullptr) *q.scale_inv_t = __fdiv_rn(1.0f, given);
    }
    return M::bits(largest);
  }
};

// A warp a row.
template <typename T, bool kLayer, int kGroups, Made kMade>
__global__ void __launch_bounds__(512) norm_row_kernel(const NormForward p) {
  BlockReduce<true> team{};
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (row >= p.rows) return;
  using Row = NormRow<T, kLayer, kGroups, BlockReduce<true>, kMade>;
  Row part{p, team, {}};
  part.begin();
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (!part.has(g)) continue;
    const int64_t at = row * p.cols + part.column(g);
    const auto x = load_packed<kGroup>(static_cast<const T*>(p.x) + at);
    if (p.addend == nullptr) {
      part.take(g, x);
    } else {
      part.take(row, g, x, load_packed<kGroup>(static_cast<const T*>(p.addend) + at));
    }
  }
  float mean, rstd;
  part.statistics(row, mean, rstd, [] {});
  uint32_t largest = part.finish(row, rstd, CachedChannels<kLayer>{});
  if (Row::kAmax && p.amax != nullptr) {
    largest = team.max_bits(largest);
    if (team.thread() == 0) raise_amax(p.amax, largest);
  }
}

// Rows a block must get to stay: what it fetches once and the ring it fills must pay.
inline constexpr int64_t kMinRowsPerPersistentBlock = 8;
inline constexpr int kRingThreads = 512;  // on a multiprocessor, with the registers of norm_stream_kernel

// Blocks stay: rows come through a ring in shared memory, copied ahead by the bulk copy engine, and weights stay in
// registers.
template <typename T, bool kLayer, int kGroups, Made kMade>
__global__ void __launch_bounds__(kRingThreads) norm_stream_kernel(const NormForward p, int stages) {
  extern __shared__ __align__(128) unsigned char ring[];  // [stages][x row, addend row]
  __shared__ float scratch[kTeamScratch];
  __shared__ uint32_t amaxes[32];
  __shared__ BulkBarrier full[kMaxStages];
  griddep_wait();
  griddep_launch_dependents();
  BlockReduce<false> team{scratch};
  const int operands = p.addend != nullptr ? 2 : 1;
  const auto row_bytes = static_cast<uint32_t>(p.cols * static_cast<int64_t>(sizeof(T)));
  const auto row_of = [&](int64_t turn) { return blockIdx.x + turn * gridDim.x; };
  const auto place = [&](int stage, int operand) { return ring + (stage * operands + operand) * row_bytes; };
  const auto request = [&](int64_t turn, int stage) {
    const int64_t row = row_of(turn);
    if (row >= p.rows) return;
    full[stage].expect(row_bytes * operands);
    bulk_load(place(stage, 0), static_cast<const T*>(p.x) + row * p.cols, row_bytes, full[stage]);
    if (operands == 2) {
      bulk_load(place(stage, 1), static_cast<const T*>(p.addend) + row * p.cols, row_bytes, full[stage]);
    }
  };
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) full[s].init();
    publish_barriers();
    for (int s = 0; s < stages; ++s) request(s, s);
  }
  __syncthreads();
  using Row = NormRow<T, kLayer, kGroups, BlockReduce<false>, kMade>;
  Row part{p, team, {}};
  part.begin();
  HeldChannels<kLayer, kGroups> channels;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (part.has(g)) channels.fetch(p, g, part.column(g));
  }
  uint32_t largest = 0, phase = 0;
  int stage = 0;
  for (int64_t turn = 0; row_of(turn) < p.rows; ++turn) {
    const int64_t row = row_of(turn);
    full[stage].wait(phase);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (part.has(g)) {
        const auto x = load_packed<kGroup>(reinterpret_cast<const T*>(place(stage, 0)) + part.column(g));
        if (operands == 2) {
          part.take(row, g, x, load_packed<kGroup>(reinterpret_cast<const T*>(place(stage, 1)) + part.column(g)));
        } else {
          part.take(g, x);
        }
      } else {
#pragma unroll
        for (float& value : part.v[g]) value = 0;
      }
    }
    float mean, rstd;
    part.statistics(row, mean, rstd, [&] {
      if (threadIdx.x == 0) request(turn + stages, stage);
    });
    largest = max(largest, part.finish(row, rstd, channels));
    if (++stage == stages) stage = 0, phase ^= 1;
  }
  if constexpr (Row::kAmax) join_amax({p.amax, p.counters}, largest, amaxes);
}

// A block a row, straight from memory: where rows are too few for blocks that stay.
template <typename T, bool kLayer, int kGroups, Made kMade>
__global__ void __launch_bounds__(1024) norm_block_kernel(const NormForward p) {
  __shared__ float scratch[kTeamScratch];
  __shared__ uint32_t amaxes[32];
  BlockReduce<false> team{scratch};
  using Row = NormRow<T, kLayer, kGroups, BlockReduce<false>, kMade>;
  Row part{p, team, {}};
  std::conditional_t<kGroups == 1, HeldChannels<kLayer, 1>, CachedChannels<kLayer>> channels;
  if (blockIdx.x == 0 && part.has(0)) prefetch_channels<kLayer>(p, part.column(0));
  griddep_wait();
  griddep_launch_dependents();
  part.begin();
  const int64_t row = blockIdx.x;
  Packed<T, kGroup> x[kGroups], addend[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (!part.has(g)) continue;
    const int64_t at = row * p.cols + part.column(g);
    x[g] = load_packed<kGroup>(static_cast<const T*>(p.x) + at);
    if (p.addend != nullptr) addend[g] = load_packed<kGroup>(static_cast<const T*>(p.addend) + at);
    channels.fetch(p, g, part.column(g));
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (!part.has(g)) continue;
    if (p.addend == nullptr) {
      part.take(g, x[g]);
    } else {
      part.take(row, g, x[g], addend[g]);
    }
  }
  float mean, rstd;
  part.statistics(row, mean, rstd, [] {});
  const uint32_t largest = part.finish(row, rstd, channels);
  if constexpr (Row::kAmax) join_amax({p.amax, p.counters}, largest, amaxes);
}

// As many threads as a row has groups where rows are few, for the shortest time; else two groups a thread.
template <typename T, bool kLayer, Made kMade>
void launch_norm_block(const NormForward& call, cudaStream_t stream) {
  const int64_t groups = call.cols / kGroup, few = 2 * call.sm_count;
  const auto grid = static_cast<unsigned>(call.rows);
  const auto threads = [&](int64_t of_thread) {
    return static_cast<unsigned>(((groups + of_thread - 1) / of_thread + 31) / 32 * 32);
  };
  if (groups <= 1024 && (call.rows <= few || groups <= 128)) {
    launch_overlapped(norm_block_kernel<T, kLayer, 1, kMade>, {grid, threads(1)}, stream, call);
  } else {
    launch_overlapped(norm_block_kernel<T, kLayer, 2, kMade>, {grid, threads(2)}, stream, call);
  }
}

template <typename T, bool kLayer, int kGroups, Made kMade>
void launch_norm_blocks(const NormForward& call, int threads, cudaStream_t stream) {
  const int64_t blocks = kRingThreads / threads;  // on a multiprocessor
  if (call.rows < kMinRowsPerPersistentBlock * blocks * call.sm_count)
    return launch_norm_block<T, kLayer, kMade>(call, stream);
  const int64_t stage = (call.addend != nullptr ? 2 : 1) * call.cols * static_cast<int64_t>(sizeof(T));
  const auto stages = static_cast<int>(std::clamp<int64_t>((int64_t{200} << 10) / (blocks * stage), 1, kMaxStages));
  const auto shared = static_cast<int>(stages * stage);
  const auto kernel = norm_stream_kernel<T, kLayer, kGroups, kMade>;
  allow_shared(kernel, static_cast<size_t>(shared));
  const auto grid = static_cast<unsigned>(std::min(call.rows, blocks * call.sm_count));
  launch_overlapped(kernel, {grid, static_cast<unsigned>(threads), static_cast<size_t>(shared)}, stream, call, stages);
}

}  // namespace octet::cuda
