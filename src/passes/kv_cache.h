// kv_cache: turns a model graph into an incremental one. Attention appends its keys and values to a paged cache and
// reads them back through block tables; only the requested rows reach the head.
#pragma once

#include "base/dtype.h"
#include "passes/pass.h"

namespace octet {

struct KvCacheOptions {
  int64_t blocks = 0;               // in the cache of every layer
  int64_t block_size = 16;          // tokens a block holds
  int64_t sequences = 1;            // S: rows of kv_lengths and block_table
  int64_t blocks_per_sequence = 0;  // B: columns of block_table
  int64_t logit_rows = 1;           // rows of the hidden states that reach the head
  DType cache_dtype = DType::kF32;
  bool scales = false;  // of an FP8 cache: one of keys and one of values in every layer, found by calibration
};

// Adds inputs slots i32[T], kv_lengths i32[S], block_table i32[S, B], logit_rows i32[R] and, for every attention node,
// states "kv.<name>.k" and "kv.<name>.v" [blocks * block_size, kv_heads * head_dim]; with scales also states f32[1]
// "kv.<name>.k_scale" (rows are multiplied by it when they are stored) and "kv.<name>.k_scale_inv" (when they are
// read), and the same of v: of kind kScale, 1 until they are loaded. The graph keeps its other inputs; `segments` now
// says which rows are whose queries. Attention with dropout is refused: build the model for inference.
Graph add_kv_cache(const Graph& graph, const KvCacheOptions& options);

}  // namespace octet
