// A block turns the heads of a few tokens: cosines and sines go through shared memory, once a token, while a thread's
// first elements are in flight; it keeps those of its pairs for all heads it takes. Angles are reduced in float64
// (positions may be large), the functions of the rest are float32.
#include <algorithm>
#include <bit>

#include "kernels/cuda/common/arrivals.cuh"
#include "kernels/cuda/common/column_sums.cuh"
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/pointwise.cuh"
#include "kernels/cuda/common/scale_formula.cuh"
#include "kernels/cuda/position/rope.h"

namespace octet::cuda {
namespace {

// --- the turn of a pair by position times frequency: what every kernel that rotates must share to agree bit for bit.
// cos and sin of position * frequency: reduced to [-pi/4, pi/4] by quarter turns in float64.
__device__ __forceinline__ float2 turn(double frequency, int position) {
  constexpr double kTwoOverPi = 0.63661977236758134308, kHalfPi = 1.5707963267948966192;
  const double angle = frequency * position;
  const double whole = rint(angle * kTwoOverPi);
  const auto rest = static_cast<float>(fma(-whole, kHalfPi, angle));
  float sine, cosine;
  sincosf(rest, &sine, &cosine);
  switch (static_cast<long long>(whole) & 3) {
    case 0: return {cosine, sine};
    case 1: return {-sine, cosine};
    case 2: return {-cosine, -sine};
    default: return {sine, -cosine};
  }
}

__device__ __forceinline__ float2 rotated(float a, float b, float2 by) {
  return {fmaf(a, by.x, -(b * by.y)), fmaf(b, by.x, a * by.y)};
}

// --- rope
constexpr int kThreads = 256, kHeadsAhead = 2;

// kVec pairs of a head, or as many elements that pass unturned. Neighbouring threads write neighbouring 16 bytes, of
// interleaved pairs too: half a sector written twice costs two.
template <typename T, int kVec, bool kInterleaved>
struct Pairs {
  static constexpr bool kAlone = kInterleaved && kVec == 1;  // one pair, its elements side by side
  Vec<T, kVec> a, b;  // of halves: first and second elements; interleaved: kVec / 2 pairs of each half of the pairs

