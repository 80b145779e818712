// layer_norm and rms_norm with a row in registers: read once, statistics in two passes over the registers, and
// whatever is fused (residual, amax, codes) made on the way. Instances per type are in forward_*.cu.
//
// Bound by memory: x (and the addend) read, y, sum or codes written; weights come from the level 1 cache.
#pragma once

#include <algorithm>
#include <type_traits>

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

// Weights and biases of a thread's groups: from the level 1 cache for every row, or held in registers over many rows.
template <bool kLayer>
struct CachedChannels {
  __device__ __forceinline__ void fetch(const NormForward&, int, int64_t) {}
  __device__ __forceinline__ void normalise(const NormForward& p, int, int64_t column, float mean, float rstd,
                                            float (&x)[kGroup]) const {
    float weight[kGroup];
    load_channels(p.weight, p.weight_dtype, column, weight);
    if constexpr (kLayer) {
      float bias[kGroup];
      load_channels(p.bias, p.bias_dtype, column, bias);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[i] = fmaf((x[i] - mean) * rstd, weight[i], bias[i]);
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
  __device__ __forceinline__ void normalise(const NormForward&, int g, int64_t, float mean, float rstd,
                                            float (&x)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if constexpr (kLayer) {
        x[i] = fmaf((x[i] - mean) * rstd, weight[g][i], bias[g][i]);
      } else {
        x[i] = x[i] * rstd * weight[g][i];
      }
    }
  }
};

// A thread's groups of one row, x (+ addend) in registers: statistics, then y, row codes and amax. kCoded: the last two
// are wanted.
template <typename T, bool kLayer, int kGroups, bool kWarp, bool kCoded>
struct NormRow {
  const NormForward& p;
  RowTeam<kWarp>& team;
  float v[kGroups][kGroup];

  __device__ __forceinline__ int column(int g) const { return (g * team.threads() + team.thread()) * kGroup; }
  __device__ __forceinline__ bool has(int g) const { return column(g) < static_cast<int>(p.cols); }

  __device__ __forceinline__ void add(int64_t row, int g, const float (&addend)[kGroup]) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) v[g][i] += addend[i];
    const Packed<T, kGroup> sum = pack<T>(v[g]);
    sum.unpack(v[g]);
    if (p.sum != nullptr) store_packed(static_cast<T*>(p.sum) + row * p.cols + column(g), sum);
  }

  // Groups past the end hold zeros. `loaded` runs after the first sum: everybody has its values then.
  template <typename Loaded>
  __device__ __forceinline__ void statistics(int64_t row, float& mean, float& rstd, const Loaded& loaded) {
    const float scale = 1.0f / static_cast<float>(p.cols);
    float squares = 0;
    mean = 0;
    if constexpr (kLayer) {
      float sum = 0;
#pragma unroll
      for (auto& group : v) {
#pragma unroll
        for (float value : group) sum += value;
      }
      mean = team.sum(sum) * scale;
      loaded();
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (!has(g)) continue;
#pragma unroll
      for (float value : v[g]) {
        const float d = kLayer ? value - mean : value;
        squares = fmaf(d, d, squares);
      }
    }
    rstd = rsqrtf(team.sum(squares) * scale + p.eps);
    if constexpr (!kLayer) loaded();
    if (team.thread() == 0) {
      if (p.mean != nullptr) p.mean[row] = mean;
      if (p.rstd != nullptr) p.rstd[row] = rstd;
    }
  }

  // Returns the amax bits of the thread's y when kCoded.
  template <typename Channels>
  __device__ __forceinline__ uint32_t finish(int64_t row, float mean, float rstd, const Channels& channels) {
    if constexpr (!kCoded) {
      if (p.y == nullptr) return 0;
    }
    using M = Magnitudes<T>;
    const NormQuantize& q = p.quantize;
    const float given = kCoded && q.scaling == CodeScaling::kTensor ? *q.scale : 1.0f;
    const ScaleFormula formula{q.format_max, q.margin, q.pow2};
    uint32_t largest = 0;  // packed as T is
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int64_t at = row * p.cols + column(g);
      uint32_t most = 0;
      if (has(g)) {
        channels.normalise(p, g, column(g), mean, rstd, v[g]);
        const Packed<T, kGroup> y = pack<T>(v[g]);
        if (p.y != nullptr) store_packed(static_cast<T*>(p.y) + at, y);
        if constexpr (kCoded) {
          y.unpack(v[g]);
#pragma unroll
          for (uint32_t word : y.words) most = M::max(most, word & M::kMask);
          if (q.scaling == CodeScaling::kTensor && q.codes != nullptr) store_codes(q.format, q.codes, at, v[g], given);
        }
      }
      if constexpr (kCoded) {
        largest = M::max(largest, most);
        if (q.scaling == CodeScaling::kRow128) {  // a block of 128 is 16 threads
#pragma unroll
          for (int lanes = 8; lanes > 0; lanes >>= 1) most = M::max(most, __shfl_xor_sync(kWholeWarp, most, lanes));
          if (has(g)) {
            const float scale = formula(M::bits(most));
            if (q.scale_inv != nullptr && team.thread() % 16 == 0) {
              q.scale_inv[row * ((p.cols + 127) / 128) + column(g) / 128] = __fdiv_rn(1.0f, scale);
            }
            if (q.codes != nullptr) store_codes(q.format, q.codes, at, v[g], scale);
          }
        }
      }
    }
    if constexpr (!kCoded) return 0;
    if (q.scaling == CodeScaling::kRow) {
      const float scale = formula(team.max_bits(M::bits(largest)));
      if (q.scale_inv != nullptr && team.thread() == 0) q.scale_inv[row] = __fdiv_rn(1.0f, scale);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if (has(g) && q.codes != nullptr) store_codes(q.format, q.codes, row * p.cols + column(g), v[g], scale);
      }
    }
    if (q.scaling == CodeScaling::kTensor && row == 0 && team.thread() == 0) {
      if (q.scale_inv != nullptr) *q.scale_inv = __fdiv_rn(1.0f, given);
      if (q.scale_inv_t != nullptr) *q.scale_inv_t = __fdiv_rn(1.0f, given);
    }
    return M::bits(largest);
  }
};

