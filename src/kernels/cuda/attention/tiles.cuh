// Shared-memory tiles of attention in float32: loading, products of two tiles, ranges of visible rows, the online
// softmax.
//
// A block of 256 threads owns 64 rows of one side (queries, or keys in the gradient) and walks over tiles of rows of
// the other side. Thread (ty, tx) of 16 x 16 holds own rows 4 ty .. 4 ty + 3 against other rows tx + 16 j in products,
// and columns of the head in sums. Rows lie kDim + 4 floats apart: 16-byte reads of neighbouring rows take neighbouring
// banks.
#pragma once

#include "kernels/common/keep_byte.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/philox.cuh"
#include "kernels/cuda/common/reduce.cuh"

namespace octet::cuda {

inline constexpr int kOwn = 64, kTileThreads = 256, kRowsOfThread = 4;
template <int kDim>
inline constexpr int kStride = kDim + 4;

struct Unscaled {
  __device__ float operator()(int) const { return 1; }
};
// tile[row][d] = x[row_of(row)][head][d] factor_of(row_of(row)); zeros where row_of is negative and beyond the head's
// dim.
template <int kDim, int kRows, typename RowOf, typename FactorOf = Unscaled>
__device__ __forceinline__ void load_tile(float* tile, const Operand& x, int heads, int head, int dim, RowOf row_of,
                                          FactorOf factor_of = {}) {
  constexpr int kGroups = kDim / 4;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kGroups; i += kTileThreads) {
    const int row = i / kGroups, d = i % kGroups * 4, from = row_of(row);
    float v[4] = {};
    if (from >= 0) {
      const int64_t index = (static_cast<int64_t>(from) * heads + head) * dim + d;
      if (dim % 4 == 0) {
        if (d < dim) load<4>(x, index, v);
      } else {
#pragma unroll 1
        for (int e = 0; e < 4; ++e) {
          const float value = d + e < dim ? load(x, index + e) : 0.0f;
          unroll<4>([&](int k) { v[k] = k == e ? value : v[k]; });
        }
      }
      const float factor = factor_of(from);
      unroll<4>([&](int k) { v[k] *= factor; });
    }
    *reinterpret_cast<float4*>(tile + row * kStride<kDim> + d) = {v[0], v[1], v[2], v[3]};
  }
}
// Rows [first, first + kRows), zeros beyond the tokens.
template <int kDim, int kRows>
__device__ __forceinline__ void load_tile(float* tile, const Operand& x, int first, int tokens, int heads, int head,
                                          int dim) {
  load_tile<kDim, kRows>(tile, x, heads, head, dim, [=](int row) { return first + row < tokens ? first + row : -1; });
}

// products[i][j] = own row 4 ty + i . other row tx + 16 j
template <int kDim, int kEach>
__device__ __forceinline__ void multiply_rows(const float* own, const float* other,
                                              float (&products)[kRowsOfThread][kEach]) {
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  unroll<kRowsOfThread, kEach>([&](int i, int j) { products[i][j] = 0; });
#pragma unroll 4
  for (int d = 0; d < kDim; d += 4) {
    float4 a[kRowsOfThread], b[kEach];
    unroll<kRowsOfThread>(
        [&](int i) { a[i] = *reinterpret_cast<const float4*>(own + (4 * ty + i) * kStride<kDim> + d); });
    unroll<kEach>([&](int j) { b[j] = *reinterpret_cast<const float4*>(other + (tx + 16 * j) * kStride<kDim> + d); });
    unroll<kRowsOfThread, kEach>([&](int i, int j) {
      products[i][j] = fmaf(a[i].x, b[j].x, products[i][j]);
      products[i][j] = fmaf(a[i].y, b[j].y, products[i][j]);
      products[i][j] = fmaf(a[i].z, b[j].z, products[i][j]);
      products[i][j] = fmaf(a[i].w, b[j].w, products[i][j]);
    });
  }
}