  // Where part `part` of a head begins, and from a to b.
  __device__ __forceinline__ static int place(int part) { return kAlone ? 2 * part : kVec * part; }
  __device__ __forceinline__ static int second(const RopePlan& p) { return kAlone ? 1 : p.pairs; }
  __device__ __forceinline__ void load(const RopePlan& p, const T* from) {
    a = read<kVec>(from), b = read<kVec>(from + second(p));
  }
  __device__ __forceinline__ void store(const RopePlan& p, T* to) const {
    write<kVec>(to, a), write<kVec>(to + second(p), b);
  }
  // The turns [pairs] of a token that part `part` of its heads takes.
  __device__ __forceinline__ static void load_turns(const RopePlan& p, const float2* turns, int part,
                                                    float2 (&by)[kVec]) {
    constexpr int kRun = kInterleaved && !kAlone ? kVec / 2 : kVec;  // neighbours
    constexpr int kTwo = kRun > 1 ? 2 : 1;                           // turns of a 16-byte access
#pragma unroll
    for (int e = 0; e < kVec; e += kTwo) {
      const float2* from = turns + part * kRun + (e < kRun ? e : p.pairs / 2 + e - kRun);
      const Vec<float, 2 * kTwo> v = read<2 * kTwo>(&from->x);
      by[e] = {v.at[0], v.at[1]}, by[e + kTwo - 1] = {v.at[2 * kTwo - 2], v.at[2 * kTwo - 1]};
    }
  }
  __device__ __forceinline__ void turn_by(const float2 (&by)[kVec]) {
    float v[2][kVec];
    widen(a, v[0]), widen(b, v[1]);
    if constexpr (kInterleaved) {
#pragma unroll
      for (int e = 0; e < 2 * kVec; e += 2) {
        float &first = v[e / kVec][e % kVec], &other = v[(e + 1) / kVec][(e + 1) % kVec];
        const float2 r = rotated(first, other, by[e / 2]);
        first = r.x, other = r.y;
      }
    } else {
      unroll<kVec>([&](int e) {
        const float2 r = rotated(v[0][e], v[1][e], by[e]);
        v[0][e] = r.x, v[1][e] = r.y;
      });
    }
    a = narrow<T>(v[0]), b = narrow<T>(v[1]);
  }
};

// `lanes` threads take a token: some of its kVec pairs, of every slots-th head. kVec divides pairs and dim - 2 pairs,
// so that every access is aligned.
template <typename T, int kVec, bool kInterleaved>
__global__ void __launch_bounds__(kThreads, 4) rope_kernel(const __grid_constant__ RopePlan p, int lanes, const T* x,
                                                           const int32_t* positions, T* y, uint32_t* amaxes) {
  extern __shared__ __align__(16) float2 turns[];  // [tokens of the block, pairs]
  __shared__ uint32_t scratch[32];
  griddep_wait();
  griddep_launch_dependents();
  using Held = Pairs<T, kVec, kInterleaved>;
  const int thread = static_cast<int>(threadIdx.x), tokens = kThreads / lanes, lane = thread % lanes;
  const int work = p.pairs / kVec, width = min(work, lanes), slots = lanes / width, slot = lane / width;
  const int first = static_cast<int>(blockIdx.x) * tokens, token = first + thread / lanes;
  const int64_t row = int64_t{token} * p.heads * p.dim;
  const bool turns_some = token < p.tokens && slot < slots && work > 0;
  int head = slot, part = lane % width;
  const auto place = [&](int h) { return row + h * p.dim + Held::place(part); };
  Held held[kHeadsAhead];
  Amax<T> amax{};
  const auto fetch = [&] {
    unroll<kHeadsAhead>([&](int h) {
      if (head + h * slots < p.heads) held[h].load(p, x + place(head + h * slots));
    });
  };
  if (turns_some) fetch();
  for (int i = thread; i < tokens * p.pairs; i += kThreads) {
    const int of = first + i / p.pairs;
    if (of >= p.tokens) break;
    const float2 t = turn(p.frequencies[i % p.pairs], positions[of]);
    turns[i] = {p.factor * t.x, p.factor * p.sign * t.y};
  }
  __syncthreads();
  if (turns_some) {
    const float2* own = turns + thread / lanes * p.pairs;
    for (;;) {
      float2 by[kVec];
      Held::load_turns(p, own, part, by);
      for (;;) {
#pragma unroll
        for (int h = 0; h < kHeadsAhead; ++h) {
          if (head + h * slots >= p.heads) break;
          held[h].turn_by(by);
          amax.see(held[h].a), amax.see(held[h].b);
          if (y != nullptr) held[h].store(p, y + place(head + h * slots));
        }
        head += kHeadsAhead * slots;
        if (head >= p.heads) break;
        fetch();
      }
      head = slot, part += width;
      if (part >= work) break;
      fetch();
    }
  }
  const int rest = (p.dim - 2 * p.pairs) / kVec;
  if (rest > 0 && (x != y || amaxes != nullptr) && token < p.tokens) {  // what passes unturned
    for (int i = lane; i < p.heads * rest; i += lanes) {
      const int64_t at = row + static_cast<int64_t>(i / rest) * p.dim + 2 * p.pairs + i % rest * kVec;
      const Vec<T, kVec> v = read<kVec>(x + at);
      amax.see(v);
      if (y != nullptr) write<kVec>(y + at, v);
    }
  }
  if (amaxes == nullptr) return;
  const uint32_t most = block_max(amax.bits(), scratch);
  if (thread == 0) amaxes[blockIdx.x] = most;
}

// As many threads a token as leave each kHeadsAhead heads, more where tokens are few.
int lanes_of(const RopePlan& p, int work, int sm_count) {
  const auto ceil2 = [](int n) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(n, 1)))); };
  int lanes = std::max(ceil2(work), ceil2(p.heads * work / kHeadsAhead));
  while (lanes < kThreads && int64_t{p.tokens} * lanes < int64_t{4} * sm_count * kThreads) lanes *= 2;
  return std::min(lanes, kThreads);
}

// --- with scatter_rows. Blocks of one token, several where tokens are few. Cosines and sines go through shared memory,
// once a block, while the first pairs and what does not turn (values, the rest of partly turned heads) are already in
// flight. A group of kVec turns begins every kVec + 2: eight threads that read neighbouring groups meet different
// banks.
template <int kVec>
__host__ __device__ constexpr int turn_index(int pair) {
  return pair / kVec * (kVec + 2) + pair % kVec;
}