// A warp a row.
template <typename T, bool kLayer, int kGroups, bool kCoded>
__global__ void __launch_bounds__(512) norm_row_kernel(const NormForward p) {
  RowTeam<true> team{};
  wait_for_previous();
  allow_next();
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (row >= p.rows) return;
  NormRow<T, kLayer, kGroups, true, kCoded> part{p, team, {}};
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (part.has(g)) load_packed<kGroup>(static_cast<const T*>(p.x) + row * p.cols + part.column(g)).unpack(part.v[g]);
  }
  if (p.addend != nullptr) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (!part.has(g)) continue;
      float addend[kGroup];
      load_packed<kGroup>(static_cast<const T*>(p.addend) + row * p.cols + part.column(g)).unpack(addend);
      part.add(row, g, addend);
    }
  }
  float mean, rstd;
  part.statistics(row, mean, rstd, [] {});
  uint32_t largest = part.finish(row, mean, rstd, CachedChannels<kLayer>{});
  if (kCoded && p.amax != nullptr) {
    largest = team.max_bits(largest);
    if (team.thread() == 0) raise_amax(p.amax, largest);
  }
}

// Threads a multiprocessor holds with the registers of norm_stream_kernel: weights, biases and a row's groups.
template <bool kLayer, int kGroups>
inline constexpr int kStreamThreads = kGroups == 1 ? 1280
                                      : kLayer     ? 512
                                                   : 768;

