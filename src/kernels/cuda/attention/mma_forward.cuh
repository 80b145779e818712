// The online softmax of a block's queries over tiles of keys on tensor cores: dense and paged attention.
#pragma once

#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/attention/tiles.cuh"

namespace octet::cuda::mma {

inline constexpr int kForwardThreads = 128, kForwardKeys = 64;
template <int kParts>
inline constexpr int kForwardQueries = 64 * kParts;  // a warp has kParts times 16
template <int kDim, int kParts>
inline constexpr size_t kForwardBytes = static_cast<size_t>(kForwardQueries<kParts> + 2 * kForwardKeys) * kDim *
                                        sizeof(bf16);

// Results of a warp's queries; a lane has two of every 16.
template <int kDim, int kParts>
struct ForwardRows {
  float result[kParts][kDim / 8][4] = {}, largest[kParts][2], sum[kParts][2] = {};
  bool sees[kParts][2];

  // Own row of element i of part m.
  __device__ static int row(int m, int i) {
    return (static_cast<int>(threadIdx.x) / 32 * kParts + m) * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * i;
  }
};

// shared: [kForwardQueries + 2 kForwardKeys][kDim]: queries, keys, values. load_queries(tile) and load_keys,
// load_values(tile, first key) begin the copies; dropout, if any, draws what draw(first key) gives before the scores
// are made, and drop(what was drawn, weights) scales the probabilities; bias times key - query joins the scores before
// they are scaled (a query is the last key it sees).
template <int kDim, int kParts, bool kDropout, typename LoadQueries, typename LoadKeys, typename LoadValues,
          typename Draw, typename Drop>
__device__ __forceinline__ void forward_walk(bf16* shared, const VisibleRowsOf<kForwardQueries<kParts>>& visible,
                                             float scale, ForwardRows<kDim, kParts>& rows, LoadQueries load_queries,
                                             LoadKeys load_keys, LoadValues load_values, Draw draw, Drop drop,
                                             float bias = 0) {
  using Rows = ForwardRows<kDim, kParts>;
  constexpr float kLog2e = 1.44269504088896341f;
  bf16 *queries = shared, *keys = queries + kForwardQueries<kParts> * kDim, *values = keys + kForwardKeys * kDim;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp_row = Rows::row(0, 0) - lane / 4;
  const float steps = scale * kLog2e;  // scores as powers of two
  int low[kParts][2], high[kParts][2];
  int lowest = 0, highest = visible.last;  // all of this lane's rows see [lowest, highest)
  unroll<kParts, 2>([&](int m, int i) {
    low[m][i] = visible.low[Rows::row(m, i)], high[m][i] = visible.high[Rows::row(m, i)];
    lowest = max(lowest, low[m][i]), highest = min(highest, high[m][i]);
    rows.sees[m][i] = low[m][i] < high[m][i];
    rows.largest[m][i] = -INFINITY;
  });
  const int first = visible.first / kForwardKeys * kForwardKeys, last = visible.last;
  load_queries(queries);
  if (first < last) load_keys(keys, first);
  commit_copies();
  for (int tile = first; tile < last; tile += kForwardKeys) {
    wait_copies<0>();
    __syncthreads();
    load_values(values, tile);
    commit_copies();
    const auto drawn = draw(tile);
    float scores[kParts][kForwardKeys / 8][4] = {};
    multiply_rows<kDim, kForwardKeys, kParts>(
        scores, keys, [&](int m, int k, uint32_t(&a)[4]) { left_fragment<kDim>(queries, warp_row + 16 * m, k, a); });
    if (bias != 0) {
      unroll<kParts, kForwardKeys / 8, 4>([&](int m, int n, int e) {
        const int distance = tile + 8 * n + lane % 4 * 2 + e % 2 + 1 - high[m][e / 2];
        scores[m][n][e] = fmaf(bias, static_cast<float>(distance), scores[m][n][e]);
      });
    }
    if (!__all_sync(kWholeWarp, tile >= lowest && tile + kForwardKeys <= highest)) {
      unroll<kParts, kForwardKeys / 8, 4>([&](int m, int n, int e) {
        const int key = tile + 8 * n + lane % 4 * 2 + e % 2;
        if (key < low[m][e / 2] || key >= high[m][e / 2]) scores[m][n][e] = -INFINITY;
      });
    }
    unroll<kParts, 2>([&](int m, int i) {
      float top = rows.largest[m][i];
      unroll<kForwardKeys / 8>([&](int n) { top = fmaxf(top, fmaxf(scores[m][n][2 * i], scores[m][n][2 * i + 1])); });
      top = quad_max(top);
      const float anchor = top == -INFINITY ? 0.0f : top * steps;  // rows that see nothing yet
      const float shrink = power_of_two(fmaf(rows.largest[m][i], steps, -anchor));
      rows.largest[m][i] = top;
      float added = 0;
      unroll<kForwardKeys / 8>([&](int n) {
#pragma unroll
        for (int e = 2 * i; e < 2 * i + 2; ++e) {
          scores[m][n][e] = power_of_two(fmaf(scores[m][n][e], steps, -anchor));
          added += scores[m][n][e];
        }
      });
      rows.sum[m][i] = fmaf(rows.sum[m][i], shrink, added);  // of this lane's columns
      unroll<kDim / 8>([&](int n) { rows.result[m][n][2 * i] *= shrink, rows.result[m][n][2 * i + 1] *= shrink; });
    });
    if constexpr (kDropout) drop(drawn, scores);
    wait_copies<0>();
    __syncthreads();
    if (tile + kForwardKeys < last) load_keys(keys, tile + kForwardKeys);
    commit_copies();
    add_weighted_rows<kDim, kForwardKeys, kParts>(rows.result, scores, values);
  }
  wait_copies<0>();
  unroll<kParts, 2>([&](int m, int i) { rows.sum[m][i] = quad_sum(rows.sum[m][i]); });
}

// out[row_of(own row)][head] of the block's queries; nothing where row_of is negative, zeros for rows that see nothing.
template <int kDim, int kParts, typename RowOf>
__device__ __forceinline__ void store_results(const ForwardRows<kDim, kParts>& rows, bf16* out, int heads, int head,
                                              int dim, RowOf row_of) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  unroll<kParts, 2>([&](int m, int i) {
    const int row = row_of(rows.row(m, i));
    if (row < 0) return;
    const bool sees = rows.sees[m][i];
    const float inverse = sees ? 1.0f / rows.sum[m][i] : 0.0f;
    bf16* to = out + (static_cast<int64_t>(row) * heads + head) * dim;
    unroll<kDim / 8>([&](int n) {
      const int d = 8 * n + lane % 4 * 2;
      if (d >= dim) return;
      *reinterpret_cast<uint32_t*>(to + d) =
          sees ? pack(rows.result[m][n][2 * i] * inverse, rows.result[m][n][2 * i + 1] * inverse) : 0u;
    });
  });
}

}  // namespace octet::cuda::mma