// The lanes of a warp that share a head, a power of two.
__device__ __forceinline__ unsigned neighbours(int threads) {
  return 0xffffffffu >> (32 - threads) << (static_cast<int>(threadIdx.x) % 32 / threads * threads);
}

// Where a side of a token is appended. Rounds as rope does, then as scatter_rows or scatter_codes does.
template <typename C>
struct AppendSlot {
  C* row;              // [kv_heads, dim], null: not wanted
  float* scale_inv;    // [kv_heads], of int8; the same
  const float* scale;  // [1] or null

  __device__ bool wanted() const { return row != nullptr || scale_inv != nullptr; }
  // kParts pieces of head `head` from its elements at[n] on; all of the head's `threads` neighbours call it.
  template <int kParts, int kVec>
  __device__ __forceinline__ void append(int head, int dim, int threads, const int (&at)[kParts],
                                         float (&values)[kParts][kVec]) const {
    unroll<kParts, kVec>([&](int n, int e) { values[n][e] = rounded<bf16>(values[n][e]); });
    float by = scale != nullptr ? *scale : 1;
    if constexpr (std::is_same_v<C, int8_t>) {
      uint32_t amax = 0;
      unroll<kParts, kVec>([&](int n, int e) { amax = max(amax, __float_as_uint(fabsf(values[n][e]))); });
      const unsigned own = neighbours(threads);
      for (int lanes = threads / 2; lanes > 0; lanes /= 2) amax = max(amax, __shfl_xor_sync(own, amax, lanes));
      by = int8_scale_of(amax);
      if (static_cast<int>(threadIdx.x) % threads == 0 && scale_inv != nullptr) scale_inv[head] = __fdiv_rn(1.0f, by);
      if (row == nullptr) return;
    }
    if (std::is_same_v<C, int8_t> || scale != nullptr) unroll<kParts, kVec>([&](int n, int e) { values[n][e] *= by; });
    unroll<kParts>([&](int n) { store<kVec>(row + static_cast<int64_t>(head) * dim + at[n], values[n]); });
  }
};

// kVec pairs: of halves, neighbours in both halves; interleaved, 2 kVec neighbours. As loaded, until they are turned.
template <int kVec>
struct AppendPairs {
  Vec<bf16, kVec> loaded[2];

