// Gradient of attention of bf16 on tensor cores: the two passes of tiled_gradient.cu, 64 own rows a block.
#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/attention/mma_dropout.cuh"
#include "kernels/cuda/attention/tiles.cuh"

namespace octet::cuda {
namespace {

constexpr int kThreads = 128;
constexpr float kLog2e = 1.44269504088896341f;

template <int kDim, bool kOwnIsKey>
struct GradientShape {
  static constexpr int kOthers = kOwnIsKey && kDim > 64 ? 32 : 64;
  // Own rows twice, two stages of other rows twice; per other row, lse and delta.
  static constexpr size_t kBytes = (2 * kOwn + 4 * kOthers) * kDim * sizeof(bf16) + 2 * kOthers * 2 * sizeof(float);
};

// Bit r: key warp_row + r of the block's keys is kept for this query. Keys of several segments count from their starts.
__device__ __noinline__ uint32_t kept_keys(const AttentionProblem& p, const mma::DropoutBits& site,
                                           const VisibleRows& visible, int head, int query, int first_own,
                                           int warp_row) {
  uint32_t bits = 0;
  for (int r = 0; r < 16; ++r) {
    const int64_t element = (static_cast<int64_t>(head) * p.tokens + query) * p.max_length + first_own + warp_row + r -
                            visible.start[warp_row + r];
    bits |= (site.kept(element >> 2) >> (element & 3) & 1) << r;
  }
  return bits;
}

template <int kDim, bool kOwnIsKey, bool kDropout>
__global__ void __launch_bounds__(kThreads)
    attention_grad_mma_kernel(AttentionProblem p, AttentionOperands x, const float* delta) {
  constexpr int kOthers = GradientShape<kDim, kOwnIsKey>::kOthers, kTile = kOthers * kDim;
  extern __shared__ __align__(256) uint4 shared_pieces[];
  bf16* own = reinterpret_cast<bf16*>(shared_pieces);  // [kOwn][kDim]: q, or k
  bf16* own_beside = own + kOwn * kDim;                // dout, or v
  bf16* others = own_beside + kOwn * kDim;             // two stages of [kOthers][kDim]: k, or q; then v, or dout
  float* numbers = reinterpret_cast<float*>(others + 4 * kTile);  // keys own: two stages of lse, delta [kOthers]
  __shared__ VisibleRows visible;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  // Longest walks first: the last queries, the first keys.
  const int first_own = static_cast<int>(kOwnIsKey ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * kOwn;
  const int own_head = static_cast<int>(blockIdx.y), own_heads = kOwnIsKey ? p.kv_heads : p.heads;
  const int kv_head = kOwnIsKey ? own_head : own_head / p.group();
  const int first_head = kOwnIsKey ? own_head * p.group() : own_head;
  visible.find<kOwnIsKey>(p, x.segments, first_own);
  mma::DropoutBits site{};
  bool one_segment = true;  // has all keys of the warp
  if constexpr (kDropout) {
    site = mma::DropoutBits::of(p, x.rng);
    one_segment = __all_sync(kWholeWarp, visible.start[warp_row] == visible.start[warp_row + lane % 16]);
  }

  const auto load = [&](auto rows, bf16* tile, const Operand& from, int first, int heads, int head) {
    mma::load_tile_async<kDim, decltype(rows)::value, kThreads>(
        tile, static_cast<const bf16*>(from.data), heads, head, p.dim,
        [=, tokens = p.tokens](int row) { return first + row < tokens ? first + row : -1; });
  };
  // Step n walks the tiles of one head after the other (queries that share keys have several).
  const int first_tile = visible.first / kOthers;
  const int tiles = visible.first < visible.last ? (visible.last + kOthers - 1) / kOthers - first_tile : 0;
  const int steps = tiles * (kOwnIsKey ? p.group() : 1);
  const auto load_step = [&](int step) {
    if (step < steps) {
      const int head = first_head + step / tiles, first = (first_tile + step % tiles) * kOthers;
      bf16* to = others + step % 2 * 2 * kTile;
      load(Width<kOthers>{}, to, kOwnIsKey ? x.q : x.k, first, kOwnIsKey ? p.heads : p.kv_heads,
           kOwnIsKey ? head : kv_head);
      load(Width<kOthers>{}, to + kTile, kOwnIsKey ? x.dout : x.v, first, kOwnIsKey ? p.heads : p.kv_heads,
           kOwnIsKey ? head : kv_head);
      if (kOwnIsKey && threadIdx.x < kOthers) {
        const int query = first + static_cast<int>(threadIdx.x);
        const int64_t row = static_cast<int64_t>(query) * p.heads + head;
        float* to_numbers = numbers + step % 2 * 2 * kOthers + threadIdx.x;
        to_numbers[0] = query < p.tokens ? x.lse[row] : 0.0f;
        to_numbers[kOthers] = query < p.tokens ? delta[row] : 0.0f;
      }
    }
    mma::commit_copies();
  };
  load(Width<kOwn>{}, own, kOwnIsKey ? x.k : x.q, first_own, own_heads, own_head);
  load(Width<kOwn>{}, own_beside, kOwnIsKey ? x.v : x.dout, first_own, own_heads, own_head);
  load_step(0);

  float sums[1][kDim / 8][4] = {}, value_sums[1][kDim / 8][4] = {};
  int low[2], high[2], start[2];
  float own_lse[2] = {}, own_delta[2] = {};
  unroll<2>([&](int i) {
    const int row = warp_row + lane / 4 + 8 * i, token = first_own + row;
    low[i] = visible.low[row], high[i] = visible.high[row], start[i] = visible.start[row];
    if (!kOwnIsKey && token < p.tokens) {
      own_lse[i] = x.lse[static_cast<int64_t>(token) * p.heads + own_head];
      own_delta[i] = delta[static_cast<int64_t>(token) * p.heads + own_head];
    }
  });

  for (int step = 0; step < steps; ++step) {
    __syncthreads();  // the stage to be filled was read in the step before
    load_step(step + 1);
    mma::wait_copies<1>();
    __syncthreads();
    const int head = first_head + step / tiles, first = (first_tile + step % tiles) * kOthers;
    const bf16 *other = others + step % 2 * 2 * kTile, *other_beside = other + kTile;
    const float* other_numbers = numbers + step % 2 * 2 * kOthers;
    const float bias = p.bias(head);

    // Dropout. Queries own: bit c of kept[i] is key first + c for own row i. Keys own: a lane draws the warp's 16 keys
    // for queries first + lane and first + lane + 32, bit r is own row warp_row + r.
    mma::Kept64 kept[2];
    if constexpr (kDropout) {
      unroll<2>([&](int i) {
        const int query = kOwnIsKey ? first + lane + 32 * i : first_own + warp_row + lane / 4 + 8 * i;
        const int64_t row = (static_cast<int64_t>(head) * p.tokens + query) * p.max_length;
        if constexpr (!kOwnIsKey) {
          kept[i] = mma::kept_64(site, row + first - start[i], lane % 4 * 2);
        } else if (32 * i < kOthers) {
          kept[i].low = one_segment ? mma::kept_16(site, row + first_own + warp_row - visible.start[warp_row])
                                    : kept_keys(p, site, visible, head, query, first_own, warp_row);
        }
      });
    }

    float probabilities[1][kOthers / 8][4] = {}, gradients[1][kOthers / 8][4] = {};
    mma::multiply_rows<kDim, kOthers, 1>(
        probabilities, other, [&](int, int k, uint32_t(&a)[4]) { mma::left_fragment<kDim>(own, warp_row, k, a); });
    mma::multiply_rows<kDim, kOthers, 1>(gradients, other_beside, [&](int, int k, uint32_t(&a)[4]) {
      mma::left_fragment<kDim>(own_beside, warp_row, k, a);
    });

    if (bias != 0) {
      unroll<kOthers / 8, 4>([&](int n, int e) {
        const int own_row = first_own + warp_row + lane / 4 + e / 2 * 8,
                  other_row = first + 8 * n + lane % 4 * 2 + e % 2;
        const auto distance = static_cast<float>(kOwnIsKey ? own_row - other_row : other_row - own_row);
        probabilities[0][n][e] = fmaf(bias, distance, probabilities[0][n][e]);
      });
    }

    unroll<kOthers / 8, 2>([&](int n, int e) {
      const int column = 8 * n + lane % 4 * 2 + e, other_row = first + column;
      uint32_t keys = 0;
      if constexpr (kOwnIsKey && kDropout) keys = __shfl_sync(kWholeWarp, kept[n / 4].low, column % 32) >> (lane / 4);
      unroll<2>([&](int i) {
        float &probability = probabilities[0][n][2 * i + e], &gradient = gradients[0][n][2 * i + e];
        const float lse = kOwnIsKey ? other_numbers[column] : own_lse[i];
        const float row_delta = kOwnIsKey ? other_numbers[kOthers + column] : own_delta[i];
        float keep = 1;
        if constexpr (kDropout) {
          const bool is_kept = kOwnIsKey ? (keys >> (8 * i) & 1) != 0 : kept[i][8 * n + e];
          keep = is_kept ? p.kept_factor : 0.0f;
        }
        const bool sees = other_row >= low[i] && other_row < high[i];
        const float exact = sees ? mma::power_of_two(fmaf(probability, p.scale * kLog2e, -lse * kLog2e)) : 0.0f;
        gradient = sees ? exact * fmaf(gradient, keep, -row_delta) : 0.0f;
        probability = exact * keep;
      });
    });
    mma::add_weighted_rows<kDim, kOthers, 1>(sums, gradients, other);
    if constexpr (kOwnIsKey) mma::add_weighted_rows<kDim, kOthers, 1>(value_sums, probabilities, other_beside);
  }
  mma::wait_copies<0>();

  const auto store = [&](const Operand& to, const auto& from, float factor) {
    if (to.data == nullptr) return;
    unroll<2>([&](int i) {
      const int row = first_own + warp_row + lane / 4 + 8 * i;
      if (row >= p.tokens) return;
      bf16* at = static_cast<bf16*>(to.data) + (static_cast<int64_t>(row) * own_heads + own_head) * p.dim;
      unroll<kDim / 8>([&](int n) {
        const int d = 8 * n + lane % 4 * 2;
        if (d < p.dim) {
          *reinterpret_cast<uint32_t*>(at + d) = mma::pack(from[0][n][2 * i] * factor, from[0][n][2 * i + 1] * factor);
        }
      });
    });
  };
  store(kOwnIsKey ? x.dk : x.dq, sums, p.scale);
  if constexpr (kOwnIsKey) store(x.dv, value_sums, 1.0f);
}

template <int kDim, bool kOwnIsKey, bool kDropout>
void launch(const AttentionProblem& p, const AttentionOperands& x, const float* delta, cudaStream_t stream) {
  constexpr size_t kBytes = GradientShape<kDim, kOwnIsKey>::kBytes;
  allow_shared(attention_grad_mma_kernel<kDim, kOwnIsKey, kDropout>, kBytes);
  const dim3 grid(static_cast<unsigned>((p.tokens + kOwn - 1) / kOwn),
                  static_cast<unsigned>(kOwnIsKey ? p.kv_heads : p.heads));
  attention_grad_mma_kernel<kDim, kOwnIsKey, kDropout><<<grid, kThreads, kBytes, stream>>>(p, x, delta);
}

template <int kDim, bool kDropout>
void launch_passes(const AttentionProblem& p, const AttentionOperands& x, const float* delta, cudaStream_t stream) {
  if (x.dq.data != nullptr) launch<kDim, false, kDropout>(p, x, delta, stream);
  if (x.dk.data != nullptr || x.dv.data != nullptr) launch<kDim, true, kDropout>(p, x, delta, stream);
}

}  // namespace

void launch_attention_grad_mma(const AttentionProblem& p, const AttentionOperands& x, const float* delta,
                               cudaStream_t stream) {
  if (p.dim <= 64) {
    p.dropout ? launch_passes<64, true>(p, x, delta, stream) : launch_passes<64, false>(p, x, delta, stream);
  } else {
    p.dropout ? launch_passes<128, true>(p, x, delta, stream) : launch_passes<128, false>(p, x, delta, stream);
  }
}

}  // namespace octet::cuda
