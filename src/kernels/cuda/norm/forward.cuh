// layer_norm and rms_norm with a row in registers: read once, statistics in two passes over the registers, then the
// epilogue (residual sum, amax, codes). Here: the epilogue, the kernels of few rows, and that of more than 4096
// columns; the others are in forward.cu, the choice between them in choose.h.
//
// Bound by memory: x (and the addend) read, y, sum or codes written; weights are held in registers or hit in L1.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/common/arrivals.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/quantize_tile.cuh"
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/row_access.cuh"
#include "kernels/cuda/norm/row_ring.cuh"

namespace octet::cuda {

__device__ __forceinline__ void store_codes(DType format, void* codes, int64_t at, const float (&x)[kGroup],
                                            float scale) {
  uint2 words;
  if (format == DType::kE4M3) {
    words = {encode4<e4m3>(x[0], x[1], x[2], x[3], scale), encode4<e4m3>(x[4], x[5], x[6], x[7], scale)};
  } else if (format == DType::kI8) {
    words = {encode4<int8_t>(x[0], x[1], x[2], x[3], scale), encode4<int8_t>(x[4], x[5], x[6], x[7], scale)};
  } else {
    words = {encode4<e5m2>(x[0], x[1], x[2], x[3], scale), encode4<e5m2>(x[4], x[5], x[6], x[7], scale)};
  }
  *reinterpret_cast<uint2*>(static_cast<uint8_t*>(codes) + at) = words;
}

// Weights and biases of a thread's groups, applied to x - mean: loaded for every row (L1 hits), or held in registers
// over many rows.
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
      unroll<kGroup>([&](int i) { x[i] = fmaf(x[i] * rstd, weight[i], bias[i]); });
    } else {
      unroll<kGroup>([&](int i) { x[i] = x[i] * rstd * weight[i]; });
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
    unroll<kGroup>([&](int i) {
      if constexpr (kLayer) {
        x[i] = fmaf(x[i] * rstd, weight[g][i], bias[g][i]);
      } else {
        x[i] = x[i] * rstd * weight[g][i];
      }
    });
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

// What follows y: nothing; its amax; codes with one scale per row, without an amax; codes of any scaling, with an
// amax.
enum class Epilogue : uint8_t { kPlain, kAmax, kRowCodes, kCodes };

// A thread's groups of one row, x (+ addend) in registers: statistics, then y, row codes and amax.
template <typename T, bool kLayer, int kGroups, typename Team, Epilogue kEpilogue>
struct NormRow {
  static constexpr bool kCoded = kEpilogue == Epilogue::kRowCodes || kEpilogue == Epilogue::kCodes,
                        kSeen = kEpilogue != Epilogue::kPlain,
                        kAmax = kEpilogue == Epilogue::kAmax || kEpilogue == Epilogue::kCodes;
  const NormForward& p;
  Team& team;
  float v[kGroups][kGroup];
  float given = 1.0f;  // scale of the tensor's codes: loaded once per thread, after griddep_wait

  __device__ __forceinline__ void begin() {
    if (kEpilogue == Epilogue::kCodes && p.quantize.scaling == ScaleLayout::kTensor) given = *p.quantize.scale;
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

  // A row, and its addend, in the stage that the ring's readers are at.
  __device__ __forceinline__ void take_stage(int64_t row, const RowRing& ring) {
    const auto *x = reinterpret_cast<const T*>(ring.at(ring.stage, 0)),
               *addend = reinterpret_cast<const T*>(ring.at(ring.stage, 1));
    unroll<kGroups>([&](int g) {
      if (!has(g)) {
#pragma unroll
        for (float& value : v[g]) value = 0;
      } else if (ring.operands == 2) {
        take(row, g, load_packed<kGroup>(x + column(g)), load_packed<kGroup>(addend + column(g)));
      } else {
        take(g, load_packed<kGroup>(x + column(g)));
      }
    });
  }

  // v becomes v - mean; groups past the end hold zeros. `loaded` runs after the first reduction: every thread has
  // loaded its values by then.
  template <typename Loaded>
  __device__ __forceinline__ void statistics(int64_t row, float& mean, float& rstd, const Loaded& loaded) {
    const float scale = 1.0f / static_cast<float>(p.cols);
    float sums[kGroups];
    mean = 0;
    if constexpr (kLayer) {
      unroll<kGroups>([&](int g) {
        sums[g] = 0;
#pragma unroll
        for (float value : v[g]) sums[g] += value;
      });
      mean = team.group_sums(sums) * scale;
      loaded();
    }
    unroll<kGroups>([&](int g) {
      sums[g] = 0;
      if (!has(g)) return;
#pragma unroll
      for (float& value : v[g]) {
        if constexpr (kLayer) value -= mean;
        sums[g] = fmaf(value, value, sums[g]);
      }
    });
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
    const ScaleLayout scaling = kEpilogue == Epilogue::kRowCodes ? ScaleLayout::kRow : q.scaling;
    uint32_t largest = 0;  // packed as T is
    unroll<kGroups>([&](int g) {
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
          if (scaling == ScaleLayout::kTensor && q.codes != nullptr) store_codes(q.format, q.codes, at, v[g], given);
        }
      }
      if constexpr (kSeen) largest = M::max(largest, most);
      if constexpr (kCoded) {
        if (scaling == ScaleLayout::kRow128) {  // a block of 128 is 16 threads
#pragma unroll
          for (int lanes = 8; lanes > 0; lanes >>= 1) most = M::max(most, __shfl_xor_sync(kWholeWarp, most, lanes));
          if (has(g)) {
            const float scale = scale_of(q.formula, M::bits(most));
            if (q.scale_inv != nullptr && team.thread() % 16 == 0) {
              q.scale_inv[row128_scale_index(row, column(g) / 128, p.rows)] = __fdiv_rn(1.0f, scale);
            }
            if (q.codes != nullptr) store_codes(q.format, q.codes, at, v[g], scale);
          }
        }
      }
    });
    if constexpr (!kCoded) return M::bits(largest);
    if (scaling == ScaleLayout::kRow) {
      const float scale = scale_of(q.formula, team.max_bits(M::bits(largest)));
      if (q.scale_inv != nullptr && team.thread() == 0) q.scale_inv[row] = __fdiv_rn(1.0f, scale);
      unroll<kGroups>([&](int g) {
        if (has(g) && q.codes != nullptr) store_codes(q.format, q.codes, row * p.cols + column(g), v[g], scale);
      });
    }
    if (scaling == ScaleLayout::kTensor && row == 0 && team.thread() == 0) {
      if (q.scale_inv != nullptr) *q.scale_inv = __fdiv_rn(1.0f, given);
      if (q.scale_inv_t != nullptr) *q.scale_inv_t = __fdiv_rn(1.0f, given);
    }
    return M::bits(largest);
  }
};

