// The gradient of attention of bf16 by Hopper's products of a warp group, with dropout by bytes or none: the two passes
// of tiled.cu, a group of 64 own rows a block.
#include "kernels/cuda/attention/group_tiles.cuh"

namespace octet::cuda {
namespace {

using namespace group;

// delta[t, h] = dout . out: `lanes` threads a row, a power of two, 8 elements each.
__global__ void attention_delta_vectors_kernel(AttentionProblem p, AttentionOperands x, float* delta, int lanes) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, row = thread / lanes;
  const int d = static_cast<int>(thread % lanes) * 8;
  float sum = 0;
  if (row < static_cast<int64_t>(p.tokens) * p.heads && d < p.dim) {
    const int64_t at = row * p.dim + d;
    float a[8], b[8];
    load<8>(x.out, at, a), load<8>(x.dout, at, b);
    unroll<8>([&](int i) { sum = fmaf(a[i], b[i], sum); });
  }
  for (int apart = lanes / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, apart);
  if (d == 0 && row < static_cast<int64_t>(p.tokens) * p.heads) delta[row] = sum;
}

// Bytes of shared memory: own rows twice; stages of other rows twice, and where keys own of lse and delta f32[2][64];
// two stages of kept bytes u32[4 warps][256]. With three stages, sums of a step are awaited in the next one.
template <int kDim, bool kOwnIsKey, bool kDropout>
struct GradientShape {
  static constexpr int kTile = kTileBytes<kDim>, kStages = kDim == 64 ? 3 : 2, kNumbers = (2 + 2 * kStages) * kTile,
                       kKept = kNumbers + kStages * 2 * kRows * 4;
  static constexpr size_t kBytes = !kOwnIsKey ? kNumbers : kDropout ? kKept + 2 * 4096 : kKept;
};

template <int kDim, bool kOwnIsKey, bool kDropout>
__global__ void __launch_bounds__(kGroup, kDim == 64 ? 3 : 2)
    attention_grad_wgmma_kernel(AttentionProblem p, AttentionOperands x, const float* delta) {
  using S = GradientShape<kDim, kOwnIsKey, kDropout>;
  constexpr int kTile = S::kTile;
  extern __shared__ __align__(1024) uint8_t shared_tiles[];
  __shared__ VisibleRows visible;
  const Lane of;
  const uint32_t own = shared_address(shared_tiles), own_beside = own + kTile;  // q, dout; or k, v
  const auto other_of = [&](int step) {
    return own + (2 + step % S::kStages * 2) * kTile;
  };  // k, then v; or q, then dout
  const auto numbers_of = [&](int step) {
    return reinterpret_cast<float*>(shared_tiles + S::kNumbers) + step % S::kStages * 2 * kRows;
  };
  const auto kept_of = [&](int step) { return reinterpret_cast<uint32_t*>(shared_tiles + S::kKept) + step % 2 * 1024; };
  // Longest walks first: the last queries, the first keys.
  const int first_own = static_cast<int>(kOwnIsKey ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * kRows;
  const int own_head = static_cast<int>(blockIdx.y), own_heads = kOwnIsKey ? p.kv_heads : p.heads;
  const int kv_head = kOwnIsKey ? own_head : own_head / p.group();
  const int first_head = kOwnIsKey ? own_head * p.group() : own_head;
  visible.template find<kOwnIsKey>(p, x.segments, first_own);
  ByteStream site{};
  if constexpr (kDropout) site = ByteStream::of(p, x.rng);

  const auto load = [&](uint32_t to, const Operand& from, int first, int heads, int head) {
    load_panels<kDim, kGroup>(to, from, first, p.tokens, heads, head, p.dim);
  };
  // The walk over the tiles of one head after the other (queries that share keys have several).
  struct Place {
    int head, first;
  };
  const int first_tile = visible.first / kRows * kRows, last = visible.last;
  const int tiles = visible.first < last ? (last - first_tile + kRows - 1) / kRows : 0;
  const int steps_all = tiles * (kOwnIsKey ? p.group() : 1);
  const auto behind = [&](const Place& at) {
    return at.first + kRows < last ? Place{at.head, at.first + kRows} : Place{at.head + 1, first_tile};
  };
  const auto load_step = [&](int step, const Place& at) {
    if (step < steps_all) {
      const int heads = kOwnIsKey ? p.heads : p.kv_heads, head = kOwnIsKey ? at.head : kv_head;
      load(other_of(step), kOwnIsKey ? x.q : x.k, at.first, heads, head);
      load(other_of(step) + kTile, kOwnIsKey ? x.dout : x.v, at.first, heads, head);
      if constexpr (kOwnIsKey) {  // half of the threads lse, the others delta
        const int thread = thread_again(), query = at.first + thread % kRows;
        const bool exists = query < p.tokens;
        const float* from = thread < kRows ? x.lse : delta;
        copy4_async(shared_address(numbers_of(step) + thread),
                    exists ? from + static_cast<int64_t>(query) * p.heads + at.head : from, exists);
      }
    }
    mma::commit_copies();
  };
  // Keys own: warp m draws for queries 16 m .. 16 m + 15 of the tile and all keys of the block. A warp's words for the
  // keys of warp w lie in plane w, [m][e][(query % 8) / 2][key % 8].
  const auto draw_step = [&](int step, const Place& at) {
    if (step >= steps_all) return;
    const int thread = thread_again(), lane = thread % 32, warp = thread / 32;
    const uint32_t row = draw_row(p, at.head, at.first + 16 * warp);
    const auto within = static_cast<uint32_t>(first_own + lane / 8 * 16 + lane % 8);
    uint32_t words[2][4];
    site.draw(row, {within, within + 8}, words);
    unroll<2, 4>([&](int e, int w) { kept_of(step)[w * 256 + (warp * 2 + e) * 32 + lane] = words[e][w]; });
  };

  load(own, kOwnIsKey ? x.k : x.q, first_own, own_heads, own_head);
  load(own_beside, kOwnIsKey ? x.v : x.dout, first_own, own_heads, own_head);
  Place at{first_head, first_tile};
  load_step(0, at);
  if constexpr (kOwnIsKey && kDropout) draw_step(0, at);

  const float steps = p.scale * kLog2E;  // scores as powers of two
  float sums[kPanels<kDim>][32] = {}, value_sums[kOwnIsKey ? kPanels<kDim> : 1][32] = {};
  int low[2], high[2];
  float own_lse[2] = {}, own_delta[2] = {};
  unroll<2>([&](int r) {
    const int row = of.row + 8 * r, token = first_own + row;
    low[r] = visible.low[row], high[r] = visible.high[row];
    if (!kOwnIsKey && token < p.tokens) {
      own_lse[r] = x.lse[static_cast<int64_t>(token) * p.heads + own_head] * kLog2E;
      own_delta[r] = delta[static_cast<int64_t>(token) * p.heads + own_head];
    }
  });
  uint32_t draws = 0;
  if constexpr (kDropout && !kOwnIsKey) draws = draw_row(p, own_head, first_own + 16 * of.warp);

  const auto wait_sums = [&] {
    wgmma::wait<0>();
    unroll<kPanels<kDim>>([&](int n) {
      wgmma::pin(sums[n]);
      if constexpr (kOwnIsKey) wgmma::pin(value_sums[n]);
    });
  };

#pragma unroll 1
  for (int step = 0; step < steps_all; ++step) {
    mma::wait_copies<0>();
    wgmma::fence_shared();
    __syncthreads();  // all have read the stage to be filled
    load_step(step + 1, behind(at));
    KeptBytes<kOwnIsKey> kept;
    if constexpr (kDropout && kOwnIsKey) {
      draw_step(step + 1, behind(at));
    } else if constexpr (kDropout) {
      const auto within = static_cast<uint32_t>(at.first + 8 * of.g + 2 * of.c);
      site.draw(draws, {within, within + 1}, kept.words);
      unroll<2, 4>([&](int e, int i) { asm volatile("" : "+r"(kept.words[e][i])); });  // here, beside the products
    }
    if (S::kStages > 2) wait_sums();
    const uint32_t other = other_of(step), other_beside = other + kTile;
    float probabilities[32], gradients[32];
    start_rows<kDim>(probabilities, own, other);
    start_rows<kDim>(gradients, own_beside, other_beside);

    const bool whole = see_all(at.first, low, high);
    const auto numbers = [&](int n, int which) {
      return *reinterpret_cast<const float2*>(numbers_of(step) + which * kRows + 8 * n + 2 * of.c);
    };
    wgmma::wait<1>();
    wgmma::pin(probabilities);
    if (const float bias = p.bias(at.head); bias != 0) {
      unroll<32>([&](int n) {
        const int distance = at.first + n / 4 * 8 + 2 * of.c + n % 2 - first_own - of.row - n % 4 / 2 * 8;
        probabilities[n] = fmaf(bias, static_cast<float>(kOwnIsKey ? -distance : distance), probabilities[n]);
      });
    }
    const auto exponentials = [&](auto masked) {
      unroll<8>([&](int n) {
        float lse[2] = {};
        if constexpr (kOwnIsKey) {
          const float2 two = numbers(n, 0);
          lse[0] = two.x * kLog2E, lse[1] = two.y * kLog2E;
        }
        unroll<2, 2>([&](int r, int e) {
          float& score = probabilities[4 * n + 2 * r + e];
          score = exp2_fast(fmaf(score, steps, kOwnIsKey ? -lse[e] : -own_lse[r]));
          const int column = at.first + 8 * n + 2 * of.c + e;
          if (decltype(masked)::value && (column < low[r] || column >= high[r])) score = 0;
        });
      });
    };
    whole ? exponentials(std::false_type{}) : exponentials(std::true_type{});
    wgmma::wait<0>();
    wgmma::pin(gradients);
    uint32_t weights[4][4], value_weights[4][4];
    const auto slopes = [&](auto masked) {
      unroll<8>([&](int n) {
        float2 row_delta = {0, 0};
        if constexpr (kOwnIsKey) row_delta = numbers(n, 1);
        if constexpr (kOwnIsKey && kDropout) {
          unroll<2>([&](int e) {  // late: registers are few
            kept.words[e][n / 2] = kept_of(step)[of.warp * 256 + (n / 2 * 2 + e) * 32 + of.c * 8 + of.g];
          });
        }
        unroll<2>([&](int r) {
          const float* two = probabilities + 4 * n + 2 * r;
          float* slope = gradients + 4 * n + 2 * r;
          unroll<2>([&](int e) {
            if constexpr (kDropout) slope[e] = __uint_as_float(__float_as_uint(slope[e]) & kept.one(n, r, e));
            const float less = kOwnIsKey ? (e == 0 ? row_delta.x : row_delta.y) : own_delta[r];
            slope[e] = two[e] * fmaf(slope[e], p.kept_factor, -less);
            if (decltype(masked)::value && two[e] == 0) slope[e] = 0;  // whatever lies there
          });
          weights[n / 2][n % 2 * 2 + r] = mma::pack(slope[0], slope[1]);
          if constexpr (kOwnIsKey) {
            uint32_t& pair = value_weights[n / 2][n % 2 * 2 + r];
            pair = mma::pack(two[0], two[1]);
            if constexpr (kDropout) pair &= kept.pair(n, r);
          }
        });
      });
    };
    whole ? slopes(std::false_type{}) : slopes(std::true_type{});
    if constexpr (kOwnIsKey) start_columns<kDim>(value_sums, value_weights, other_beside);
    start_columns<kDim>(sums, weights, other);
    if (S::kStages == 2) wait_sums();
    at = behind(at);
  }
  wait_sums();
  mma::wait_copies<0>();
  constexpr bool kExists[2] = {true, true};
  const float scales[2] = {p.scale, p.scale}, factors[2] = {p.kept_factor, p.kept_factor};
  store_sums<kDim>(p, kOwnIsKey ? x.dk : x.dq, of, first_own, own_heads, own_head, sums, scales, kExists);
  if constexpr (kOwnIsKey) store_sums<kDim>(p, x.dv, of, first_own, own_heads, own_head, value_sums, factors, kExists);
}

template <int kDim, bool kOwnIsKey, bool kDropout>
void launch_gradient(const AttentionProblem& p, const AttentionOperands& x, const float* delta, cudaStream_t stream) {
  const Grid grid{own_tiles(p, kOwnIsKey ? p.kv_heads : p.heads), kGroup,
                  GradientShape<kDim, kOwnIsKey, kDropout>::kBytes};
  launch_ordered(attention_grad_wgmma_kernel<kDim, kOwnIsKey, kDropout>, grid, stream, p, x, delta);
}

template <int kDim, bool kDropout>
void launch_passes(const AttentionProblem& p, const AttentionOperands& x, const float* delta, cudaStream_t stream) {
  if (x.dq.data != nullptr) launch_gradient<kDim, false, kDropout>(p, x, delta, stream);
  if (x.dk.data != nullptr || x.dv.data != nullptr) launch_gradient<kDim, true, kDropout>(p, x, delta, stream);
}

}  // namespace

void launch_attention_grad_wgmma(const AttentionProblem& p, const AttentionOperands& x, float* delta,
                                 cudaStream_t stream) {
  int lanes = 1;
  while (8 * lanes < p.dim) lanes *= 2;
  const int64_t threads = static_cast<int64_t>(p.tokens) * p.heads * lanes;
  attention_delta_vectors_kernel<<<static_cast<unsigned>((threads + 255) / 256), 256, 0, stream>>>(p, x, delta, lanes);
  if (p.dim <= 64) {
    p.dropout ? launch_passes<64, true>(p, x, delta, stream) : launch_passes<64, false>(p, x, delta, stream);
  } else {
    p.dropout ? launch_passes<128, true>(p, x, delta, stream) : launch_passes<128, false>(p, x, delta, stream);
  }
}

}  // namespace octet::cuda
