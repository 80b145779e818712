// Attention and its gradient of bf16 on tensor cores, with dropout by words. Forward: 128 queries of a head a block, 64
// of wide heads, online softmax over tiles of keys. Gradient: the two passes of tiled.cu, 64 own rows a block.
#include "kernels/cuda/attention/tiles.cuh"
#include "kernels/cuda/common/mma.cuh"

namespace octet::cuda {
namespace {

using namespace mma;

constexpr int kThreads = 128, kKeys = 64;  // of a block; of a tile

// --- dropout's bits for fragments: runs of neighbouring elements, a Philox block of four words at a time. Lanes draw
// before the products of a tile, while no scores are in registers.
struct DropoutBits {
  RandomStream stream;
  uint32_t last_dropped;  // a word is kept when it is larger: (word >> 8) >= threshold, also for 2^24

  __device__ static DropoutBits of(const AttentionProblem& p, const int64_t* rng) {
    return {RandomStream::of(rng, p.key), (p.threshold << 8) - 1};
  }
  // Bit i: element 4 block + i is kept.
  __device__ __forceinline__ uint32_t kept(int64_t block) const {
    const uint4 w = stream.words(static_cast<uint64_t>(block));
    return (w.x > last_dropped ? 1u : 0u) | (w.y > last_dropped ? 2u : 0u) | (w.z > last_dropped ? 4u : 0u) |
           (w.w > last_dropped ? 8u : 0u);
  }
};

// Of 64 elements: bit i of low is element i, bit i of high element 32 + i.
struct Kept64 {
  uint32_t low = 0, high = 0;
  __device__ __forceinline__ bool operator[](int i) const { return ((i < 32 ? low : high) >> (i % 32) & 1) != 0; }
};

// Elements [first, first + 64): the four lanes of a quad share the work and all get the bits, shifted down by `shift`
// (< 8, at the cost of the last `shift` of either half); they must give the same `first`. Negative elements give any
// bits.
__device__ __forceinline__ Kept64 kept_64(const DropoutBits& site, int64_t first, int shift) {
  const int lane = static_cast<int>(threadIdx.x) % 4, skip = static_cast<int>(first & 3);
  const int64_t block = first >> 2;
  Kept64 bits;
  bits.low = (site.kept(block + lane) | site.kept(block + 4 + lane) << 16) << (4 * lane);
  bits.high = (site.kept(block + 8 + lane) | site.kept(block + 12 + lane) << 16) << (4 * lane);
  bits.low |= __shfl_xor_sync(0xffffffffu, bits.low, 1);
  bits.high |= __shfl_xor_sync(0xffffffffu, bits.high, 1);
  bits.low |= __shfl_xor_sync(0xffffffffu, bits.low, 2);
  bits.high |= __shfl_xor_sync(0xffffffffu, bits.high, 2);
  if (skip != 0) {  // begins inside a block
    bits.low = __funnelshift_r(bits.low, bits.high, skip);
    bits.high = __funnelshift_r(bits.high, site.kept(block + 16), skip);
  }
  bits.low >>= shift, bits.high >>= shift;
  return bits;
}

// Bit i: element first + i is kept, i < 16.
__device__ __forceinline__ uint32_t kept_16(const DropoutBits& site, int64_t first) {
  const int64_t block = first >> 2;
  uint32_t bits = site.kept(block) | site.kept(block + 1) << 4 | site.kept(block + 2) << 8 | site.kept(block + 3) << 12;
  if ((first & 3) != 0) bits |= site.kept(block + 4) << 16;
  return bits >> (first & 3);
}

// --- forward: a warp has kParts times 16 queries; a lane two of every 16.
template <int kDim, int kParts>
__global__ void __launch_bounds__(kThreads, kParts == 1 ? 3 : 1)
    attention_mma_kernel(AttentionProblem p, AttentionOperands x) {
  constexpr int kQueries = 64 * kParts;
  extern __shared__ __align__(256) uint4 shared_pieces[];  // [kQueries + 2 kKeys][kDim]: queries, keys, values
  bf16 *queries = reinterpret_cast<bf16*>(shared_pieces), *keys = queries + kQueries * kDim,
       *values = keys + kKeys * kDim;
  __shared__ VisibleRowsOf<kQueries> visible;
  // The last queries see most keys: they start first.
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kQueries;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / p.group();
  visible.template find<false>(p, x.segments, first_query);
  const DropoutBits site = DropoutBits::of(p, x.rng);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * kParts * 16;
  const auto row_of = [&](int m, int i) { return warp_row + 16 * m + lane / 4 + 8 * i; };  // of this lane, in the block
  const auto load_keys = [&](bf16* tile, const Operand& from, int first) {
    load_tile_async<kDim, kKeys, kThreads>(tile, from, first, p.tokens, p.kv_heads, kv_head, p.dim);
  };

  float result[kParts][kDim / 8][4] = {}, largest[kParts][2], sum[kParts][2] = {};
  const float bias = p.bias(head), steps = p.scale * kLog2E;  // steps: scores as powers of two
  int low[kParts][2], high[kParts][2];
  bool sees[kParts][2];
  int lowest = 0, highest = visible.last;  // all of this lane's rows see [lowest, highest)
  unroll<kParts, 2>([&](int m, int i) {
    low[m][i] = visible.low[row_of(m, i)], high[m][i] = visible.high[row_of(m, i)];
    lowest = max(lowest, low[m][i]), highest = min(highest, high[m][i]);
    sees[m][i] = low[m][i] < high[m][i];
    largest[m][i] = -INFINITY;
  });
  const int first = visible.first / kKeys * kKeys, last = visible.last;
  load_tile_async<kDim, kQueries, kThreads>(queries, x.q, first_query, p.tokens, p.heads, head, p.dim);
  if (first < last) load_keys(keys, x.k, first);
  commit_copies();
  for (int tile = first; tile < last; tile += kKeys) {
    wait_copies<0>();
    __syncthreads();
    load_keys(values, x.v, tile);
    commit_copies();
    Kept64 kept[kParts][2];
    unroll<kParts, 2>([&](int m, int i) {
      const int64_t row = p.first_element(head, first_query + row_of(m, i));
      kept[m][i] = kept_64(site, row + tile - visible.start[row_of(m, i)], lane % 4 * 2);
    });
    float scores[kParts][kKeys / 8][4] = {};
    mma::multiply_rows<kDim, kKeys, kParts>(
        scores, keys, [&](int m, int k, uint32_t(&a)[4]) { left_fragment<kDim>(queries, warp_row + 16 * m, k, a); });
    if (bias != 0) {  // times key - query, before scores are scaled: a query is the last key it sees
      unroll<kParts, kKeys / 8, 4>([&](int m, int n, int e) {
        const int distance = tile + 8 * n + lane % 4 * 2 + e % 2 + 1 - high[m][e / 2];
        scores[m][n][e] = fmaf(bias, static_cast<float>(distance), scores[m][n][e]);
      });
    }
    if (!__all_sync(kWholeWarp, tile >= lowest && tile + kKeys <= highest)) {
      unroll<kParts, kKeys / 8, 4>([&](int m, int n, int e) {
        const int key = tile + 8 * n + lane % 4 * 2 + e % 2;
        if (key < low[m][e / 2] || key >= high[m][e / 2]) scores[m][n][e] = -INFINITY;
      });
    }
    unroll<kParts, 2>([&](int m, int i) {
      float top = largest[m][i];
      unroll<kKeys / 8>([&](int n) { top = fmaxf(top, fmaxf(scores[m][n][2 * i], scores[m][n][2 * i + 1])); });
      top = quad_max(top);
      const float anchor = top == -INFINITY ? 0.0f : top * steps;  // rows that see nothing yet
      const float shrink = exp2_fast(fmaf(largest[m][i], steps, -anchor));
      largest[m][i] = top;
      float added = 0;
      unroll<kKeys / 8, 2>([&](int n, int e) {
        float& score = scores[m][n][2 * i + e];
        score = exp2_fast(fmaf(score, steps, -anchor));
        added += score;
      });
      sum[m][i] = fmaf(sum[m][i], shrink, added);  // of this lane's columns
      unroll<kDim / 8>([&](int n) { result[m][n][2 * i] *= shrink, result[m][n][2 * i + 1] *= shrink; });
    });
    unroll<kParts, 2, kKeys / 8, 2>([&](int m, int i, int n, int e) {
      float& weight = scores[m][n][2 * i + e];
      weight = kept[m][i][8 * n + e] ? weight * p.kept_factor : 0.0f;
    });
    wait_copies<0>();
    __syncthreads();
    if (tile + kKeys < last) load_keys(keys, x.k, tile + kKeys);
    commit_copies();
    mma::add_weighted_rows<kDim, kKeys, kParts>(result, scores, values);
  }
  wait_copies<0>();
  unroll<kParts, 2>([&](int m, int i) { sum[m][i] = quad_sum(sum[m][i]); });
  unroll<kParts, 2>([&](int m, int i) {
    const int row = first_query + row_of(m, i);
    if (x.lse == nullptr || row >= p.tokens || lane % 4 != 0) return;
    x.lse[static_cast<int64_t>(row) * p.heads + head] = sees[m][i] ? largest[m][i] * p.scale + logf(sum[m][i]) : 0.0f;
  });
  if (x.out.data == nullptr) return;
  unroll<kParts, 2>([&](int m, int i) {
    const int row = first_query + row_of(m, i);
    if (row >= p.tokens) return;
    const float inverse = sees[m][i] ? 1.0f / sum[m][i] : 0.0f;
    bf16* to = static_cast<bf16*>(x.out.data) + (static_cast<int64_t>(row) * p.heads + head) * p.dim;
    unroll<kDim / 8>([&](int n) {
      const int d = 8 * n + lane % 4 * 2;
      if (d >= p.dim) return;
      *reinterpret_cast<uint32_t*>(to + d) =
          sees[m][i] ? pack(result[m][n][2 * i] * inverse, result[m][n][2 * i + 1] * inverse) : 0u;
    });
  });
}

template <int kDim, int kParts>
void launch_forward(const AttentionProblem& p, const AttentionOperands& x, cudaStream_t stream) {
  constexpr int kQueries = 64 * kParts;
  constexpr size_t kBytes = (kQueries + 2 * kKeys) * kDim * sizeof(bf16);
  launch_ordered(attention_mma_kernel<kDim, kParts>, {own_tiles<kQueries>(p, p.heads), kThreads, kBytes}, stream, p, x);
}

template <int kDim, bool kOwnIsKey>
struct GradientShape {
  static constexpr int kOthers = kOwnIsKey && kDim > 64 ? 32 : 64;
  // Own rows twice, two stages of other rows twice; per other row, lse and delta.
  static constexpr size_t kBytes = (2 * kOwn + 4 * kOthers) * kDim * sizeof(bf16) + 2 * kOthers * 2 * sizeof(float);
};

// Bit r: key warp_row + r of the block's keys is kept for this query. Keys of several segments count from their starts.
__device__ __noinline__ uint32_t kept_keys(const AttentionProblem& p, const DropoutBits& site,
                                           const VisibleRows& visible, int head, int query, int first_own,
                                           int warp_row) {
  uint32_t bits = 0;
  for (int r = 0; r < 16; ++r) {
    const int64_t element = p.first_element(head, query) + first_own + warp_row + r - visible.start[warp_row + r];
    bits |= (site.kept(element >> 2) >> (element & 3) & 1) << r;
  }
  return bits;
}

template <int kDim, bool kOwnIsKey>
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
  const DropoutBits site = DropoutBits::of(p, x.rng);
  const bool one_segment =  // has all keys of the warp
      __all_sync(kWholeWarp, visible.start[warp_row] == visible.start[warp_row + lane % 16]);