// A warp per row, straight from memory.
template <typename T, bool kLayer, int kGroups, Epilogue kEpilogue>
__global__ void __launch_bounds__(512) norm_warp_per_row_kernel(const NormForward p) {
  BlockReduce<true> team{};
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (row >= p.rows) return;
  using Row = NormRow<T, kLayer, kGroups, BlockReduce<true>, kEpilogue>;
  Row part{p, team, {}};
  part.begin();
  unroll<kGroups>([&](int g) {
    if (!part.has(g)) return;
    const int64_t at = row * p.cols + part.column(g);
    const auto x = load_packed<kGroup>(static_cast<const T*>(p.x) + at);
    if (p.addend == nullptr) {
      part.take(g, x);
    } else {
      part.take(row, g, x, load_packed<kGroup>(static_cast<const T*>(p.addend) + at));
    }
  });
  float mean, rstd;
  part.statistics(row, mean, rstd, [] {});
  uint32_t largest = part.finish(row, rstd, CachedChannels<kLayer>{});
  if (Row::kAmax && p.amax != nullptr) {
    largest = team.max_bits(largest);
    if (team.thread() == 0) raise_amax(p.amax, largest);
  }
}

// Persistent blocks, a row at a time: rows come through a ring ahead of their use, weights stay in registers.
template <typename T, bool kLayer, int kGroups, Epilogue kEpilogue>
__global__ void __launch_bounds__(kRingThreads) norm_row_persistent_kernel(const NormForward p, int stages) {
  extern __shared__ __align__(128) unsigned char ring_memory[];  // [stages][x, addend][C]
  __shared__ float scratch[kTeamScratch];
  __shared__ uint32_t amaxes[32];
  __shared__ Mbarrier full[kMaxStages];
  griddep_wait();
  griddep_launch_dependents();
  BlockReduce<false> team{scratch};
  const auto row_bytes = static_cast<uint32_t>(p.cols * static_cast<int64_t>(sizeof(T)));
  RowRing ring{ring_memory, full, stages, p.addend != nullptr ? 2 : 1, row_bytes};
  const auto row_of = [&](int64_t turn) { return blockIdx.x + turn * gridDim.x; };
  const auto request = [&](int64_t turn, int stage) {
    const int64_t row = row_of(turn);
    if (row < p.rows) ring.request<T>(stage, row * p.cols, row_bytes, p.x, p.addend);
  };
  if (threadIdx.x == 0) ring.begin([&](int s) { request(s, s); });
  __syncthreads();
  using Row = NormRow<T, kLayer, kGroups, BlockReduce<false>, kEpilogue>;
  Row part{p, team, {}};
  part.begin();
  HeldChannels<kLayer, kGroups> channels;
  unroll<kGroups>([&](int g) {
    if (part.has(g)) channels.fetch(p, g, part.column(g));
  });
  uint32_t largest = 0;
  for (int64_t turn = 0; row_of(turn) < p.rows; ++turn) {
    const int64_t row = row_of(turn);
    ring.wait();
    part.take_stage(row, ring);
    float mean, rstd;
    part.statistics(row, mean, rstd, [&] {
      if (threadIdx.x == 0) request(turn + stages, ring.stage);
    });
    largest = max(largest, part.finish(row, rstd, channels));
    ring.advance();
  }
  if constexpr (Row::kAmax) join_amax({p.amax, p.counters}, largest, amaxes);
}

