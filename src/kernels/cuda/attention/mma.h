// Attention of bf16 on tensor cores by our own kernels: what cuDNN does not take (the IR's dropout, ALiBi) or
// is not there for.
#pragma once

#include "kernels/cuda/attention/problem.h"

namespace octet::cuda {

inline constexpr int kLargestMmaDim = 128;  // a multiple of 8

// All float operands are bf16. Probabilities and score gradients are rounded to bf16 before they are multiplied.
void launch_attention_mma(const AttentionProblem& problem, const AttentionOperands& operands, cudaStream_t stream);
// `delta` f32[T, heads] holds dout . out (launch_attention_delta). Two passes as in tiled.h: no atomics.
void launch_attention_grad_mma(const AttentionProblem& problem, const AttentionOperands& operands, const float* delta,
                               cudaStream_t stream);

}  // namespace octet::cuda
