#include "kernels/cuda/attention/any_dim.h"

#include "kernels/cuda/attention/tiles.cuh"

namespace octet::cuda {
namespace {

constexpr int kWarps = 4;

__device__ float dot(const Operand& a, int64_t a_row, const Operand& b, int64_t b_row, int dim) {
  float sum = 0;
  for (int d = static_cast<int>(threadIdx.x) % 32; d < dim; d += 32) {
    sum = fmaf(load(a, a_row * dim + d), load(b, b_row * dim + d), sum);
  }
  return warp_reduce<Sum>(sum);
}

struct Range {
  int low, high, start;
  __device__ static Range of_query(const AttentionProblem& p, const int32_t* segments, int t) {
    const Segment s = Segment::of(segments, p.segments, t, p.tokens);
    if (s.start >= s.end) return {t, t, t};
    return {p.window > 0 && p.window < p.tokens ? max(s.start, t - p.window + 1) : s.start, t + 1, s.start};
  }
  __device__ static Range of_key(const AttentionProblem& p, const int32_t* segments, int t) {
    const Segment s = Segment::of(segments, p.segments, t, p.tokens);
    if (s.start >= s.end) return {t, t, t};
    return {t, p.window > 0 && p.window < p.tokens ? min(s.end, t + p.window) : s.end, s.start};
  }
};

// This warp's row of [tokens x heads] as (token, head); false beyond the end.
__device__ bool own_row(int tokens, int heads, int& token, int& head) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  token = static_cast<int>(row / heads), head = static_cast<int>(row % heads);
  return token < tokens;
}

// Sums of the row are in shared memory, [dim] floats a warp.
__global__ void attention_rows_kernel(AttentionProblem p, AttentionOperands x) {
  extern __shared__ float shared_sums[];
  float* sums = shared_sums + static_cast<int>(threadIdx.x) / 32 * p.dim;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int t, head;
  if (!own_row(p.tokens, p.heads, t, head)) return;
  const int64_t row = static_cast<int64_t>(t) * p.heads + head;
  const int kv_head = head / p.group();
  const float bias = p.bias(head);
  const Range range = Range::of_query(p, x.segments, t);
  RandomStream stream{};
  if (p.dropout) stream = RandomStream::of(x.rng, p.key);
  for (int d = lane; d < p.dim; d += 32) sums[d] = 0;
  float largest = -INFINITY, sum = 0;
  for (int j = range.low; j < range.high; ++j) {
    const int64_t kv_row = static_cast<int64_t>(j) * p.kv_heads + kv_head;
    const float score = p.scale * fmaf(bias, static_cast<float>(j - t), dot(x.q, row, x.k, kv_row, p.dim));
    const float top = fmaxf(largest, score);
    const float shrink = exponential(largest - top), probability = exponential(score - top);
    sum = fmaf(sum, shrink, probability);
    largest = top;
    const float weight = p.dropout ? probability * keep_factor(p, stream, head, t, j - range.start) : probability;
    for (int d = lane; d < p.dim; d += 32) sums[d] = fmaf(weight, load(x.v, kv_row * p.dim + d), sums[d] * shrink);
  }
  const bool sees = range.low < range.high;
  if (x.out.data != nullptr) {
    for (int d = lane; d < p.dim; d += 32) store(x.out, row * p.dim + d, sees ? sums[d] / sum : 0.0f);
  }
  if (x.lse != nullptr && lane == 0) x.lse[row] = sees ? largest + logf(sum) : 0.0f;
}

template <bool kOwnIsKey>
__global__ void attention_grad_rows_kernel(AttentionProblem p, AttentionOperands x, const float* delta) {
  extern __shared__ float shared_sums[];
  float* sums = shared_sums + static_cast<int>(threadIdx.x) / 32 * 2 * p.dim;  // of dq, or dk
  float* value_sums = sums + p.dim;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int own, own_head;
  if (!own_row(p.tokens, kOwnIsKey ? p.kv_heads : p.heads, own, own_head)) return;
  const Range range = kOwnIsKey ? Range::of_key(p, x.segments, own) : Range::of_query(p, x.segments, own);
  RandomStream stream{};
  if (p.dropout) stream = RandomStream::of(x.rng, p.key);
  for (int d = lane; d < p.dim; d += 32) sums[d] = value_sums[d] = 0;
  const int kv_head = kOwnIsKey ? own_head : own_head / p.group();
  const int first_head = kOwnIsKey ? own_head * p.group() : own_head;
  for (int head = first_head; head < first_head + (kOwnIsKey ? p.group() : 1); ++head) {
    const float bias = p.bias(head);
    for (int other = range.low; other < range.high; ++other) {
      const int query = kOwnIsKey ? other : own, key = kOwnIsKey ? own : other;
      const int64_t row = static_cast<int64_t>(query) * p.heads + head;
      const int64_t kv_row = static_cast<int64_t>(key) * p.kv_heads + kv_head;
      const float keep = p.dropout ? keep_factor(p, stream, head, query, key - range.start) : 1.0f;
      const float score = fmaf(bias, static_cast<float>(key - query), dot(x.q, row, x.k, kv_row, p.dim));
      const float probability = exponential(p.scale * score - x.lse[row]);
      const float ds = p.scale * probability * (dot(x.dout, row, x.v, kv_row, p.dim) * keep - delta[row]);
      for (int d = lane; d < p.dim; d += 32) {
        sums[d] = fmaf(ds, kOwnIsKey ? load(x.q, row * p.dim + d) : load(x.k, kv_row * p.dim + d), sums[d]);
        if (kOwnIsKey) value_sums[d] = fmaf(probability * keep, load(x.dout, row * p.dim + d), value_sums[d]);
      }
    }
  }
  const int64_t own_at = (static_cast<int64_t>(own) * (kOwnIsKey ? p.kv_heads : p.heads) + own_head) * p.dim;
  const Operand& to = kOwnIsKey ? x.dk : x.dq;
  for (int d = lane; d < p.dim; d += 32) {
    if (to.data != nullptr) store(to, own_at + d, sums[d]);
    if (kOwnIsKey && x.dv.data != nullptr) store(x.dv, own_at + d, value_sums[d]);
  }
}

unsigned blocks(const AttentionProblem& p, int heads) {
  return static_cast<unsigned>((static_cast<int64_t>(p.tokens) * heads + kWarps - 1) / kWarps);
}

}  // namespace

void launch_attention_rows(const AttentionProblem& p, const AttentionOperands& x, cudaStream_t stream) {
  const size_t bytes = static_cast<size_t>(kWarps) * static_cast<size_t>(p.dim) * sizeof(float);
  allow_shared(attention_rows_kernel, bytes);
  attention_rows_kernel<<<blocks(p, p.heads), 32 * kWarps, bytes, stream>>>(p, x);
}

void launch_attention_grad_rows(const AttentionProblem& p, const AttentionOperands& x, const float* delta,
                                cudaStream_t stream) {
  const size_t bytes = 2 * static_cast<size_t>(kWarps) * static_cast<size_t>(p.dim) * sizeof(float);
  if (x.dq.data != nullptr) {
    allow_shared(attention_grad_rows_kernel<false>, bytes);
    attention_grad_rows_kernel<false><<<blocks(p, p.heads), 32 * kWarps, bytes, stream>>>(p, x, delta);
  }
  if (x.dk.data != nullptr || x.dv.data != nullptr) {
    allow_shared(attention_grad_rows_kernel<true>, bytes);
    attention_grad_rows_kernel<true><<<blocks(p, p.kv_heads), 32 * kWarps, bytes, stream>>>(p, x, delta);
  }
}

}  // namespace octet::cuda
