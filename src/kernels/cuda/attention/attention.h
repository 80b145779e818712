// Launchers of attention and its gradient: one node as its kernels see it (sizes, masks, dropout, operands of
// any float type), kernels of our own, and what stands between the IR and cuDNN. They return without waiting.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>

#include "kernels/common/alibi.h"
#include "kernels/cuda/common/operand.h"

namespace octet::cuda {

struct AttentionProblem {
  int tokens = 0, heads = 0, kv_heads = 0, dim = 0;
  int window = 0;                     // 0: none
  bool causal = true;                 // false: without linear biases
  int segments = 0;                   // S of segments i32[S+1]
  int first_head = 0, all_heads = 0;  // the place of these heads among those of the whole
  float scale = 1;
  // Dropout: elements are numbered by first_element + key offset in its segment; kept when the word >> 8 >= threshold.
  // Or, with `bytes`, when the byte of keep_byte (kernels/common/keep_rule.h) >= threshold.
  bool dropout = false, bytes = false;
  int64_t max_length = 0;
  uint32_t key = 0, threshold = 0;
  float kept_factor = 1;
  float alibi = 0, alibi_scale = 1;  // largest exponent of the slopes, 0: none; alibi_scale is over `scale`

  // Added to a score of `head` before it is scaled, times key - query.
  __host__ __device__ float bias(int head) const {
    return alibi > 0 ? alibi_scale * exp2f(-static_cast<float>(alibi_exponent(first_head + head, all_heads, alibi)))
                     : 0.0f;
  }
  __host__ __device__ int64_t first_element(int head, int query) const {
    return (static_cast<int64_t>(first_head + head) * tokens + query) * max_length;
  }
  __host__ __device__ int group() const { return heads / kv_heads; }
};

// q, out, dout, dq [T, heads D]; k, v, dk, dv [T, kv_heads D]; lse f32[T, heads]; rng i64[3] with dropout. Results with
// null data are not made. out and dout of the forward struct are unused there.
struct AttentionOperands {
  Operand q, k, v, out, dout, dq, dk, dv;
  float* lse = nullptr;
  const int32_t* segments = nullptr;
  const int64_t* rng = nullptr;
};

// --- float32 arithmetic for every type, head dim, window, packing and dropout: what always runs.
inline constexpr int kLargestTiledDim = 256;  // beyond it the launchers take one warp a row instead of tiles
void launch_attention_tiled(const AttentionProblem& problem, const AttentionOperands& operands, cudaStream_t stream);
// delta f32[T, heads] = dout . out, of any float types.
void launch_attention_delta(const AttentionProblem& problem, const AttentionOperands& operands, float* delta,
                            cudaStream_t stream);
// Two passes, one owning queries (dq) and one owning keys (dk, dv): no atomics.
void launch_attention_grad_tiled(const AttentionProblem& problem, const AttentionOperands& operands, const float* delta,
                                 cudaStream_t stream);

// --- bf16 on tensor cores: what cuDNN does not take (the IR's dropout, ALiBi) or is not there for. mma: dropout by
// words.
inline constexpr int kLargestMmaDim = 128;  // a multiple of 8

// All float operands are bf16. Probabilities and score gradients are rounded to bf16 before they are multiplied.
void launch_attention_mma(const AttentionProblem& problem, const AttentionOperands& operands, cudaStream_t stream);
// `delta` f32[T, heads] holds dout . out (launch_attention_delta). Two passes as above.
void launch_attention_grad_mma(const AttentionProblem& problem, const AttentionOperands& operands, const float* delta,
                               cudaStream_t stream);

// The same on Hopper's products of a warp group: no dropout, or by bytes. The gradient fills `delta` itself.
void launch_attention_wgmma(const AttentionProblem& problem, const AttentionOperands& operands, cudaStream_t stream);
void launch_attention_grad_wgmma(const AttentionProblem& problem, const AttentionOperands& operands, float* delta,
                                 cudaStream_t stream);

// --- cuDNN: where packed segments start, rows no segment covers, the order of the log-sum-exp, what dropout is drawn
// from.
// lengths i32[S]; starts of segments in elements of q (heads D a token), k (kv_heads D) and lse (heads): i32[S+1] each.
struct RaggedLayout {
  int32_t *lengths = nullptr, *q_starts = nullptr, *kv_starts = nullptr, *stats_starts = nullptr;
};
void launch_ragged_layout(const AttentionProblem& problem, const int32_t* segments, const RaggedLayout& layout,
                          cudaStream_t stream);

// Rows of [tokens, width] elements of `bytes` bytes that lie in no segment become 0; width * bytes is a multiple of 4.
void launch_clear_outside(const AttentionProblem& problem, const int32_t* segments, void* rows, int width, int bytes,
                          cudaStream_t stream);

// to[batch, heads, length] = from[batch, length, heads]
void launch_lse_by_head(const float* from, float* to, int batch, int length, int heads, cudaStream_t stream);

// to i64[2] = seed, offset of a dropout site's mask, of rng i64[3] (seed, step, micro-batch) and the site's key.
void launch_mask_seed(const int64_t* rng, uint32_t key, int64_t* to, cudaStream_t stream);

}  // namespace octet::cuda