// A thread's columns of the head: groups of kVec neighbours, 16 kVec apart.
template <int kDim>
struct Columns {
  static constexpr int kVec = kDim >= 64 ? 4 : kDim / 16, kCount = kDim / 16;
  __device__ static int at(int c) {
    return c / kVec * (16 * kVec) + static_cast<int>(threadIdx.x) % 16 * kVec + c % kVec;
  }
};

// sums[i][c] += weights[4 ty + i][o] other[o][column c], o = 0 .. kOthers - 1; weights have rows of kOthers + 4.
template <int kDim, int kOthers>
__device__ __forceinline__ void add_weighted_rows(const float* weights, const float* other,
                                                  float (&sums)[kRowsOfThread][Columns<kDim>::kCount]) {
  using C = Columns<kDim>;
  const int ty = static_cast<int>(threadIdx.x) / 16;
#pragma unroll 2
  for (int o = 0; o < kOthers; o += 4) {
    Vec<float, 4> w[kRowsOfThread];
    unroll<kRowsOfThread>(
        [&](int i) { w[i] = *reinterpret_cast<const Vec<float, 4>*>(weights + (4 * ty + i) * (kOthers + 4) + o); });
    unroll<4>([&](int k) {
#pragma unroll
      for (int c = 0; c < C::kCount; c += C::kVec) {
        const auto v = *reinterpret_cast<const Vec<float, C::kVec>*>(other + (o + k) * kStride<kDim> + C::at(c));
        unroll<kRowsOfThread, C::kVec>(
            [&](int i, int e) { sums[i][c + e] = fmaf(w[i].at[k], v.at[e], sums[i][c + e]); });
      }
    });
  }
}

// tile[4 ty + i][column c] = sums[i][c] factor[i]
template <int kDim>
__device__ __forceinline__ void put_rows(float* tile, const float (&sums)[kRowsOfThread][Columns<kDim>::kCount],
                                         const float (&factors)[kRowsOfThread]) {
  using C = Columns<kDim>;
  unroll<kRowsOfThread>([&](int i) {
    float* row = tile + (static_cast<int>(threadIdx.x) / 16 * 4 + i) * kStride<kDim>;
    unroll<C::kCount>([&](int c) { row[C::at(c)] = sums[i][c] * factors[i]; });
  });
}

// x[row_of(row)][head][d] = tile[row][d] where row_of is not negative.
template <int kDim, typename RowOf>
__device__ __forceinline__ void store_tile(const float* tile, const Operand& x, int heads, int head, int dim,
                                           RowOf row_of) {
  constexpr int kGroups = kDim / 4;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kOwn * kGroups; i += kTileThreads) {
    const int row = i / kGroups, d = i % kGroups * 4, to = row_of(row);
    if (to < 0) continue;
    const auto v = *reinterpret_cast<const Vec<float, 4>*>(tile + row * kStride<kDim> + d);
    const int64_t index = (static_cast<int64_t>(to) * heads + head) * dim + d;
    if (dim % 4 == 0) {
      if (d < dim) store<4>(x, index, v.at);
    } else {
#pragma unroll 1
      for (int e = 0; e < 4; ++e) {
        if (d + e < dim) store(x, index + e, tile[row * kStride<kDim> + d + e]);
      }
    }
  }
}

// weights[4 ty + i][tx + 16 j] = values[i][j]
template <int kEach>
__device__ __forceinline__ void store_weights(float* weights, const float (&values)[kRowsOfThread][kEach]) {
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  unroll<kRowsOfThread, kEach>(
      [&](int i, int j) { weights[(4 * ty + i) * (16 * kEach + 4) + tx + 16 * j] = values[i][j]; });
}

// The segment of token t: [start, end); start = end = t for tokens outside all segments.
struct Segment {
  int start, end;
  __device__ static Segment of(const int32_t* starts, int segments, int t, int tokens) {
    int low = 0, high = segments + 1;  // how many starts are <= t
    while (low < high) {
      const int middle = (low + high) / 2;
      if (starts[middle] <= t) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low == 0 || low > segments) return {t, t};
    return {max(starts[low - 1], 0), min(starts[low], tokens)};
  }
};

