// Attention and its gradient on float32 tiles. Forward: 64 queries of a head against tiles of keys, online softmax.
//
// Gradient: with P = exp(s - lse), K the keep factors, dP = (dout v^T) K and delta = dout . out: dv = (P K)^T dout,
// dS = scale P (dP - delta), dq = dS k, dk = dS^T q. One kernel, two passes: a block that owns queries walks over keys
// and makes dq; a block that owns keys walks over the queries of all heads that share them and makes dk and dv. Each
// result has one owner: no atomics, the same bits every run.
#include "kernels/cuda/attention/tiles.cuh"

namespace octet::cuda {
namespace {

template <int kDim>
__global__ void __launch_bounds__(kTileThreads, 2) attention_tiled_kernel(AttentionProblem p, AttentionOperands x) {
  constexpr int kOthers = ForwardTiles<kDim>::kOthers;
  extern __shared__ float4 shared_vectors[];
  float* shared = reinterpret_cast<float*>(shared_vectors);
  __shared__ VisibleRows visible;
  // The last queries see most keys: they start first.
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kOwn;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / p.group();
  visible.find<false>(p, x.segments, first_query);
  load_tile<kDim, kOwn>(shared, x.q, first_query, p.tokens, p.heads, head, p.dim);
  RandomStream stream{};
  if (p.dropout) stream = RandomStream::of(x.rng, p.key);
  ForwardRows<kDim> rows;
  forward_walk<kDim>(
      shared, visible, p.scale, p.dropout, rows,
      [&](float* to, int key) { load_tile<kDim, kOthers>(to, x.k, key, p.tokens, p.kv_heads, kv_head, p.dim); },
      [&](float* to, int key) { load_tile<kDim, kOthers>(to, x.v, key, p.tokens, p.kv_heads, kv_head, p.dim); },
      [&](int own, int key) { return keep_factor(p, stream, head, first_query + own, visible.start[own], key); },
      p.bias(head));
  unroll<kRowsOfThread>([&](int i) {
    const int query = first_query + static_cast<int>(threadIdx.x) / 16 * kRowsOfThread + i;
    if (x.lse == nullptr || query >= p.tokens || threadIdx.x % 16 != 0) return;
    x.lse[static_cast<int64_t>(query) * p.heads + head] = rows.sees[i] ? rows.largest[i] + logf(rows.sum[i]) : 0.0f;
  });
  if (x.out.data == nullptr) return;
  put_results<kDim>(shared, rows);
  store_tile<kDim>(shared, x.out, p.heads, head, p.dim,
                   [&](int row) { return first_query + row < p.tokens ? first_query + row : -1; });
}

template <int kDim>
struct GradientTiles {
  static constexpr int kOthers = kDim <= 64 ? 64 : 32, kEach = kOthers / 16;
  static constexpr int kFloats = 2 * (kOwn + kOthers) * kStride<kDim> + kOwn * (kOthers + 4);
};

// delta[t, h] = dout . out, one warp a row of the head.
__global__ void attention_delta_kernel(AttentionProblem p, AttentionOperands x, float* delta) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (row >= static_cast<int64_t>(p.tokens) * p.heads) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum = 0;
  for (int d = lane; d < p.dim; d += 32) sum = fmaf(load(x.out, row * p.dim + d), load(x.dout, row * p.dim + d), sum);
  sum = warp_reduce<Sum>(sum);
  if (lane == 0) delta[row] = sum;
}

template <int kDim, bool kOwnIsKey>
__global__ void __launch_bounds__(kTileThreads, kDim <= 128 ? 2 : 1)
    attention_grad_tiled_kernel(AttentionProblem p, AttentionOperands x, const float* delta) {
  constexpr int kOthers = GradientTiles<kDim>::kOthers, kEach = GradientTiles<kDim>::kEach;
  extern __shared__ float4 shared[];
  float* own = reinterpret_cast<float*>(shared);          // [kOwn][kDim + 4]: q, or k
  float* own_beside = own + kOwn * kStride<kDim>;         // dout, or v
  float* other = own_beside + kOwn * kStride<kDim>;       // [kOthers][kDim + 4]: k, or q
  float* other_beside = other + kOthers * kStride<kDim>;  // v, or dout
  float* weights = other_beside + kOthers * kStride<kDim>;
  __shared__ VisibleRows visible;
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  // Longest walks first: the last queries, the first keys.
  const int first_own = static_cast<int>(kOwnIsKey ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * kOwn;
  const int own_head = static_cast<int>(blockIdx.y);
  const int kv_head = kOwnIsKey ? own_head : own_head / p.group();
  const int first_head = kOwnIsKey ? own_head * p.group() : own_head;
  const int end_head = kOwnIsKey ? first_head + p.group() : first_head + 1;
  visible.find<kOwnIsKey>(p, x.segments, first_own);
  load_tile<kDim, kOwn>(own, kOwnIsKey ? x.k : x.q, first_own, p.tokens, kOwnIsKey ? p.kv_heads : p.heads, own_head,
                        p.dim);
  load_tile<kDim, kOwn>(own_beside, kOwnIsKey ? x.v : x.dout, first_own, p.tokens, kOwnIsKey ? p.kv_heads : p.heads,
                        own_head, p.dim);
  RandomStream stream{};
  if (p.dropout) stream = RandomStream::of(x.rng, p.key);

  float sums[kRowsOfThread][Columns<kDim>::kCount] = {}, value_sums[kRowsOfThread][Columns<kDim>::kCount] = {};
  int low[kRowsOfThread], high[kRowsOfThread];
  unroll<kRowsOfThread>([&](int i) { low[i] = visible.low[4 * ty + i], high[i] = visible.high[4 * ty + i]; });

  for (int head = first_head; head < end_head; ++head) {
    const float bias = p.bias(head);
    for (int tile = visible.first / kOthers * kOthers; tile < visible.last; tile += kOthers) {
      __syncthreads();
      load_tile<kDim, kOthers>(other, kOwnIsKey ? x.q : x.k, tile, p.tokens, kOwnIsKey ? p.heads : p.kv_heads,
                               kOwnIsKey ? head : kv_head, p.dim);
      load_tile<kDim, kOthers>(other_beside, kOwnIsKey ? x.dout : x.v, tile, p.tokens, kOwnIsKey ? p.heads : p.kv_heads,
                               kOwnIsKey ? head : kv_head, p.dim);
      __syncthreads();
      float probabilities[kRowsOfThread][kEach], ds[kRowsOfThread][kEach];
      multiply_rows<kDim, kEach>(own, other, probabilities);
      multiply_rows<kDim, kEach>(own_beside, other_beside, ds);
      unroll<kRowsOfThread, kEach>([&](int i, int j) {
        const int own_row = first_own + 4 * ty + i, other_row = tile + tx + 16 * j;
        float probability = 0, gradient = 0;
        if (other_row >= low[i] && other_row < high[i]) {
          const int query = kOwnIsKey ? other_row : own_row, key = kOwnIsKey ? own_row : other_row;
          const int64_t row = static_cast<int64_t>(query) * p.heads + head;
          const float keep = p.dropout ? keep_factor(p, stream, head, query, visible.start[4 * ty + i], key) : 1.0f;
          const float score = fmaf(bias, static_cast<float>(key - query), probabilities[i][j]);
          probability = exponential(score * p.scale - x.lse[row]);
          gradient = p.scale * probability * (ds[i][j] * keep - delta[row]);
          probability *= keep;
        }
        probabilities[i][j] = probability, ds[i][j] = gradient;
      });
      store_weights<kEach>(weights, ds);
      __syncthreads();
      add_weighted_rows<kDim, kOthers>(weights, other, sums);
      if constexpr (kOwnIsKey) {
        __syncthreads();
        store_weights<kEach>(weights, probabilities);
        __syncthreads();
        add_weighted_rows<kDim, kOthers>(weights, other_beside, value_sums);
      }
    }
  }
  constexpr float kOnes[kRowsOfThread] = {1, 1, 1, 1};
  const int own_heads = kOwnIsKey ? p.kv_heads : p.heads;
  const auto row_of = [&](int row) { return first_own + row < p.tokens ? first_own + row : -1; };
  const Operand& to = kOwnIsKey ? x.dk : x.dq;
  __syncthreads();
  put_rows<kDim>(own, sums, kOnes);
  if constexpr (kOwnIsKey) put_rows<kDim>(own_beside, value_sums, kOnes);
  __syncthreads();
  if (to.data != nullptr) store_tile<kDim>(own, to, own_heads, own_head, p.dim, row_of);
  if (kOwnIsKey && x.dv.data != nullptr) store_tile<kDim>(own_beside, x.dv, own_heads, own_head, p.dim, row_of);
}

// --- head dims beyond the tiles: one warp a row, vectors of the head read from memory again for each pair
constexpr int kWarps = 4;

__device__ float dot(const Operand& a, int64_t a_row, const Operand& b, int64_t b_row, int dim) {
  float sum = 0;
  for (int d = static_cast<int>(threadIdx.x) % 32; d < dim; d += 32) {
    sum = fmaf(load(a, a_row * dim + d), load(b, b_row * dim + d), sum);
  }
  return warp_reduce<Sum>(sum);
}

struct Range {
  int low, high, start;
  __device__ static Range of_query(const AttentionProblem& p, const int32_t* segments, int t) {
    const Segment s = Segment::of(segments, p.segments, t, p.tokens);
    if (s.start >= s.end) return {t, t, t};
    const bool bounded = p.window > 0 && p.window < p.tokens;
    const int end = p.causal ? t + 1 : bounded ? min(s.end, t + p.window) : s.end;
    return {bounded ? max(s.start, t - p.window + 1) : s.start, end, s.start};
  }
  __device__ static Range of_key(const AttentionProblem& p, const int32_t* segments, int t) {
    const Segment s = Segment::of(segments, p.segments, t, p.tokens);
    if (s.start >= s.end) return {t, t, t};
    const bool bounded = p.window > 0 && p.window < p.tokens;
    const int begin = p.causal ? t : bounded ? max(s.start, t - p.window + 1) : s.start;
    return {begin, bounded ? min(s.end, t + p.window) : s.end, s.start};
  }
};

// This warp's row of [tokens x heads] as (token, head); false beyond the end.
__device__ bool own_row(int tokens, int heads, int& token, int& head) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  token = static_cast<int>(row / heads), head = static_cast<int>(row % heads);
  return token < tokens;
}

// Sums of the row are in shared memory, [dim] floats a warp.
__global__ void attention_rows_kernel(AttentionProblem p, AttentionOperands x) {
  extern __shared__ float shared_sums[];
  float* sums = shared_sums + static_cast<int>(threadIdx.x) / 32 * p.dim;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int t, head;
  if (!own_row(p.tokens, p.heads, t, head)) return;
  const int64_t row = static_cast<int64_t>(t) * p.heads + head;
  const int kv_head = head / p.group();
  const float bias = p.bias(head);
  const Range range = Range::of_query(p, x.segments, t);
  RandomStream stream{};
  if (p.dropout) stream = RandomStream::of(x.rng, p.key);
  for (int d = lane; d < p.dim; d += 32) sums[d] = 0;
  float largest = -INFINITY, sum = 0;
  for (int j = range.low; j < range.high; ++j) {
    const int64_t kv_row = static_cast<int64_t>(j) * p.kv_heads + kv_head;
    const float score = p.scale * fmaf(bias, static_cast<float>(j - t), dot(x.q, row, x.k, kv_row, p.dim));
    const float top = fmaxf(largest, score);
    const float shrink = exponential(largest - top), probability = exponential(score - top);
    sum = fmaf(sum, shrink, probability);
    largest = top;
    const float weight = p.dropout ? probability * keep_factor(p, stream, head, t, range.start, j) : probability;
    for (int d = lane; d < p.dim; d += 32) sums[d] = fmaf(weight, load(x.v, kv_row * p.dim + d), sums[d] * shrink);
  }
  const bool sees = range.low < range.high;
  if (x.out.data != nullptr) {
    for (int d = lane; d < p.dim; d += 32) store(x.out, row * p.dim + d, sees ? sums[d] / sum : 0.0f);
  }
  if (x.lse != nullptr && lane == 0) x.lse[row] = sees ? largest + logf(sum) : 0.0f;
}

template <bool kOwnIsKey>
__global__ void attention_grad_rows_kernel(AttentionProblem p, AttentionOperands x, const float* delta) {
  extern __shared__ float shared_sums[];
  float* sums = shared_sums + static_cast<int>(threadIdx.x) / 32 * 2 * p.dim;  // of dq, or dk
  float* value_sums = sums + p.dim;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int own, own_head;
  if (!own_row(p.tokens, kOwnIsKey ? p.kv_heads : p.heads, own, own_head)) return;
  const Range range = kOwnIsKey ? Range::of_key(p, x.segments, own) : Range::of_query(p, x.segments, own);
  RandomStream stream{};
  if (p.dropout) stream = RandomStream::of(x.rng, p.key);
  for (int d = lane; d < p.dim; d += 32) sums[d] = value_sums[d] = 0;
  const int kv_head = kOwnIsKey ? own_head : own_head / p.group();
  const int first_head = kOwnIsKey ? own_head * p.group() : own_head;
  for (int head = first_head; head < first_head + (kOwnIsKey ? p.group() : 1); ++head) {
    const float bias = p.bias(head);
    for (int other = range.low; other < range.high; ++other) {
      const int query = kOwnIsKey ? other : own, key = kOwnIsKey ? own : other;
      const int64_t row = static_cast<int64_t>(query) * p.heads + head;
      const int64_t kv_row = static_cast<int64_t>(key) * p.kv_heads + kv_head;
      const float keep = p.dropout ? keep_factor(p, stream, head, query, range.start, key) : 1.0f;
      const float score = fmaf(bias, static_cast<float>(key - query), dot(x.q, row, x.k, kv_row, p.dim));
      const float probability = exponential(p.scale * score - x.lse[row]);
      const float ds = p.scale * probability * (dot(x.dout, row, x.v, kv_row, p.dim) * keep - delta[row]);
      for (int d = lane; d < p.dim; d += 32) {
        sums[d] = fmaf(ds, kOwnIsKey ? load(x.q, row * p.dim + d) : load(x.k, kv_row * p.dim + d), sums[d]);
        if (kOwnIsKey) value_sums[d] = fmaf(probability * keep, load(x.dout, row * p.dim + d), value_sums[d]);
      }
    }
  }
  const int64_t own_at = (static_cast<int64_t>(own) * (kOwnIsKey ? p.kv_heads : p.heads) + own_head) * p.dim;
  const Operand& to = kOwnIsKey ? x.dk : x.dq;
  for (int d = lane; d < p.dim; d += 32) {
    if (to.data != nullptr) store(to, own_at + d, sums[d]);
    if (kOwnIsKey && x.dv.data != nullptr) store(x.dv, own_at + d, value_sums[d]);
  }
}

unsigned blocks(const AttentionProblem& p, int heads) {
  return static_cast<unsigned>((static_cast<int64_t>(p.tokens) * heads + kWarps - 1) / kWarps);
}

void launch_rows(const AttentionProblem& p, const AttentionOperands& x, cudaStream_t stream) {
  const size_t bytes = static_cast<size_t>(kWarps) * static_cast<size_t>(p.dim) * sizeof(float);
  launch_ordered(attention_rows_kernel, {blocks(p, p.heads), 32 * kWarps, bytes}, stream, p, x);
}

void launch_grad_rows(const AttentionProblem& p, const AttentionOperands& x, const float* delta, cudaStream_t stream) {
  const size_t bytes = 2 * static_cast<size_t>(kWarps) * static_cast<size_t>(p.dim) * sizeof(float);
  if (x.dq.data != nullptr)
    launch_ordered(attention_grad_rows_kernel<false>, {blocks(p, p.heads), 32 * kWarps, bytes}, stream, p, x, delta);
  if (x.dk.data != nullptr || x.dv.data != nullptr)
    launch_ordered(attention_grad_rows_kernel<true>, {blocks(p, p.kv_heads), 32 * kWarps, bytes}, stream, p, x, delta);
}

}  // namespace

