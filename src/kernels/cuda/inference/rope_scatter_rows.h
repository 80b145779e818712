// Queries and keys turned, keys and values written to their slots of the paged cache, in one kernel. Each value rounds
// as rope and scatter_rows one after the other round it.
#pragma once

#include "kernels/cuda/position/rope.h"

namespace octet::cuda {

struct RopeAppendPlan {
  RopePlan rope;     // heads: of the queries, 0: none to turn; pairs 0: nothing turns, rows are appended as they are
  int kv_heads = 0;  // of keys and values
  int64_t slots = 0;
  DType cache = DType::kBF16;  // bf16 or FP8
  int64_t q_stride = 0, k_stride = 0,
          v_stride = 0;  // elements from a token's row to the next one's; of multiples of dim
};

// bf16 q, q_out [T, heads dim]; k, v [T, kv_heads dim], columns of wider rows (strides); caches [slots, kv_heads dim];
// positions, slots i32[T].
struct RopeAppendOperands {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void *q_out = nullptr, *k_cache = nullptr, *v_cache = nullptr;  // null: not wanted
  const int32_t *positions = nullptr, *slots = nullptr;           // slots outside the cache: nothing is appended
  const float *k_scale = nullptr, *v_scale = nullptr;             // f32[1] that rows are multiplied by, or null
};

// What its accesses need: pairs and dim are multiples of four.
bool rope_scatter_rows_fits(int pairs, int dim);
void launch_rope_scatter_rows(const RopeAppendPlan& plan, const RopeAppendOperands& operands, int sm_count,
                              cudaStream_t stream);

}  // namespace octet::cuda