// Which other rows each own row of a block sees: queries see keys [max(start, t - window + 1), t], keys are seen by
// queries [j, min(end, j + window)); not causal, both see [max(start, t - window + 1), min(end, t + window)). `first`
// and `last` bound them all.
template <int kRows>
struct VisibleRowsOf {
  int low[kRows], high[kRows], start[kRows];
  int first, last;

  // i: of the calling thread among those of these rows; all threads of the block call it.
  template <bool kOwnIsKey>
  __device__ void find(const AttentionProblem& p, const int32_t* segments, int own_first,
                       int i = static_cast<int>(threadIdx.x)) {
    if (i == 0) first = p.tokens, last = 0;
    __syncthreads();
    if (i < kRows) {
      const int t = own_first + i;
      Segment s{t, t};
      if (t < p.tokens) s = Segment::of(segments, p.segments, t, p.tokens);
      int from = t, to = t;
      if (s.start < s.end) {
        const bool bounded = p.window > 0 && p.window < p.tokens;
        from = p.causal && kOwnIsKey ? t : bounded ? max(s.start, t - p.window + 1) : s.start;
        to = p.causal && !kOwnIsKey ? t + 1 : bounded ? min(s.end, t + p.window) : s.end;
        atomicMin(&first, from);
        atomicMax(&last, to);
      }
      low[i] = from, high[i] = to, start[i] = s.start;
    }
    __syncthreads();
  }
};

using VisibleRows = VisibleRowsOf<kOwn>;

// The factor of a probability: 0 or 1 / (1 - p) with dropout; `start` of the key's segment.
__device__ __forceinline__ float keep_factor(const AttentionProblem& p, const RandomStream& stream, int head, int query,
                                             int start, int key) {
  const auto element = static_cast<uint64_t>(p.first_element(head, query) + key - start);
  KeepByte at{element / 4, static_cast<int>(element % 4 * 4)};
  if (p.bytes) at = keep_byte(p.tokens, p.first_head + head, query, key);
  const uint4 words = stream.words(at.block);
  const int lane = at.byte / 4;
  const uint32_t word = lane == 0 ? words.x : lane == 1 ? words.y : lane == 2 ? words.z : words.w;
  const uint32_t number = p.bytes ? word >> (8 * (at.byte % 4)) & 0xff : word >> 8;
  return number >= p.threshold ? p.kept_factor : 0.0f;
}

// e^x; the argument is never above rounding noise of 0 here.
__device__ __forceinline__ float exponential(float x) { return exp2f(x * kLog2E); }

// Calls body with the tile width for a head dim, as std::integral_constant-like value: 32, 64, 128 or 256.
template <int kValue>
struct Width {
  static constexpr int value = kValue;
};
template <typename Body>
void with_tile_width(int dim, Body&& body) {
  if (dim <= 32) {
    body(Width<32>{});
  } else if (dim <= 64) {
    body(Width<64>{});
  } else if (dim <= 128) {
    body(Width<128>{});
  } else {
    body(Width<256>{});
  }
}

// The grid of blocks of kRows own rows of so many heads.
template <int kRows = kOwn>
dim3 own_tiles(const AttentionProblem& p, int heads) {
  return {static_cast<unsigned>((p.tokens + kRows - 1) / kRows), static_cast<unsigned>(heads)};
}

// --- the online softmax of 64 queries of one head over tiles of keys: dense and paged attention
template <int kDim>
struct ForwardTiles {
  static constexpr int kOthers = kDim <= 128 ? 64 : 32, kEach = kOthers / 16;
  static constexpr int kFloats = (kOwn + kOthers) * kStride<kDim> + kOwn * (kOthers + 4);
};

