// Prefill over the paged cache on tensor cores: queries of bf16, a cache of bf16 or FP8 codes (exact in bf16).
#include "kernels/cuda/attention/mma_forward.cuh"
#include "kernels/cuda/inference/paged.cuh"

namespace octet::cuda {
namespace {

template <typename T, int kDim>
__global__ void __launch_bounds__(mma::kForwardThreads) paged_prefill_mma_kernel(PagedProblem p, PagedOperands x) {
  extern __shared__ uint4 shared_pieces[];
  __shared__ VisibleRows visible;
  __shared__ PagedTile tile;
  if (!tile.find(p, x, visible)) return;
  const PagedSequence sequence = tile.sequence;
  const int first_query = tile.first_query, head = static_cast<int>(blockIdx.y), kv_head = head / p.group();
  const int oldest = visible.first, newest = visible.last;
  const auto row_of = [&](int row) {
    return first_query + row < sequence.queries ? sequence.begin + first_query + row : -1;
  };
  // Keys in front of the window may lie in freed blocks: they are not read.
  const auto gather = [&](bf16* to, const Operand& from, int first) {
    const auto slot_of = [&](int row) {
      const int key = first + row;
      return key >= oldest && key < newest ? sequence.slot(p, key) : -1;
    };
    const T* data = static_cast<const T*>(from.data);
    if constexpr (sizeof(T) == 2) {
      mma::load_tile_async<kDim, mma::kForwardKeys, mma::kForwardThreads>(to, data, p.kv_heads, kv_head, p.dim,
                                                                          slot_of);
    } else {
      constexpr int kPieces = kDim / 8;
#pragma unroll 4
      for (int i = static_cast<int>(threadIdx.x); i < mma::kForwardKeys * kPieces; i += mma::kForwardThreads) {
        const int row = i / kPieces, piece = i % kPieces, slot = slot_of(row);
        float values[8] = {};
        if (slot >= 0 && piece * 8 < p.dim) {
          load<8>(data + (static_cast<int64_t>(slot) * p.kv_heads + kv_head) * p.dim + piece * 8, values);
        }
        store<8>(to + mma::piece_offset<kDim>(row, piece) / sizeof(bf16), values);
      }
    }
  };
  mma::ForwardRows<kDim, 1> rows;
  mma::forward_walk<kDim, 1>(
      reinterpret_cast<bf16*>(shared_pieces), visible, p.scale, false, rows,
      [&](bf16* to) {
        mma::load_tile_async<kDim, kOwn, mma::kForwardThreads>(to, static_cast<const bf16*>(x.q.data), p.heads, head,
                                                               p.dim, row_of);
      },
      [&](bf16* to, int key) { gather(to, x.k, key); }, [&](bf16* to, int key) { gather(to, x.v, key); },
      [](int, float(&)[1][mma::kForwardKeys / 8][4]) {});
  mma::store_results<kDim, 1>(rows, static_cast<bf16*>(x.out.data), p.heads, head, p.dim, row_of);
}

template <typename T>
void launch(const PagedProblem& p, const PagedOperands& x, cudaStream_t stream) {
  const auto launch_dim = [&](auto width) {
    constexpr int kDim = decltype(width)::value;
    constexpr size_t kBytes = mma::kForwardBytes<kDim, 1>;
    allow_shared(paged_prefill_mma_kernel<T, kDim>, kBytes);
    paged_prefill_mma_kernel<T, kDim><<<prefill_grid(p), mma::kForwardThreads, kBytes, stream>>>(p, x);
  };
  if (p.dim <= 64) {
    launch_dim(Width<64>{});
  } else {
    launch_dim(Width<128>{});
  }
}

}  // namespace

void launch_paged_prefill_mma(const PagedProblem& p, const PagedOperands& x, cudaStream_t stream) {
  switch (x.k.dtype) {
    case DType::kE4M3: return launch<e4m3>(p, x, stream);
    case DType::kE5M2: return launch<e5m2>(p, x, stream);
    default: return launch<bf16>(p, x, stream);
  }
}

}  // namespace octet::cuda
