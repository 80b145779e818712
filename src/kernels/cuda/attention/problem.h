// One attention node as its kernels see it: sizes, masks, dropout, and operands of any float type.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>

#include "kernels/common/alibi.h"
#include "kernels/cuda/common/operand.h"

namespace octet::cuda {

struct AttentionProblem {
  int tokens = 0, heads = 0, kv_heads = 0, dim = 0;
  int window = 0;    // 0: none
  int segments = 0;  // S of segments i32[S+1]
  float scale = 1;
  // Dropout: element (head T + query) max_length + key offset in its segment; kept when its word >> 8 >= threshold.
  bool dropout = false;
  int64_t max_length = 0;
  uint32_t key = 0, threshold = 0;
  float kept_factor = 1;
  float alibi = 0, alibi_scale = 1;  // largest exponent of the slopes, 0: none; alibi_scale is over `scale`

  // Added to a score of `head` before it is scaled, times key - query.
  __host__ __device__ float bias(int head) const {
    return alibi > 0 ? alibi_scale * exp2f(-static_cast<float>(alibi_exponent(head, heads, alibi))) : 0.0f;
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

}  // namespace octet::cuda
