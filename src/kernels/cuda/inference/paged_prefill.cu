// Prefill over the paged cache: the float32 tiles of dense attention, keys gathered through the block table.
#include "kernels/cuda/attention/tiles.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/inference/paged.cuh"

namespace octet::cuda {
namespace {

template <int kDim>
__global__ void __launch_bounds__(kTileThreads, 2) paged_prefill_kernel(PagedProblem p, PagedOperands x) {
  constexpr int kOthers = ForwardTiles<kDim>::kOthers;
  extern __shared__ float4 shared_vectors[];
  float* shared = reinterpret_cast<float*>(shared_vectors);
  __shared__ VisibleRows visible;
  __shared__ PagedTile tile;
  griddep_wait();
  griddep_launch_dependents();
  if (!tile.find(p, x, visible)) return;
  const PagedSequence sequence = tile.sequence;
  const int first_query = tile.first_query, head = static_cast<int>(blockIdx.y), kv_head = head / p.group;
  load_tile<kDim, kOwn>(shared, x.q, p.heads, head, p.dim, [&](int row) {
    return first_query + row < sequence.queries ? sequence.begin + first_query + row : -1;
  });
  // Keys in front of the window may lie in freed blocks: they are not read.
  const auto gather = [&](float* to, const Operand& from, int key) {
    load_tile<kDim, kOthers>(to, from, p.kv_heads, kv_head, p.dim, [&](int row) {
      const int at = key + row;
      return at >= visible.first && at < visible.last ? sequence.slot(p, at) : -1;
    });
  };
  const float scale = p.scale * factor(x.k_scale);
  ForwardRows<kDim> rows;
  forward_walk<kDim>(
      shared, visible, scale, false, rows, [&](float* to, int key) { gather(to, x.k, key); },
      [&](float* to, int key) { gather(to, x.v, key); }, [](int, int) { return 1.0f; },
      p.alibi != 0 ? alibi_bias(p, head) / scale : 0.0f);
  const float v_scale = factor(x.v_scale);
  unroll<kRowsOfThread>([&](int i) { rows.sum[i] /= v_scale; });
  put_results<kDim>(shared, rows);
  store_tile<kDim>(shared, x.out, p.heads, head, p.dim, [&](int row) {
    return first_query + row < sequence.queries ? sequence.begin + first_query + row : -1;
  });
}

}  // namespace

void launch_paged_prefill(const PagedProblem& p, const PagedOperands& x, cudaStream_t stream) {
  with_tile_width(p.dim, [&](auto width) {
    constexpr int kDim = decltype(width)::value;
    constexpr size_t kBytes = ForwardTiles<kDim>::kFloats * sizeof(float);
    const dim3 blocks(prefill_tiles(p), static_cast<unsigned>(p.heads));
    launch_overlapped(paged_prefill_kernel<kDim>, {blocks, kTileThreads, kBytes}, stream, p, x);
  });
}

}  // namespace octet::cuda
