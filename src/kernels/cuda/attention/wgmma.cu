// Attention of bf16 by Hopper's products of a warp group, with dropout by bytes or none: 64 queries a group, two groups
// a block, which share tiles of keys and values. Tiles come by cp.async a step ahead; values of a tile are multiplied
// while the scores of the next are.
#include "kernels/cuda/attention/group_tiles.cuh"

namespace octet::cuda {
namespace {

using namespace group;

constexpr int kGroups = 2, kStages = 3;

template <int kDim, bool kDropout>
__global__ void __launch_bounds__(kGroups* kGroup, kDim == 64 ? 2 : 1)
    attention_wgmma_kernel(AttentionProblem p, AttentionOperands x) {
  constexpr int kTile = kTileBytes<kDim>;
  extern __shared__ __align__(1024) uint8_t shared_tiles[];  // of kGroups tiles of queries; of stages of keys, values
  __shared__ VisibleRows visible_rows[kGroups];
  const Lane of;
  const int group = static_cast<int>(warp_max(threadIdx.x / kGroup));  // in a uniform register
  const uint32_t shared = shared_address(shared_tiles), queries = shared + group * kTile;
  const auto keys_of = [&](int tile) { return shared + (kGroups + tile % kStages * 2) * kTile; };
  // The last queries see most keys: they start first.
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kGroups * kRows;
  const int own = first_query + group * kRows;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / p.group();
  VisibleRows& visible = visible_rows[group];
  visible.template find<false>(p, x.segments, own, static_cast<int>(threadIdx.x) % kGroup);
  int first = p.tokens, last = 0;
  unroll<kGroups>([&](int n) { first = min(first, visible_rows[n].first), last = max(last, visible_rows[n].last); });
  first = first / kRows * kRows;
  const int tiles = first < last ? (last - first + kRows - 1) / kRows : 0;
  const bool sees_any = visible.first < visible.last;
  const int begin = sees_any ? (visible.first - first) / kRows : 0;
  const int end = sees_any ? (visible.last - first + kRows - 1) / kRows : 0;

  const auto load = [&](uint32_t to, const Operand& from, int row, int heads, int of_head) {
    load_panels<kDim, kGroups * kGroup>(to, from, row, p.tokens, heads, of_head, p.dim);
  };
  const auto load_step = [&](int tile) {
    if (tile < tiles) {
      load(keys_of(tile), x.k, first + tile * kRows, p.kv_heads, kv_head);
      load(keys_of(tile) + kTile, x.v, first + tile * kRows, p.kv_heads, kv_head);
    }
    mma::commit_copies();
  };
  unroll<kGroups>([&](int n) { load(shared + n * kTile, x.q, first_query + n * kRows, p.heads, head); });
  load_step(0);

  const float bias = p.bias(head), steps = p.scale * kLog2E;  // steps: scores as powers of two
  int low[2], high[2];
  unroll<2>([&](int r) { low[r] = visible.low[of.row + 8 * r], high[r] = visible.high[of.row + 8 * r]; });
  float scores[32], sums[kPanels<kDim>][32] = {}, largest[2] = {-INFINITY, -INFINITY}, denominator[2] = {0, 0};
  uint32_t weights[4][4];
  ByteStream site{};
  uint32_t draws = 0;
  if constexpr (kDropout) site = ByteStream::of(p, x.rng), draws = draw_row(p, head, own + 16 * of.warp);

#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    mma::wait_copies<0>();
    wgmma::fence_shared();
    __syncthreads();
    load_step(tile + 1);
    if (tile < begin || tile >= end) {
      wgmma::wait<0>();
      continue;
    }
    const int key = first + tile * kRows;
    start_rows<kDim>(scores, queries, keys_of(tile));
    KeptBytes<false> kept;
    if constexpr (kDropout) {
      const auto within = static_cast<uint32_t>(key + 8 * of.g + 2 * of.c);
      site.draw(draws, {within, within + 1}, kept.words);
    }
    wgmma::wait<0>();  // for values of the tile before, too
    wgmma::pin(scores);
    unroll<kPanels<kDim>>([&](int n) { wgmma::pin(sums[n]); });
    if (bias != 0) {  // times key - query, before scores are scaled: a query is the last key it sees
      unroll<32>([&](int n) {
        const int distance = key + n / 4 * 8 + 2 * of.c + n % 2 + 1 - high[n % 4 / 2];
        scores[n] = fmaf(bias, static_cast<float>(distance), scores[n]);
      });
    }
    if (!see_all(key, low, high)) {
      unroll<32>([&](int n) {
        const int at = key + n / 4 * 8 + 2 * of.c + n % 2;
        if (at < low[n % 4 / 2] || at >= high[n % 4 / 2]) scores[n] = -INFINITY;
      });
    }
    unroll<2>([&](int r) {
      float top = largest[r];
      unroll<8>([&](int n) { top = fmaxf(top, fmaxf(scores[4 * n + 2 * r], scores[4 * n + 2 * r + 1])); });
      top = mma::quad_max(top);
      const float anchor = top == -INFINITY ? 0.0f : top * steps;  // rows that see nothing yet
      const float shrink = exp2_fast(fmaf(largest[r], steps, -anchor));
      largest[r] = top;
      float added[2] = {0, 0};
      unroll<8, 2>([&](int n, int e) {
        float& score = scores[4 * n + 2 * r + e];
        score = exp2_fast(fmaf(score, steps, -anchor));
        added[e] += score;
      });
      denominator[r] = fmaf(denominator[r], shrink, added[0] + added[1]);  // of this lane's columns
      unroll<kPanels<kDim>, 8, 2>([&](int n, int m, int e) { sums[n][4 * m + 2 * r + e] *= shrink; });
    });
    unroll<4, 4>([&](int k, int e) {
      weights[k][e] = mma::pack(scores[8 * k + 2 * e], scores[8 * k + 2 * e + 1]);
      if constexpr (kDropout) weights[k][e] &= kept.pair(2 * k + e / 2, e % 2);
    });
    start_columns<kDim>(sums, weights, keys_of(tile) + kTile);
  }
  wgmma::wait<0>();
  unroll<kPanels<kDim>>([&](int n) { wgmma::pin(sums[n]); });
  mma::wait_copies<0>();