  __device__ __forceinline__ void load_from(const bf16* first, const bf16* second) {
    loaded[0] = *reinterpret_cast<const Vec<bf16, kVec>*>(first);
    loaded[1] = *reinterpret_cast<const Vec<bf16, kVec>*>(second);
  }
  // The rms_norm of a head, of which `threads` neighbours hold pieces from `first` and `second` on; summed as
  // norm_warp_per_row_kernel does.
  __device__ __forceinline__ void normalise(const float* weight, float eps, int dim, int threads, int first,
                                            int second) {
    float v[2][kVec], w[2][kVec], sums[2] = {};
    load<kVec>(weight + first, w[0]), load<kVec>(weight + second, w[1]);
    unroll<2, kVec>(
        [&](int h, int e) { v[h][e] = to_float(loaded[h].at[e]), sums[h] = fmaf(v[h][e], v[h][e], sums[h]); });
    float sum = sums[0] + sums[1];
    const unsigned own = neighbours(threads);
    for (int lanes = threads / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(own, sum, lanes);
    const float rstd = rsqrtf(sum * (1.0f / static_cast<float>(dim)) + eps);
    unroll<2, kVec>([&](int h, int e) { loaded[h].at[e] = from_float<bf16>(v[h][e] * rstd * w[h][e]); });
  }
  __device__ __forceinline__ void turn_by(const float2* turns, bool interleaved, float (&to)[2][kVec]) const {
    float2 by[kVec];
#pragma unroll
    for (int e = 0; e < kVec; e += 2) {
      const float4 two = *reinterpret_cast<const float4*>(turns + e);
      by[e] = make_float2(two.x, two.y), by[e + 1] = make_float2(two.z, two.w);
    }
    unroll<kVec>([&](int e) { to[0][e] = to_float(loaded[0].at[e]), to[1][e] = to_float(loaded[1].at[e]); });
    unroll<kVec>([&](int e) {
      float& a = interleaved ? to[2 * e / kVec][2 * e % kVec] : to[0][e];
      float& b = interleaved ? to[(2 * e + 1) / kVec][(2 * e + 1) % kVec] : to[1][e];
      const float2 r = rotated(a, b, by[e]);
      a = r.x, b = r.y;
    });
  }
};

// Work of a token, kVec elements or pairs each: what passes through of queries and keys, values, what turns.
template <typename C, int kVec>
__global__ void __launch_bounds__(kThreads) rope_scatter_rows_kernel(RopeAppendPlan p, RopeAppendOperands x) {
  extern __shared__ __align__(16) float2 turns[];  // [turn_index(pairs)]
  griddep_wait();
  griddep_launch_dependents();
  const RopePlan& rope = p.rope;
  const auto token = static_cast<int64_t>(blockIdx.x);
  const int64_t slot = x.slots[token];
  const bool kept = slot >= 0 && slot < p.slots;
  const int64_t kv_width = static_cast<int64_t>(p.kv_heads) * rope.dim;
  const auto* q = static_cast<const bf16*>(x.q) + token * p.q_stride;
  const auto* k = static_cast<const bf16*>(x.k) + token * p.k_stride;
  const auto* v = static_cast<const bf16*>(x.v) + token * p.v_stride;
  auto* q_out = static_cast<bf16*>(x.q_out) + token * rope.heads * rope.dim;
  const auto slot_of = [&](void* cache, float* scale_inv, const float* scale) {
    return AppendSlot<C>{kept && cache != nullptr ? static_cast<C*>(cache) + slot * kv_width : nullptr,
                         kept && scale_inv != nullptr ? scale_inv + slot * p.kv_heads : nullptr, scale};
  };
  const AppendSlot<C> k_slot = slot_of(x.k_cache, x.k_scale_inv, x.k_scale);
  const AppendSlot<C> v_slot = slot_of(x.v_cache, x.v_scale_inv, x.v_scale);

  const int heads = rope.heads + p.kv_heads;
  const int turning = rope.pairs / kVec, passing = (rope.dim - 2 * rope.pairs) / kVec;
  const int passes = heads * passing, still = passes + static_cast<int>(kv_width) / kVec, all = still + heads * turning;
  const int stride = kThreads * static_cast<int>(gridDim.y);

  int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  // A thread's first pairs are loaded before the angles are made, the next ones while these are turned.
  int item = i < still ? i + (still - i + stride - 1) / stride * stride : i;
  AppendPairs<kVec> next;
  const auto load_pairs = [&](int at) {
    if (at >= all) return;
    const int head = (at - still) / turning, pair = (at - still) % turning * kVec;
    const bf16* from = head < rope.heads ? q + head * rope.dim : k + (head - rope.heads) * rope.dim;
    const int first = rope.interleaved ? 2 * pair : pair;
    next.load_from(from + first, from + first + (rope.interleaved ? kVec : rope.pairs));
  };
  load_pairs(item);
  for (int pair = static_cast<int>(threadIdx.x); pair < rope.pairs; pair += kThreads) {
    const float2 t = turn(rope.frequencies[pair], x.positions[token]);
    turns[turn_index<kVec>(pair)] = {rope.factor * t.x, rope.factor * rope.sign * t.y};
  }
#pragma unroll 2
  for (; i < still; i += stride) {
    float values[1][kVec];
    if (i >= passes) {
      if (!v_slot.wanted()) continue;
      const int threads = rope.dim / kVec, own = i - passes;
      load<kVec>(v + own * kVec, values[0]);
      v_slot.append(own / threads, rope.dim, threads, {own % threads * kVec}, values);
      continue;
    }
    const int head = i / passing, at = 2 * rope.pairs + i % passing * kVec;
    if (head < rope.heads) {
      load<kVec>(q + head * rope.dim + at, values[0]);
      store<kVec>(q_out + head * rope.dim + at, values[0]);
    } else if (k_slot.wanted()) {
      load<kVec>(k + (head - rope.heads) * rope.dim + at, values[0]);
      k_slot.append(head - rope.heads, rope.dim, passing, {at}, values);
    }
  }
  __syncthreads();
  for (; item < all; item += stride) {
    AppendPairs<kVec> pairs = next;
    load_pairs(item + stride);
    const int head = (item - still) / turning, pair = (item - still) % turning * kVec;
    const int first = rope.interleaved ? 2 * pair : pair, second = first + (rope.interleaved ? kVec : rope.pairs);
    float turned[2][kVec];
    if constexpr (kVec == kVecOf<bf16>) {
      const float* weight = head < rope.heads ? x.q_norm : x.k_norm;
      if (weight != nullptr) pairs.normalise(weight, p.eps, rope.dim, turning, first, second);
    }
    pairs.turn_by(turns + turn_index<kVec>(pair), rope.interleaved, turned);
    if (head < rope.heads) {
      store<kVec>(q_out + head * rope.dim + first, turned[0]);
      store<kVec>(q_out + head * rope.dim + second, turned[1]);
    } else if (k_slot.wanted()) {
      k_slot.append(head - rope.heads, rope.dim, turning, {first, second}, turned);
    }
  }
}

constexpr int kWide = kVecOf<bf16>, kNarrow = 4;
bool fits(int vec, int pairs, int dim) { return pairs % vec == 0 && dim % vec == 0; }

}  // namespace

