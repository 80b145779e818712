// Rotary embedding: x [T, heads D] of f32, bf16 or f16, positions i32[T].
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace octet::cuda {

struct RopePlan {
  int tokens = 0, heads = 0, dim = 0, pairs = 0;  // pairs: rotary_dim / 2
  bool interleaved = false;
  float sign = 1;                       // -1 turns back
  float factor = 1;                     // what turns is multiplied by it
  const double* frequencies = nullptr;  // device f64[pairs]
};

// x and y may be the same memory. amax [1]: of y as it is stored; y, or the amax, may be null. `amaxes` [tokens]:
// scratch where there is an amax.
void launch_rope(DType dtype, const RopePlan& plan, const void* x, const int32_t* positions, void* y, float* amax,
                 uint32_t* amaxes, int sm_count, cudaStream_t stream);

// --- queries and keys turned, keys and values written to their slots of the paged cache, in one kernel. Each value
// rounds as rope and scatter_rows one after the other round it.
struct RopeAppendPlan {
  RopePlan rope;     // heads: of the queries, 0: none to turn; pairs 0: nothing turns, rows are appended as they are
  int kv_heads = 0;  // of keys and values
  int64_t slots = 0;
  DType cache = DType::kBF16;  // bf16, FP8 or int8
  int64_t q_stride = 0, k_stride = 0,
          v_stride = 0;  // elements from a token's row to the next one's; of multiples of dim
  float eps = 0;         // of the norms of heads
};

// bf16 q, q_out [T, heads dim]; k, v [T, kv_heads dim], columns of wider rows (strides); caches [slots, kv_heads dim];
// positions, slots i32[T].
struct RopeAppendOperands {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void *q_out = nullptr, *k_cache = nullptr, *v_cache = nullptr;  // null: not wanted
  const int32_t *positions = nullptr, *slots = nullptr;           // slots outside the cache: nothing is appended
  const float *k_scale = nullptr, *v_scale = nullptr;             // f32[1] that rows are multiplied by, or null
  float *k_scale_inv = nullptr, *v_scale_inv = nullptr;           // of an int8 cache [slots, kv_heads], made as it is
  const float *q_norm = nullptr, *k_norm = nullptr;  // [dim]: heads are rms_norms, rounded, before they turn; or null
};

// What its accesses need: pairs and dim are multiples of four; for int8 no part of a head passes, and the threads of a
// head, 8 or 4 elements each, are a power of two of one warp.
bool rope_scatter_rows_fits(int pairs, int dim, DType cache);
bool rope_head_norm_fits(int pairs, int dim, bool interleaved);  // whole heads turn, by 8 elements of both halves
void launch_rope_scatter_rows(const RopeAppendPlan& plan, const RopeAppendOperands& operands, int sm_count,
                              cudaStream_t stream);

}  // namespace octet::cuda