// A block per row, straight from memory: where rows are too few for a persistent kernel.
template <typename T, bool kLayer, int kGroups, Epilogue kEpilogue>
__global__ void __launch_bounds__(1024) norm_block_per_row_kernel(const NormForward p) {
  __shared__ float scratch[kTeamScratch];
  __shared__ uint32_t amaxes[32];
  BlockReduce<false> team{scratch};
  using Row = NormRow<T, kLayer, kGroups, BlockReduce<false>, kEpilogue>;
  Row part{p, team, {}};
  std::conditional_t<kGroups == 1, HeldChannels<kLayer, 1>, CachedChannels<kLayer>> channels;
  if (blockIdx.x == 0 && part.has(0)) prefetch_channels<kLayer>(p, part.column(0));
  griddep_begin(p.next_reads_ahead);
  part.begin();
  const int64_t row = blockIdx.x;
  Packed<T, kGroup> x[kGroups], addend[kGroups];
  unroll<kGroups>([&](int g) {
    if (!part.has(g)) return;
    const int64_t at = row * p.cols + part.column(g);
    x[g] = load_packed<kGroup>(static_cast<const T*>(p.x) + at);
    if (p.addend != nullptr) addend[g] = load_packed<kGroup>(static_cast<const T*>(p.addend) + at);
    channels.fetch(p, g, part.column(g));
  });
  unroll<kGroups>([&](int g) {
    if (!part.has(g)) return;
    if (p.addend == nullptr) {
      part.take(g, x[g]);
    } else {
      part.take(row, g, x[g], addend[g]);
    }
  });
  float mean, rstd;
  part.statistics(row, mean, rstd, [] {});
  const uint32_t largest = part.finish(row, rstd, channels);
  if constexpr (Row::kAmax) join_amax({p.amax, p.counters}, largest, amaxes);
}

}  // namespace octet::cuda
