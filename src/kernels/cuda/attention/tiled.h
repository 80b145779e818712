// Attention in float32 arithmetic for every type, head dim, window, packing and dropout: the rows that always run.
#pragma once

#include "kernels/cuda/attention/problem.h"

namespace octet::cuda {

inline constexpr int kLargestTiledDim = 256;  // beyond it the launchers take one warp a row instead of tiles

void launch_attention_tiled(const AttentionProblem& problem, const AttentionOperands& operands, cudaStream_t stream);
// delta f32[T, heads] = dout . out, of any float types.
void launch_attention_delta(const AttentionProblem& problem, const AttentionOperands& operands, float* delta,
                            cudaStream_t stream);
// Two passes, one owning queries (dq) and one owning keys (dk, dv): no atomics.
void launch_attention_grad_tiled(const AttentionProblem& problem, const AttentionOperands& operands, const float* delta,
                                 cudaStream_t stream);

}  // namespace octet::cuda