void launch_rope(DType dtype, const RopePlan& p, const void* x, const int32_t* positions, void* y, float* amax,
                 uint32_t* amaxes, int sm_count, cudaStream_t stream) {
  if (p.tokens == 0 || (y == nullptr && amax == nullptr)) return;
  with_float_type(dtype, [&]<typename T>(T) {
    constexpr int kWide = kVecOf<T>;
    const bool wide = p.pairs % kWide == 0 && p.dim % kWide == 0;
    const auto kernel = p.interleaved ? (wide ? rope_kernel<T, kWide, true> : rope_kernel<T, 1, true>)
                                      : (wide ? rope_kernel<T, kWide, false> : rope_kernel<T, 1, false>);
    const int lanes = lanes_of(p, p.pairs / (wide ? kWide : 1), sm_count), tokens = kThreads / lanes;
    const Grid grid{static_cast<unsigned>((p.tokens + tokens - 1) / tokens), kThreads,
                    static_cast<size_t>(tokens * p.pairs) * sizeof(float2)};
    launch_overlapped(kernel, grid, stream, p, lanes, static_cast<const T*>(x), positions, static_cast<T*>(y),
                      amax != nullptr ? amaxes : nullptr);
    // Blocks are many and short: what each would wait for to count its arrival costs more than this kernel.
    if (amax != nullptr) launch_finish_rows<SumOf>(nullptr, nullptr, 0, 0, stream, {amaxes, grid.blocks.x, amax});
  });
}

bool rope_scatter_rows_fits(int pairs, int dim, DType cache) {
  if (!fits(kNarrow, pairs, dim)) return false;
  const int threads = dim / (fits(kWide, pairs, dim) ? kWide : kNarrow);
  return cache != DType::kI8 || ((pairs == 0 || 2 * pairs == dim) && threads <= 32 && (threads & (threads - 1)) == 0);
}

bool rope_head_norm_fits(int pairs, int dim, bool interleaved) {
  return !interleaved && fits(kWide, pairs, dim) && rope_scatter_rows_fits(pairs, dim, DType::kI8);
}

void launch_rope_scatter_rows(const RopeAppendPlan& plan, const RopeAppendOperands& operands, int sm_count,
                              cudaStream_t stream) {
  RopeAppendPlan p = plan;
  if (operands.q_out == nullptr) p.rope.heads = 0;
  const auto launch = [&](auto kernel, int vec) {
    const int items = ((p.rope.heads + p.kv_heads) * (p.rope.dim - p.rope.pairs) + p.kv_heads * p.rope.dim) / vec;
    const int wanted = (4 * sm_count + p.rope.tokens - 1) / p.rope.tokens;
    const int parts = std::clamp(wanted, 1, (items + kThreads - 1) / kThreads);
    const dim3 grid(static_cast<unsigned>(p.rope.tokens), static_cast<unsigned>(parts));
    const size_t shared = static_cast<size_t>(p.rope.pairs / vec * (vec + 2)) * sizeof(float2);
    launch_overlapped(kernel, {grid, kThreads, shared}, stream, p, operands);
  };
  const auto launch_for = [&]<typename C>(C) {
    if (fits(kWide, p.rope.pairs, p.rope.dim)) {
      launch(rope_scatter_rows_kernel<C, kWide>, kWide);
    } else {
      launch(rope_scatter_rows_kernel<C, kNarrow>, kNarrow);
    }
  };
  if (!with_code_type(p.cache, launch_for)) launch_for(bf16{});
}

}  // namespace octet::cuda
