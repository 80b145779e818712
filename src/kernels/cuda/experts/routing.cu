// The choice of experts, its gradient, and the sort of choices by expert. A token is a warp's; sums over experts run in
// one order, so a token's bits do not depend on its neighbours.
#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/common/arrivals.cuh"
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/experts/experts.h"

namespace octet::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

__device__ __forceinline__ float ranked(float logit) { return isnan(logit) ? -INFINITY : logit; }

// The largest logit but NaN, and the sum of exp(logit - most): NaN where a logit is. for_each gives a lane's logits.
struct Softmax {
  float most = -INFINITY, sum = 0;

  template <typename ForEach>
  __device__ explicit Softmax(const ForEach& for_each) {
    for_each([&](float logit) { most = fmaxf(most, ranked(logit)); });
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1) most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, lanes));
    for_each([&](float logit) { sum += expf(logit - most); });
    sum = warp_reduce<Sum>(sum);
  }
  __device__ float score(float logit) const { return expf(logit - most) / sum; }
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// What a token's logits become, by one warp, whose lanes hold every 32nd.
template <int kHeld>
__device__ __forceinline__ void choose_experts(const RouterProblem& p, int64_t t, const float* all_logits,
                                               const RouterResults& to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* logits = all_logits + t * p.experts;
  const auto for_held = [&](auto body) {
    unroll<kHeld>([&](int h) {
      if (h * 32 + lane < p.experts) body(h);
    });
  };
  float logit[kHeld];
  for_held([&](int h) { logit[h] = logits[h * 32 + lane]; });
  const Softmax softmax([&](auto body) { for_held([&](int h) { body(logit[h]); }); });
  const auto score = [&](float l) { return p.softmax ? softmax.score(l) : sigmoid(l); };
  if (to.lse != nullptr && lane == 0) to.lse[t] = softmax.most + logf(softmax.sum);
  if (to.scores != nullptr) for_held([&](int h) { to.scores[t * p.experts + h * 32 + lane] = score(logit[h]); });
  // Integers in the order of the logits, above 0; 0 once they are chosen.
  uint32_t key[kHeld] = {};
  for_held([&](int h) {
    const uint32_t bits = __float_as_uint(ranked(logit[h]) + 0.0f);  // -0 is 0
    key[h] = bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u);
  });
  float sum = 0;
  for (int first = 0; first < p.k; first += 32) {
    int own = 0;  // choice first + lane
    for (int i = first; i < min(first + 32, p.k); ++i) {
      uint32_t best = 0, at = ~0u;
      unroll<kHeld>([&](int h) {
        if (key[h] > best) best = key[h], at = static_cast<uint32_t>(h * 32 + lane);
      });
      const uint32_t most = __reduce_max_sync(kWholeWarp, best);
      at = __reduce_min_sync(kWholeWarp, best == most ? at : ~0u);
      unroll<kHeld>([&](int h) {
        if (static_cast<uint32_t>(h * 32 + lane) == at) key[h] = 0;
      });
      if (i - first == lane) own = static_cast<int>(at);
    }
    const bool has = first + lane < p.k;
    const float weight = has ? score(logits[own]) : 0.0f;
    sum += warp_reduce<Sum>(weight);
    if (has && to.chosen != nullptr) to.chosen[t * p.k + first + lane] = own;
    if (has && to.weights != nullptr) to.weights[t * p.k + first + lane] = weight;
  }
  if (!p.renormalize || to.weights == nullptr) return;
  for (int i = lane; i < p.k; i += 32) to.weights[t * p.k + i] /= sum;
}

// body(constant kHeld) for so many experts.
template <typename Body>
void with_held(int experts, const Body& body) {
  if (experts <= 32) return body(std::integral_constant<int, 1>{});
  experts <= 128 ? body(std::integral_constant<int, 4>{}) : body(std::integral_constant<int, kListedExperts / 32>{});
}

template <int kHeld>
__global__ void __launch_bounds__(kThreads) top_k_kernel(RouterProblem p, const float* logits, RouterResults to) {
  griddep_begin(false);
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (t < p.tokens) choose_experts<kHeld>(p, t, logits, to);
}

