// Forward attention of bf16 on tensor cores: 128 queries of a head a block; 64 where dropout's bits need the registers.
#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/attention/mma_dropout.cuh"
#include "kernels/cuda/attention/mma_forward.cuh"

namespace octet::cuda {
namespace {

template <int kParts>
struct DrawnRows {
  mma::Kept64 rows[kParts][2];
};

template <int kDim, int kParts, bool kDropout>
__global__ void __launch_bounds__(mma::kForwardThreads, kParts == 1 ? 3 : 1)
    attention_mma_kernel(AttentionProblem p, AttentionOperands x) {
  using Rows = mma::ForwardRows<kDim, kParts>;
  constexpr int kQueries = mma::kForwardQueries<kParts>;
  extern __shared__ __align__(256) uint4 shared_pieces[];
  __shared__ VisibleRowsOf<kQueries> visible;
  // The last queries see most keys: they start first.
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kQueries;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / p.group();
  visible.template find<false>(p, x.segments, first_query);
  mma::DropoutBits site{};
  if constexpr (kDropout) site = mma::DropoutBits::of(p, x.rng);
  const int lane = static_cast<int>(threadIdx.x) % 32;

  const auto load = [&](auto rows, bf16* tile, const Operand& from, int first, int heads, int of_head) {
    mma::load_tile_async<kDim, decltype(rows)::value, mma::kForwardThreads>(
        tile, static_cast<const bf16*>(from.data), heads, of_head, p.dim,
        [=, tokens = p.tokens](int row) { return first + row < tokens ? first + row : -1; });
  };
  Rows rows;
  mma::forward_walk<kDim, kParts, kDropout>(
      reinterpret_cast<bf16*>(shared_pieces), visible, p.scale, rows,
      [&](bf16* tile) { load(Width<kQueries>{}, tile, x.q, first_query, p.heads, head); },
      [&](bf16* tile, int key) { load(Width<mma::kForwardKeys>{}, tile, x.k, key, p.kv_heads, kv_head); },
      [&](bf16* tile, int key) { load(Width<mma::kForwardKeys>{}, tile, x.v, key, p.kv_heads, kv_head); },
      [&](int key) {
        DrawnRows<kParts> drawn;
        if constexpr (kDropout) {
          unroll<kParts, 2>([&](int m, int i) {
            const int row = Rows::row(m, i);
            const int64_t first =
                (static_cast<int64_t>(head) * p.tokens + first_query + row) * p.max_length + key - visible.start[row];
            drawn.rows[m][i] = mma::kept_64(site, first, lane % 4 * 2);
          });
        }
        return drawn;
      },
      [&](const DrawnRows<kParts>& drawn, float(&weights)[kParts][mma::kForwardKeys / 8][4]) {
        unroll<kParts, 2>([&](int m, int i) {
#pragma unroll
          for (int n = 0; n < mma::kForwardKeys / 8; ++n) {
            unroll<2>([&](int e) {
              float& weight = weights[m][n][2 * i + e];
              weight = drawn.rows[m][i][8 * n + e] ? weight * p.kept_factor : 0.0f;
            });
          }
        });
      },
      p.bias(head));
  const auto row_of = [&](int row) { return first_query + row < p.tokens ? first_query + row : -1; };
  unroll<kParts, 2>([&](int m, int i) {
    const int row = row_of(Rows::row(m, i));
    if (x.lse == nullptr || row < 0 || lane % 4 != 0) return;
    x.lse[static_cast<int64_t>(row) * p.heads + head] =
        rows.sees[m][i] ? rows.largest[m][i] * p.scale + logf(rows.sum[m][i]) : 0.0f;
  });
  if (x.out.data != nullptr) {
    mma::store_results<kDim, kParts>(rows, static_cast<bf16*>(x.out.data), p.heads, head, p.dim, row_of);
  }
}

template <int kDim, int kParts, bool kDropout>
void launch(const AttentionProblem& p, const AttentionOperands& x, cudaStream_t stream) {
  constexpr size_t kBytes = mma::kForwardBytes<kDim, kParts>;
  allow_shared(attention_mma_kernel<kDim, kParts, kDropout>, kBytes);
  constexpr int kQueries = mma::kForwardQueries<kParts>;
  const dim3 grid(static_cast<unsigned>((p.tokens + kQueries - 1) / kQueries), static_cast<unsigned>(p.heads));
  attention_mma_kernel<kDim, kParts, kDropout><<<grid, mma::kForwardThreads, kBytes, stream>>>(p, x);
}

}  // namespace

void launch_attention_mma(const AttentionProblem& p, const AttentionOperands& x, cudaStream_t stream) {
  if (p.dim <= 64) {
    p.dropout ? launch<64, 2, true>(p, x, stream) : launch<64, 2, false>(p, x, stream);
  } else {
    p.dropout ? launch<128, 1, true>(p, x, stream) : launch<128, 2, false>(p, x, stream);
  }
}

}  // namespace octet::cuda
