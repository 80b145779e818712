// Blocks of one token, several where tokens are few. Cosines and sines go through shared memory, once a block, while
// the first pairs and what does not turn (values, the rest of partly turned heads) are already in flight.
#include <algorithm>

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/inference/rope_scatter_rows.h"
#include "kernels/cuda/position/turn.cuh"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256;

// A group of kVec turns begins every kVec + 2: eight threads that read neighbouring groups meet different banks.
template <int kVec>
__host__ __device__ constexpr int turn_index(int pair) {
  return pair / kVec * (kVec + 2) + pair % kVec;
}

// Rounds as rope does, then as scatter_rows does.
template <typename C, int kVec>
__device__ __forceinline__ void append(C* to, bool scaled, float scale, float (&values)[kVec]) {
  unroll<kVec>([&](int e) {
    values[e] = rounded<bf16>(values[e]);
    if (scaled) values[e] *= scale;
  });
  store<kVec>(to, values);
}

// kVec pairs: of halves, neighbours in both halves; interleaved, 2 kVec neighbours. As loaded, until they are turned.
template <int kVec>
struct Pairs {
  Vec<bf16, kVec> loaded[2];

  __device__ __forceinline__ void load_from(const bf16* first, const bf16* second) {
    loaded[0] = *reinterpret_cast<const Vec<bf16, kVec>*>(first);
    loaded[1] = *reinterpret_cast<const Vec<bf16, kVec>*>(second);
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
  C* k_slot = kept && x.k_cache != nullptr ? static_cast<C*>(x.k_cache) + slot * kv_width : nullptr;
  C* v_slot = kept && x.v_cache != nullptr ? static_cast<C*>(x.v_cache) + slot * kv_width : nullptr;
  const float k_scale = x.k_scale != nullptr ? *x.k_scale : 1, v_scale = x.v_scale != nullptr ? *x.v_scale : 1;

  const int heads = rope.heads + p.kv_heads;
  const int turning = rope.pairs / kVec, passing = (rope.dim - 2 * rope.pairs) / kVec;
  const int passes = heads * passing, still = passes + static_cast<int>(kv_width) / kVec, all = still + heads * turning;
  const int stride = kThreads * static_cast<int>(gridDim.y);

  int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  // A thread's first pairs are loaded before the angles are made, the next ones while these are turned.
  int item = i < still ? i + (still - i + stride - 1) / stride * stride : i;
  Pairs<kVec> next;
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
    turns[turn_index<kVec>(pair)] = {t.x, rope.sign * t.y};
  }
#pragma unroll 2
  for (; i < still; i += stride) {
    float values[kVec];
    if (i >= passes) {
      if (v_slot == nullptr) continue;
      load<kVec>(v + (i - passes) * kVec, values);
      append(v_slot + (i - passes) * kVec, x.v_scale != nullptr, v_scale, values);
      continue;
    }
    const int head = i / passing, at = 2 * rope.pairs + i % passing * kVec, k_at = (head - rope.heads) * rope.dim + at;
    if (head < rope.heads) {
      load<kVec>(q + head * rope.dim + at, values);
      store<kVec>(q_out + head * rope.dim + at, values);
    } else if (k_slot != nullptr) {
      load<kVec>(k + k_at, values);
      append(k_slot + k_at, x.k_scale != nullptr, k_scale, values);
    }
  }
  __syncthreads();
  for (; item < all; item += stride) {
    const Pairs<kVec> pairs = next;
    load_pairs(item + stride);
    const int head = (item - still) / turning, pair = (item - still) % turning * kVec;
    const int first = rope.interleaved ? 2 * pair : pair, second = first + (rope.interleaved ? kVec : rope.pairs);
    float turned[2][kVec];
    pairs.turn_by(turns + turn_index<kVec>(pair), rope.interleaved, turned);
    if (head < rope.heads) {
      store<kVec>(q_out + head * rope.dim + first, turned[0]);
      store<kVec>(q_out + head * rope.dim + second, turned[1]);
    } else if (k_slot != nullptr) {
      C* to = k_slot + (head - rope.heads) * rope.dim;
      append(to + first, x.k_scale != nullptr, k_scale, turned[0]);
      append(to + second, x.k_scale != nullptr, k_scale, turned[1]);
    }
  }
}

constexpr int kWide = kVecOf<bf16>, kNarrow = 4;
bool fits(int vec, int pairs, int dim) { return pairs % vec == 0 && dim % vec == 0; }

}  // namespace

bool rope_scatter_rows_fits(int pairs, int dim) { return fits(kNarrow, pairs, dim); }

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
  if (!with_fp8_type(p.cache, launch_for)) launch_for(bf16{});
}

}  // namespace octet::cuda