__global__ void __launch_bounds__(kThreads)
    top_k_grad_kernel(RouterProblem p, const float* all_logits, const int32_t* all_chosen, RouterGradients given,
                      float* dlogits) {
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (t >= p.tokens) return;
  const float* logits = all_logits + t * p.experts;
  const int32_t* chosen = all_chosen + t * p.k;
  const Softmax softmax([&](auto body) {
    for (int e = lane; e < p.experts; e += 32) body(logits[e]);
  });
  const auto score = [&](float logit) { return p.softmax ? softmax.score(logit) : sigmoid(logit); };
  float sum = 0, mean = 0;  // of the chosen scores; of their gradients, weighted
  for (int i = 0; i < p.k; ++i) sum += score(logits[chosen[i]]);
  if (given.weights != nullptr && p.renormalize)
    for (int i = 0; i < p.k; ++i) mean += given.weights[t * p.k + i] * score(logits[chosen[i]]) / sum;
  const auto dscore = [&](int e) {
    float d = given.scores != nullptr ? given.scores[t * p.experts + e] : 0.0f;
    if (given.weights == nullptr) return d;
    for (int i = 0; i < p.k; ++i)
      if (chosen[i] == e) d += p.renormalize ? (given.weights[t * p.k + i] - mean) / sum : given.weights[t * p.k + i];
    return d;
  };
  float inner = 0;
  for (int e = lane; e < p.experts; e += 32) inner += dscore(e) * score(logits[e]);
  inner = warp_reduce<Sum>(inner);
  for (int e = lane; e < p.experts; e += 32) {
    const float s = score(logits[e]), d = dscore(e);
    float to = p.softmax ? s * (d - inner) : d * s * (1.0f - s);
    if (given.lse != nullptr) to += given.lse[t] * softmax.score(logits[e]);
    dlogits[t * p.experts + e] = to;
  }
}

constexpr int kGroupWarps = 8, kGroupThreads = 32 * kGroupWarps;

// A block finds the rows of its own group: each warp counts in its run of choices, then gives places from there on.
// `parts`: of each expert, by choices of k a token; `part` [tokens].
template <bool kParts>
__global__ void __launch_bounds__(kGroupThreads)
    group_rows_kernel(GroupedChoices choices, int32_t* places, int32_t* offsets, float* counts) {
  __shared__ int lower_of[kGroupWarps], own_of[kGroupWarps];
  griddep_begin(false);
  const int expert = static_cast<int>(blockIdx.x), count = static_cast<int>(choices.count);
  const auto chosen = [&](int i) {
    return kParts ? choices.experts[i] * choices.parts + choices.part[i / choices.k] : choices.experts[i];
  };
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int run = (count + kGroupThreads - 1) / kGroupThreads * 32;
  const int begin = min(warp * run, count), end = min(begin + run, count);
  int lower = 0, own = 0;
#pragma unroll 4
  for (int i = begin + lane; i < end; i += 32) lower += chosen(i) < expert, own += chosen(i) == expert;
  lower = __reduce_add_sync(kWholeWarp, lower), own = __reduce_add_sync(kWholeWarp, own);
  if (lane == 0) lower_of[warp] = lower, own_of[warp] = own;
  __syncthreads();
  int first = 0, total = 0, next = 0;
  for (int w = 0; w < kGroupWarps; ++w) {
    if (w < warp) next += own_of[w];
    first += lower_of[w], total += own_of[w];
  }
  next += first;
  if (threadIdx.x == 0) {
    if (offsets != nullptr) offsets[expert] = first;
    if (offsets != nullptr && expert + 1 == static_cast<int>(gridDim.x)) offsets[expert + 1] = first + total;
    if (counts != nullptr) counts[expert] = static_cast<float>(total);
  }
  if (places == nullptr || own_of[warp] == 0) return;
#pragma unroll 4
  for (int base = begin; base < end; base += 32) {
    const int i = base + lane;
    const bool mine = i < end && chosen(i) == expert;
    const unsigned all = __ballot_sync(kWholeWarp, mine);
    if (mine) places[i] = next + __popc(all & ((1u << lane) - 1));
    next += __popc(all);
  }
}

// A block makes an expert's logits of all tokens; the last one chooses and groups.
constexpr int kRouterWarps = 8, kRouterThreads = 32 * kRouterWarps, kRouterVec = 8, kRouterAhead = 2, kAtOnce = 4;