void launch_attention_tiled(const AttentionProblem& p, const AttentionOperands& x, cudaStream_t stream) {
  if (p.dim > kLargestTiledDim) return launch_rows(p, x, stream);
  with_tile_width(p.dim, [&](auto width) {
    constexpr int kDim = decltype(width)::value;
    constexpr size_t kBytes = ForwardTiles<kDim>::kFloats * sizeof(float);
    launch_ordered(attention_tiled_kernel<kDim>, {own_tiles(p, p.heads), kTileThreads, kBytes}, stream, p, x);
  });
}

void launch_attention_delta(const AttentionProblem& p, const AttentionOperands& x, float* delta, cudaStream_t stream) {
  const int64_t rows = static_cast<int64_t>(p.tokens) * p.heads;
  attention_delta_kernel<<<static_cast<unsigned>((rows + 7) / 8), 256, 0, stream>>>(p, x, delta);
}

void launch_attention_grad_tiled(const AttentionProblem& p, const AttentionOperands& x, const float* delta,
                                 cudaStream_t stream) {
  if (p.dim > kLargestTiledDim) return launch_grad_rows(p, x, delta, stream);
  with_tile_width(p.dim, [&](auto width) {
    constexpr int kDim = decltype(width)::value;
    constexpr size_t kBytes = GradientTiles<kDim>::kFloats * sizeof(float);
    if (x.dq.data != nullptr)
      launch_ordered(attention_grad_tiled_kernel<kDim, false>, {own_tiles(p, p.heads), kTileThreads, kBytes}, stream, p,
                     x, delta);
    if (x.dk.data != nullptr || x.dv.data != nullptr)
      launch_ordered(attention_grad_tiled_kernel<kDim, true>, {own_tiles(p, p.kv_heads), kTileThreads, kBytes}, stream,
                     p, x, delta);
  });
}

}  // namespace octet::cuda
