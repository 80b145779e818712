// Gradient of attention on float32 tiles. With P = exp(s - lse), K the keep factors, dP = (dout v^T) K and
// delta = dout . out: dv = (P K)^T dout, dS = scale P (dP - delta), dq = dS k, dk = dS^T q.
//
// One kernel, two passes: a block that owns queries walks over keys and makes dq; a block that owns keys walks over the
// queries of all heads that share them and makes dk and dv. Each result has one owner: no atomics, the same bits
// every run.
#include "kernels/cuda/attention/any_dim.h"
#include "kernels/cuda/attention/tiled.h"
#include "kernels/cuda/attention/tiles.cuh"

namespace octet::cuda {
namespace {

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
          const float keep = p.dropout ? keep_factor(p, stream, head, query, key - visible.start[4 * ty + i]) : 1.0f;
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

}  // namespace

void launch_attention_delta(const AttentionProblem& p, const AttentionOperands& x, float* delta, cudaStream_t stream) {
  const int64_t rows = static_cast<int64_t>(p.tokens) * p.heads;
  attention_delta_kernel<<<static_cast<unsigned>((rows + 7) / 8), 256, 0, stream>>>(p, x, delta);
}

void launch_attention_grad_tiled(const AttentionProblem& p, const AttentionOperands& x, const float* delta,
                                 cudaStream_t stream) {
  if (p.dim > kLargestTiledDim) return launch_attention_grad_rows(p, x, delta, stream);
  with_tile_width(p.dim, [&](auto width) {
    constexpr int kDim = decltype(width)::value;
    constexpr size_t kBytes = GradientTiles<kDim>::kFloats * sizeof(float);
    const auto tiles = static_cast<unsigned>((p.tokens + kOwn - 1) / kOwn);
    if (x.dq.data != nullptr) {
      allow_shared(attention_grad_tiled_kernel<kDim, false>, kBytes);
      attention_grad_tiled_kernel<kDim, false>
          <<<dim3(tiles, static_cast<unsigned>(p.heads)), kTileThreads, kBytes, stream>>>(p, x, delta);
    }
    if (x.dk.data != nullptr || x.dv.data != nullptr) {
      allow_shared(attention_grad_tiled_kernel<kDim, true>, kBytes);
      attention_grad_tiled_kernel<kDim, true>
          <<<dim3(tiles, static_cast<unsigned>(p.kv_heads)), kTileThreads, kBytes, stream>>>(p, x, delta);
    }
  });
}

}  // namespace octet::cuda
