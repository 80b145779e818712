// The online softmax of a block's queries over tiles of keys on tensor cores: dense and paged attention.
#pragma once

#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/attention/tiles.cuh"

namespace octet::cuda::mma {

inline constexpr int kForwardThreads = 128, kForwardQueries = 64, kForwardKeys = 64;
template <int kDim>
inline constexpr size_t kForwardBytes = static_cast<size_t>(kForwardQueries + 2 * kForwardKeys) * kDim * sizeof(bf16);

// Results of a warp's 16 queries; a lane has two of them.
template <int kDim>
struct ForwardRows {
  float result[kDim / 8][4] = {}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  bool sees[2];
};

// shared: [kForwardQueries + 2 kForwardKeys][kDim]: queries, keys, values. load_queries(tile) and load_keys,
// load_values(tile, first key) begin the copies; drop(first key, weights) scales the probabilities, with dropout.
template <int kDim, typename LoadQueries, typename LoadKeys, typename LoadValues, typename Drop>
__device__ __forceinline__ void forward_walk(bf16* shared, const VisibleRows& visible, float scale, bool dropout,
                                             ForwardRows<kDim>& rows, LoadQueries load_queries, LoadKeys load_keys,
                                             LoadValues load_values, Drop drop) {
  constexpr float kLog2e = 1.44269504088896341f;
  bf16 *queries = shared, *keys = queries + kForwardQueries * kDim, *values = keys + kForwardKeys * kDim;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const float steps = scale * kLog2e;  // scores as powers of two
  int low[2], high[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    low[i] = visible.low[warp_row + lane / 4 + 8 * i], high[i] = visible.high[warp_row + lane / 4 + 8 * i];
    rows.sees[i] = low[i] < high[i];
  }
  const int first = visible.first / kForwardKeys * kForwardKeys, last = visible.last;
  load_queries(queries);
  if (first < last) load_keys(keys, first);
  commit_copies();
  // Queries stay in registers where these are enough.
  constexpr bool kKeep = kDim <= 64;
  uint32_t q[kKeep ? kDim / 16 : 1][4];
  for (int tile = first; tile < last; tile += kForwardKeys) {
    wait_copies<0>();
    __syncthreads();
    load_values(values, tile);
    commit_copies();
    if (kKeep && tile == first) {
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) left_fragment<kDim>(queries, warp_row, k, q[kKeep ? k : 0]);
    }
    float scores[kForwardKeys / 8][4] = {};
    multiply_rows<kDim, kForwardKeys>(scores, keys, [&](int k, uint32_t(&a)[4]) {
      if constexpr (!kKeep) {
        left_fragment<kDim>(queries, warp_row, k, a);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = q[k][i];
      }
    });
    const bool whole = __all_sync(kWholeWarp, tile >= low[0] && tile >= low[1] && tile + kForwardKeys <= high[0] &&
                                                  tile + kForwardKeys <= high[1]);
    if (!whole) {
#pragma unroll
      for (int n = 0; n < kForwardKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = tile + 8 * n + lane % 4 * 2 + e % 2;
          if (key < low[e / 2] || key >= high[e / 2]) scores[n][e] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = rows.largest[i];
#pragma unroll
      for (int n = 0; n < kForwardKeys / 8; ++n) top = fmaxf(top, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
      top = quad_max(top);
      const float anchor = top == -INFINITY ? 0.0f : top * steps;  // rows that see nothing yet
      const float shrink = power_of_two(fmaf(rows.largest[i], steps, -anchor));
      rows.largest[i] = top;
      float added = 0;
#pragma unroll
      for (int n = 0; n < kForwardKeys / 8; ++n) {
#pragma unroll
        for (int e = 2 * i; e < 2 * i + 2; ++e) {
          scores[n][e] = power_of_two(fmaf(scores[n][e], steps, -anchor));
          added += scores[n][e];
        }
      }
      rows.sum[i] = fmaf(rows.sum[i], shrink, added);  // of this lane's columns
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) rows.result[n][2 * i] *= shrink, rows.result[n][2 * i + 1] *= shrink;
    }
    if (dropout) drop(tile, scores);
    wait_copies<0>();
    __syncthreads();
    if (tile + kForwardKeys < last) load_keys(keys, tile + kForwardKeys);
    commit_copies();
    add_weighted_rows<kDim, kForwardKeys>(rows.result, scores, values);
  }
  wait_copies<0>();
#pragma unroll
  for (int i = 0; i < 2; ++i) rows.sum[i] = quad_sum(rows.sum[i]);
}

// out[row_of(own row)][head] of the block's queries; nothing where row_of is negative, zeros for rows that see nothing.
template <int kDim, typename RowOf>
__device__ __forceinline__ void store_results(const ForwardRows<kDim>& rows, bf16* out, int heads, int head, int dim,
                                              RowOf row_of) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = row_of(warp_row + lane / 4 + 8 * i);
    if (row < 0) continue;
    const float inverse = rows.sees[i] ? 1.0f / rows.sum[i] : 0.0f;
    bf16* to = out + (static_cast<int64_t>(row) * heads + head) * dim;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int d = 8 * n + lane % 4 * 2;
      if (d >= dim) continue;
      *reinterpret_cast<uint32_t*>(to + d) =
          rows.sees[i] ? pack(rows.result[n][2 * i] * inverse, rows.result[n][2 * i + 1] * inverse) : 0u;
    }
  }
}

}  // namespace octet::cuda::mma