  const auto load = [&]<int kRows>(Width<kRows>, bf16* tile, const Operand& from, int first, int heads, int head) {
    load_tile_async<kDim, kRows, kThreads>(tile, from, first, p.tokens, heads, head, p.dim);
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
    commit_copies();
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
    wait_copies<1>();
    __syncthreads();
    const int head = first_head + step / tiles, first = (first_tile + step % tiles) * kOthers;
    const bf16 *other = others + step % 2 * 2 * kTile, *other_beside = other + kTile;
    const float* other_numbers = numbers + step % 2 * 2 * kOthers;
    const float bias = p.bias(head);

    // Dropout. Queries own: bit c of kept[i] is key first + c for own row i. Keys own: a lane draws the warp's 16 keys
    // for queries first + lane and first + lane + 32, bit r is own row warp_row + r.
    Kept64 kept[2];
    unroll<2>([&](int i) {
      const int query = kOwnIsKey ? first + lane + 32 * i : first_own + warp_row + lane / 4 + 8 * i;
      const int64_t row = p.first_element(head, query);
      if constexpr (!kOwnIsKey) {
        kept[i] = kept_64(site, row + first - start[i], lane % 4 * 2);
      } else if (32 * i < kOthers) {
        kept[i].low = one_segment ? kept_16(site, row + first_own + warp_row - visible.start[warp_row])
                                  : kept_keys(p, site, visible, head, query, first_own, warp_row);
      }
    });

    float probabilities[1][kOthers / 8][4] = {}, gradients[1][kOthers / 8][4] = {};
    mma::multiply_rows<kDim, kOthers, 1>(
        probabilities, other, [&](int, int k, uint32_t(&a)[4]) { left_fragment<kDim>(own, warp_row, k, a); });
    mma::multiply_rows<kDim, kOthers, 1>(
        gradients, other_beside, [&](int, int k, uint32_t(&a)[4]) { left_fragment<kDim>(own_beside, warp_row, k, a); });

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
      if constexpr (kOwnIsKey) keys = __shfl_sync(kWholeWarp, kept[n / 4].low, column % 32) >> (lane / 4);
      unroll<2>([&](int i) {
        float &probability = probabilities[0][n][2 * i + e], &gradient = gradients[0][n][2 * i + e];
        const float lse = kOwnIsKey ? other_numbers[column] : own_lse[i];
        const float row_delta = kOwnIsKey ? other_numbers[kOthers + column] : own_delta[i];
        const bool is_kept = kOwnIsKey ? (keys >> (8 * i) & 1) != 0 : kept[i][8 * n + e];
        const float keep = is_kept ? p.kept_factor : 0.0f;
        const bool sees = other_row >= low[i] && other_row < high[i];
        const float exact = sees ? exp2_fast(fmaf(probability, p.scale * kLog2E, -lse * kLog2E)) : 0.0f;
        gradient = sees ? exact * fmaf(gradient, keep, -row_delta) : 0.0f;
        probability = exact * keep;
      });
    });
    mma::add_weighted_rows<kDim, kOthers, 1>(sums, gradients, other);
    if constexpr (kOwnIsKey) mma::add_weighted_rows<kDim, kOthers, 1>(value_sums, probabilities, other_beside);
  }
  wait_copies<0>();

  const auto store = [&](const Operand& to, const auto& from, float factor) {
    if (to.data == nullptr) return;
    unroll<2>([&](int i) {
      const int row = first_own + warp_row + lane / 4 + 8 * i;
      if (row >= p.tokens) return;
      bf16* at = static_cast<bf16*>(to.data) + (static_cast<int64_t>(row) * own_heads + own_head) * p.dim;
      unroll<kDim / 8>([&](int n) {
        const int d = 8 * n + lane % 4 * 2;
        if (d < p.dim) {
          *reinterpret_cast<uint32_t*>(at + d) = pack(from[0][n][2 * i] * factor, from[0][n][2 * i + 1] * factor);
        }
      });
    });
  };
  store(kOwnIsKey ? x.dk : x.dq, sums, p.scale);
  if constexpr (kOwnIsKey) store(x.dv, value_sums, 1.0f);
}