  float factors[2];
  bool sees[2];
  unroll<2>([&](int r) {
    const float sum = mma::quad_sum(denominator[r]);
    const int row = own + of.row + 8 * r;
    sees[r] = low[r] < high[r];
    factors[r] = p.kept_factor / sum;
    if (x.lse != nullptr && row < p.tokens && of.c == 0)
      x.lse[static_cast<int64_t>(row) * p.heads + head] = sees[r] ? largest[r] * p.scale + logf(sum) : 0.0f;
  });
  store_sums<kDim>(p, x.out, of, own, p.heads, head, sums, factors, sees);
}

template <int kDim, bool kDropout>
void launch_forward(const AttentionProblem& p, const AttentionOperands& x, cudaStream_t stream) {
  constexpr size_t kBytes = (kGroups + 2 * kStages) * kTileBytes<kDim>;
  launch_ordered(attention_wgmma_kernel<kDim, kDropout>,
                 {own_tiles<kGroups * kRows>(p, p.heads), kGroups * kGroup, kBytes}, stream, p, x);
}

}  // namespace

void launch_attention_wgmma(const AttentionProblem& p, const AttentionOperands& x, cudaStream_t stream) {
  if (p.dim <= 64) {
    p.dropout ? launch_forward<64, true>(p, x, stream) : launch_forward<64, false>(p, x, stream);
  } else {
    p.dropout ? launch_forward<128, true>(p, x, stream) : launch_forward<128, false>(p, x, stream);
  }
}

}  // namespace octet::cuda
