// The online softmax of 64 queries of one head over tiles of keys, in float32: dense and paged attention.
#pragma once

#include "kernels/cuda/attention/tiles.cuh"

namespace octet::cuda {

template <int kDim>
struct ForwardTiles {
  static constexpr int kOthers = kDim <= 128 ? 64 : 32, kEach = kOthers / 16;
  static constexpr int kFloats = (kOwn + kOthers) * kStride<kDim> + kOwn * (kOthers + 4);
};

// Largest, and sum, of the 16 threads that share rows.
__device__ __forceinline__ float row_max(float x) {
#pragma unroll
  for (int lanes = 8; lanes > 0; lanes >>= 1) x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, lanes));
  return x;
}
__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
  for (int lanes = 8; lanes > 0; lanes >>= 1) x += __shfl_xor_sync(kWholeWarp, x, lanes);
  return x;
}

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
      top = row_max(top);
      const float anchor = top == -INFINITY ? 0.0f : top;  // rows that see nothing yet
      const float shrink = exponential(rows.largest[i] - anchor);
      rows.largest[i] = top;
      float added = 0;
      unroll<kEach>([&](int j) {
        scores[i][j] = exponential(scores[i][j] - anchor);
        added += scores[i][j];
      });
      rows.sum[i] = fmaf(rows.sum[i], shrink, row_sum(added));
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