template <int kDim, bool kOwnIsKey>
void launch_gradient(const AttentionProblem& p, const AttentionOperands& x, const float* delta, cudaStream_t stream) {
  constexpr size_t kBytes = GradientShape<kDim, kOwnIsKey>::kBytes;
  const Grid grid{own_tiles(p, kOwnIsKey ? p.kv_heads : p.heads), kThreads, kBytes};
  launch_ordered(attention_grad_mma_kernel<kDim, kOwnIsKey>, grid, stream, p, x, delta);
}

template <int kDim>
void launch_passes(const AttentionProblem& p, const AttentionOperands& x, const float* delta, cudaStream_t stream) {
  if (x.dq.data != nullptr) launch_gradient<kDim, false>(p, x, delta, stream);
  if (x.dk.data != nullptr || x.dv.data != nullptr) launch_gradient<kDim, true>(p, x, delta, stream);
}

}  // namespace

void launch_attention_mma(const AttentionProblem& p, const AttentionOperands& x, cudaStream_t stream) {
  p.dim <= 64 ? launch_forward<64, 2>(p, x, stream) : launch_forward<128, 1>(p, x, stream);
}

void launch_attention_grad_mma(const AttentionProblem& p, const AttentionOperands& x, const float* delta,
                               cudaStream_t stream) {
  p.dim <= 64 ? launch_passes<64>(p, x, delta, stream) : launch_passes<128>(p, x, delta, stream);
}

}  // namespace octet::cuda
