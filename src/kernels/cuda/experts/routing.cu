// The choice of experts, its gradient, and the sort of choices by expert. A token is a warp's; sums over experts run in
// one order, so a token's bits do not depend on its neighbours.
#include <cuda_runtime.h>

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/experts/experts.h"

namespace octet::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

__device__ __forceinline__ float ranked(float logit) { return isnan(logit) ? -INFINITY : logit; }

// The largest logit but NaN, and the sum of exp(logit - most): NaN where a logit is.
struct Softmax {
  float most = -INFINITY, sum = 0;

  __device__ Softmax(const float* logits, int experts, int lane) {
    for (int e = lane; e < experts; e += 32) most = fmaxf(most, ranked(logits[e]));
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1) most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, lanes));
    for (int e = lane; e < experts; e += 32) sum += expf(logits[e] - most);
    sum = warp_reduce<Sum>(sum);
  }
  __device__ float score(float logit) const { return expf(logit - most) / sum; }
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__global__ void __launch_bounds__(kThreads) top_k_kernel(RouterProblem p, const float* all_logits, RouterResults to) {
  griddep_begin(false);
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (t >= p.tokens) return;
  const float* logits = all_logits + t * p.experts;
  const Softmax softmax(logits, p.experts, lane);
  const auto score = [&](float logit) { return p.softmax ? softmax.score(logit) : sigmoid(logit); };
  if (to.lse != nullptr && lane == 0) to.lse[t] = softmax.most + logf(softmax.sum);
  if (to.scores != nullptr)
    for (int e = lane; e < p.experts; e += 32) to.scores[t * p.experts + e] = score(logits[e]);
  // The next in the order of (logit, lower index) behind the last one.
  float last = INFINITY, sum = 0;
  int last_index = -1;
  for (int i = 0; i < p.k; ++i) {
    float best = 0;
    int index = p.experts;  // none
    for (int e = lane; e < p.experts; e += 32) {
      const float logit = ranked(logits[e]);
      const bool behind = logit < last || (logit == last && e > last_index);
      if (behind && (index == p.experts || logit > best)) best = logit, index = e;
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1) {
      const float other = __shfl_xor_sync(kWholeWarp, best, lanes);
      const int other_index = __shfl_xor_sync(kWholeWarp, index, lanes);
      const bool better = index == p.experts || other > best || (other == best && other_index < index);
      if (other_index != p.experts && better) best = other, index = other_index;
    }
    last = best, last_index = index;
    const float weight = score(logits[index]);
    sum += weight;
    if (lane != 0) continue;
    if (to.chosen != nullptr) to.chosen[t * p.k + i] = index;
    if (to.weights != nullptr) to.weights[t * p.k + i] = weight;
  }
  if (!p.renormalize || to.weights == nullptr || lane != 0) return;
  for (int i = 0; i < p.k; ++i) to.weights[t * p.k + i] /= sum;
}

__global__ void __launch_bounds__(kThreads)
    top_k_grad_kernel(RouterProblem p, const float* all_logits, const int32_t* all_chosen, RouterGradients given,
                      float* dlogits) {
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (t >= p.tokens) return;
  const float* logits = all_logits + t * p.experts;
  const int32_t* chosen = all_chosen + t * p.k;
  const Softmax softmax(logits, p.experts, lane);
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

// A block finds the rows of its own expert: each warp counts in its run of choices, then gives places from there on.
__global__ void __launch_bounds__(kGroupThreads)
    group_rows_kernel(const int32_t* chosen, int count, int32_t* places, int32_t* offsets, float* counts) {
  __shared__ int lower_of[kGroupWarps], own_of[kGroupWarps];
  griddep_begin(false);
  const int expert = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int run = (count + kGroupThreads - 1) / kGroupThreads * 32;
  const int begin = min(warp * run, count), end = min(begin + run, count);
  int lower = 0, own = 0;
#pragma unroll 4
  for (int i = begin + lane; i < end; i += 32) lower += chosen[i] < expert, own += chosen[i] == expert;
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
    const bool mine = i < end && chosen[i] == expert;
    const unsigned all = __ballot_sync(kWholeWarp, mine);
    if (mine) places[i] = next + __popc(all & ((1u << lane) - 1));
    next += __popc(all);
  }
}

unsigned blocks_of(const RouterProblem& p) { return static_cast<unsigned>((p.tokens + kWarps - 1) / kWarps); }

}  // namespace

void launch_top_k(const RouterProblem& problem, const float* logits, const RouterResults& to, cudaStream_t stream) {
  launch_overlapped(top_k_kernel, {blocks_of(problem), kThreads}, stream, problem, logits, to);
}

void launch_top_k_grad(const RouterProblem& problem, const float* logits, const int32_t* chosen,
                       const RouterGradients& given, float* dlogits, cudaStream_t stream) {
  top_k_grad_kernel<<<blocks_of(problem), kThreads, 0, stream>>>(problem, logits, chosen, given, dlogits);
}

void launch_group_rows(const int32_t* chosen, int64_t count, int experts, int32_t* places, int32_t* offsets,
                       float* counts, cudaStream_t stream) {
  launch_overlapped(group_rows_kernel, {static_cast<unsigned>(experts), kGroupThreads}, stream, chosen,
                    static_cast<int>(count), places, offsets, counts);
}

}  // namespace octet::cuda
