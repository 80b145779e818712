// Attention for head dims beyond the tiles: one warp a row, vectors of the head read from memory again for each pair.
#pragma once

#include "kernels/cuda/attention/problem.h"

namespace octet::cuda {

void launch_attention_rows(const AttentionProblem& p, const AttentionOperands& x, cudaStream_t stream);
void launch_attention_grad_rows(const AttentionProblem& p, const AttentionOperands& x, const float* delta,
                                cudaStream_t stream);

}  // namespace octet::cuda