template <int kHeld>
__global__ void __launch_bounds__(kRouterThreads) router_kernel(RouterProblem p, FewTokens r, RouterResults to) {
  constexpr int64_t kStride = kRouterThreads * kRouterVec;
  __shared__ float parts[kRouterTokens][kRouterWarps];
  __shared__ int32_t chosen[kRouterChoices];
  __shared__ bool last;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int tokens = static_cast<int>(p.tokens);
  const float* own = r.w + blockIdx.x * r.width;
  float w[kRouterAhead][kRouterVec];
  const auto read_weights = [&](int64_t from) {
    unroll<kRouterAhead>([&](int h) {
      const int64_t at = from + h * kStride + thread * kRouterVec;
      const auto* words = reinterpret_cast<const float4*>(own + at);
      const float4 low = at < r.width ? words[0] : float4{}, high = at < r.width ? words[1] : float4{};
      w[h][0] = low.x, w[h][1] = low.y, w[h][2] = low.z, w[h][3] = low.w;
      w[h][4] = high.x, w[h][5] = high.y, w[h][6] = high.z, w[h][7] = high.w;
    });
  };
  if (r.weights_ready) read_weights(0);
  griddep_begin(false);
  if (!r.weights_ready) read_weights(0);
  for (int first = 0; first < tokens; first += kAtOnce) {
    float sums[kAtOnce] = {};
    for (int64_t from = 0; from < r.width; from += kRouterAhead * kStride) {
      if (r.width > kRouterAhead * kStride && first + from > 0) read_weights(from);
      unroll<kAtOnce, kRouterAhead>([&](int i, int h) {
        const int64_t at = from + h * kStride + thread * kRouterVec;
        if (at >= r.width) return;
        float x[kRouterVec];
        load<kRouterVec>(static_cast<const bf16*>(r.x) + min(first + i, tokens - 1) * r.width + at, x);
        unroll<kRouterVec>([&](int n) { sums[i] = fmaf(w[h][n], x[n], sums[i]); });
      });
    }
    unroll<kAtOnce>([&](int i) {
      const float sum = warp_reduce<Sum>(sums[i]);
      if (lane == 0) parts[first + i][warp] = sum;
    });
  }
  __syncthreads();
  if (thread < tokens) {
    float sum = 0;
    unroll<kRouterWarps>([&](int w) { sum += parts[thread][w]; });
    r.logits[thread * p.experts + static_cast<int>(blockIdx.x)] = sum;
  }
  __syncthreads();
  if (thread == 0) last = arrives_last(r.counters, gridDim.x);
  __syncthreads();
  if (!last) return;
  for (int t = warp; t < tokens; t += kRouterWarps) {
    RouterResults of = to;
    of.chosen = chosen;
    choose_experts<kHeld>(p, t, r.logits, of);
  }
  __syncthreads();
  const int count = tokens * p.k;
  if (to.chosen != nullptr)
    for (int i = thread; i < count; i += kRouterThreads) to.chosen[i] = chosen[i];
  for (int e = thread; e < p.experts; e += kRouterThreads) {
    int begin = 0, next = 0;
    for (int i = 0; i < count; ++i) begin += chosen[i] < e;
    for (int i = 0; i < count; ++i) {
      if (chosen[i] != e) continue;
      if (r.places != nullptr) r.places[i] = begin + next;
      ++next;
    }
    if (r.offsets != nullptr) r.offsets[e] = begin;
    if (r.offsets != nullptr && e + 1 == p.experts) r.offsets[p.experts] = count;
    if (r.counts != nullptr) r.counts[e] = static_cast<float>(next);
  }
}

unsigned blocks_of(const RouterProblem& p) { return static_cast<unsigned>((p.tokens + kWarps - 1) / kWarps); }

}  // namespace

void launch_top_k(const RouterProblem& problem, const float* logits, const RouterResults& to, cudaStream_t stream) {
  with_held(problem.experts, [&]<int kHeld>(std::integral_constant<int, kHeld>) {
    launch_overlapped(top_k_kernel<kHeld>, {blocks_of(problem), kThreads}, stream, problem, logits, to);
  });
}

void launch_router(const RouterProblem& problem, const FewTokens& few, const RouterResults& to, cudaStream_t stream) {
  with_held(problem.experts, [&]<int kHeld>(std::integral_constant<int, kHeld>) {
    const Grid grid{static_cast<unsigned>(problem.experts), kRouterThreads};
    launch_overlapped(router_kernel<kHeld>, grid, stream, problem, few, to);
  });
}

void launch_top_k_grad(const RouterProblem& problem, const float* logits, const int32_t* chosen,
                       const RouterGradients& given, float* dlogits, cudaStream_t stream) {
  top_k_grad_kernel<<<blocks_of(problem), kThreads, 0, stream>>>(problem, logits, chosen, given, dlogits);
}

void launch_group_rows(const GroupedChoices& choices, int groups, int32_t* places, int32_t* offsets, float* counts,
                       cudaStream_t stream) {
  const auto kernel = choices.part != nullptr ? group_rows_kernel<true> : group_rows_kernel<false>;
  launch_overlapped(kernel, {static_cast<unsigned>(groups), kGroupThreads}, stream, choices, places, offsets, counts);
}

}  // namespace octet::cuda