// Blocks stay: rows come through a ring in shared memory, copied ahead by the bulk copy engine, and weights stay in
// registers.
template <typename T, bool kLayer, int kGroups, bool kCoded>
__global__ void __launch_bounds__(kGroups == 1 ? 128 : kStreamThreads<kLayer, kGroups>, kGroups == 1 ? 10 : 1)
    norm_stream_kernel(const NormForward p, int stages) {
  extern __shared__ __align__(128) unsigned char ring[];  // [stages][x row, addend row]
  __shared__ float scratch[64];
  __shared__ BulkBarrier full[kMaxStages];
  wait_for_previous();
  allow_next();
  RowTeam<false> team{scratch};
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
  NormRow<T, kLayer, kGroups, false, kCoded> part{p, team, {}};
  HeldChannels<kLayer, kGroups> channels;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (part.has(g)) channels.fetch(p, g, part.column(g));
  }
  uint32_t largest = 0, parity = 0;
  int stage = 0;
  for (int64_t turn = 0; row_of(turn) < p.rows; ++turn) {
    const int64_t row = row_of(turn);
    full[stage].wait(parity);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (part.has(g)) {
        load_packed<kGroup>(reinterpret_cast<const T*>(place(stage, 0)) + part.column(g)).unpack(part.v[g]);
        if (operands == 2) {
          float addend[kGroup];
          load_packed<kGroup>(reinterpret_cast<const T*>(place(stage, 1)) + part.column(g)).unpack(addend);
          part.add(row, g, addend);
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
    largest = max(largest, part.finish(row, mean, rstd, channels));
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  if (kCoded && p.amax != nullptr) {
    largest = team.max_bits(largest);
    if (threadIdx.x == 0) raise_amax(p.amax, largest);
  }
}

template <typename T, bool kLayer, int kGroups, bool kCoded>
void launch_norm_blocks(const NormForward& call, int threads, cudaStream_t stream) {
  const int64_t blocks = kStreamThreads<kLayer, kGroups> / threads;  // on a multiprocessor
  const int64_t stage = (call.addend != nullptr ? 2 : 1) * call.cols * static_cast<int64_t>(sizeof(T));
  const auto stages = static_cast<int>(std::clamp<int64_t>((int64_t{200} << 10) / (blocks * stage), 1, kMaxStages));
  const auto shared = static_cast<int>(stages * stage);
  const auto kernel = norm_stream_kernel<T, kLayer, kGroups, kCoded>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  const auto grid = static_cast<unsigned>(std::min(call.rows, blocks * call.sm_count));
  launch_overlapped(kernel, {grid, static_cast<unsigned>(threads), static_cast<size_t>(shared)}, stream, call, stages);
}

// Columns to threads: a warp a row up to 512 columns, a group a thread up to 1024, above that a block with as little
// idle as 3 or 4 groups allow.
template <typename T, bool kLayer, bool kCoded>
void launch_norm_rows(const NormForward& call, cudaStream_t stream) {
  const int64_t groups = (call.cols + kGroup - 1) / kGroup;
  if (groups <= 64) {
    constexpr int kRows = 4;
    const auto grid = static_cast<unsigned>((call.rows + kRows - 1) / kRows);
    if (groups <= 32) {
      launch_overlapped(norm_row_kernel<T, kLayer, 1, kCoded>, {grid, 32 * kRows}, stream, call);
    } else {
      launch_overlapped(norm_row_kernel<T, kLayer, 2, kCoded>, {grid, 32 * kRows}, stream, call);
    }
    return;
  }
  if (groups <= 128) {
    launch_norm_blocks<T, kLayer, 1, kCoded>(call, static_cast<int>((groups + 31) / 32 * 32), stream);
    return;
  }
  const int64_t by_3 = (groups + 95) / 96 * 32, by_4 = (groups + 127) / 128 * 32;
  if (by_3 * 3 < by_4 * 4 && by_3 <= 512) {
    launch_norm_blocks<T, kLayer, 3, kCoded>(call, static_cast<int>(by_3), stream);
  } else {
    launch_norm_blocks<T, kLayer, 4, kCoded>(call, static_cast<int>(by_4), stream);
  }
}

template <typename T>
void launch_norm_of(const NormForward& call, cudaStream_t stream) {
  const NormQuantize& q = call.quantize;
  const bool coded = call.amax != nullptr || q.codes != nullptr || q.scale_inv != nullptr || q.scale_inv_t != nullptr;
  if (call.layer) {
    coded ? launch_norm_rows<T, true, true>(call, stream) : launch_norm_rows<T, true, false>(call, stream);
  } else {
    coded ? launch_norm_rows<T, false, true>(call, stream) : launch_norm_rows<T, false, false>(call, stream);
  }
}

}  // namespace octet::cuda
