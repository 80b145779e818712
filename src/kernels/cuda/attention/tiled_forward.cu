// Forward attention on float32 tiles: 64 queries of a head against tiles of keys, online softmax.
#include "kernels/cuda/attention/any_dim.h"
#include "kernels/cuda/attention/forward_tiles.cuh"
#include "kernels/cuda/attention/tiled.h"

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
      [&](int own, int key) { return keep_factor(p, stream, head, first_query + own, key - visible.start[own]); },
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

}  // namespace

void launch_attention_tiled(const AttentionProblem& p, const AttentionOperands& x, cudaStream_t stream) {
  if (p.dim > kLargestTiledDim) return launch_attention_rows(p, x, stream);
  with_tile_width(p.dim, [&](auto width) {
    constexpr int kDim = decltype(width)::value;
    constexpr size_t kBytes = ForwardTiles<kDim>::kFloats * sizeof(float);
    allow_shared(attention_tiled_kernel<kDim>, kBytes);
    const dim3 grid(static_cast<unsigned>((p.tokens + kOwn - 1) / kOwn), static_cast<unsigned>(p.heads));
    attention_tiled_kernel<kDim><<<grid, kTileThreads, kBytes, stream>>>(p, x);
  });
}

}  // namespace octet::cuda