// What a thread knows of its four queries in the end.
template <int kDim>
struct ForwardRows {
  float largest[kRowsOfThread], sum[kRowsOfThread], result[kRowsOfThread][Columns<kDim>::kCount];
  bool sees[kRowsOfThread];  // any key at all
};

// The queries' tile stands in `shared` ([kOwn][kDim + 4]; kFloats in all). load_keys and load_values(tile, first key)
// fill [kOthers][kDim + 4]; keep(own row, key) is the factor of a probability, asked for only with kDropout; bias times
// key - query joins the scores before they are scaled (a query is the last key it sees).
template <int kDim, typename LoadKeys, typename LoadValues, typename Keep>
__device__ __forceinline__ void forward_walk(float* shared, const VisibleRows& visible, float scale, bool dropout,
                                             ForwardRows<kDim>& rows, LoadKeys load_keys, LoadValues load_values,
                                             Keep keep, float bias = 0) {
  using C = Columns<kDim>;
  constexpr int kOthers = ForwardTiles<kDim>::kOthers, kEach = ForwardTiles<kDim>::kEach;
  float* queries = shared;
  float* others = queries + kOwn * kStride<kDim>;     // keys, then values
  float* weights = others + kOthers * kStride<kDim>;  // [kOwn][kOthers + 4]
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  int low[kRowsOfThread], high[kRowsOfThread];
  unroll<kRowsOfThread>([&](int i) {
    rows.largest[i] = -INFINITY, rows.sum[i] = 0;
    low[i] = visible.low[4 * ty + i], high[i] = visible.high[4 * ty + i];
    rows.sees[i] = low[i] < high[i];
    unroll<C::kCount>([&](int c) { rows.result[i][c] = 0; });
  });
  for (int tile = visible.first / kOthers * kOthers; tile < visible.last; tile += kOthers) {
    __syncthreads();
    load_keys(others, tile);
    __syncthreads();
    float scores[kRowsOfThread][kEach];
    multiply_rows<kDim, kEach>(queries, others, scores);
    unroll<kRowsOfThread>([&](int i) {
      float top = rows.largest[i];
      unroll<kEach>([&](int j) {
        const int key = tile + tx + 16 * j;
        const float score = fmaf(bias, static_cast<float>(key + 1 - high[i]), scores[i][j]);
        scores[i][j] = key >= low[i] && key < high[i] ? score * scale : -INFINITY;
        top = fmaxf(top, scores[i][j]);
      });
      top = warp_reduce<Max, 8>(top);                      // of the 16 threads that share rows
      const float anchor = top == -INFINITY ? 0.0f : top;  // rows that see nothing yet
      const float shrink = exponential(rows.largest[i] - anchor);
      rows.largest[i] = top;
      float added = 0;
      unroll<kEach>([&](int j) {
        scores[i][j] = exponential(scores[i][j] - anchor);
        added += scores[i][j];
      });
      rows.sum[i] = fmaf(rows.sum[i], shrink, warp_reduce<Sum, 8>(added));
      unroll<C::kCount>([&](int c) { rows.result[i][c] *= shrink; });
      if (dropout) {
        unroll<kEach>([&](int j) {
          if (scores[i][j] != 0) scores[i][j] *= keep(4 * ty + i, tile + tx + 16 * j);
        });
      }
    });
    store_weights<kEach>(weights, scores);
    __syncthreads();
    load_values(others, tile);
    __syncthreads();
    add_weighted_rows<kDim, kOthers>(weights, others, rows.result);
  }
}

// The results divided by their sums, zeros for rows that see nothing, in the tile of the queries.
template <int kDim>
__device__ __forceinline__ void put_results(float* tile, const ForwardRows<kDim>& rows) {
  float factors[kRowsOfThread];
  unroll<kRowsOfThread>([&](int i) { factors[i] = rows.sees[i] ? 1.0f / rows.sum[i] : 0.0f; });
  __syncthreads();
  put_rows<kDim>(tile, rows.result, factors);
  __syncthreads();
}

}  // namespace octet::cuda
