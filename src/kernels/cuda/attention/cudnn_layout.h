// What stands between the IR and cuDNN: where packed segments start, rows no segment covers, the order of the
// log-sum-exp, what dropout is drawn from.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/attention/problem.h"

namespace octet::cuda {

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
