// kv_cache: turns a model graph into an incremental one. Attention appends its keys and values to a paged cache and
// reads them back through block tables; only the requested rows reach the head.
#pragma once

#include "base/dtype.h"
#include "passes/pass.h"

namespace octet {

struct KvCacheOptions {
  std::vector<int64_t> blocks = {};  // in the cache of every layer, by group: as many as attention_windows() gives
  int64_t block_size = 16;           // tokens a block holds
  int64_t sequences = 1;             // S: rows of kv_lengths and block_table
  int64_t blocks_per_sequence = 0;   // B: columns of a block table
  int64_t logit_rows = 1;            // R: rows of the hidden states that reach the head
  DType cache_dtype = DType::kF32;
  int64_t max_query_len = 0;  // of a sequence in one run; 0 = any number. Kernels rely on it
  bool scales = false;        // of an FP8 cache: one of keys and one of values in every layer, found by calibration
};

// The distinct windows of a graph's attention, ascending (0 = all tokens are seen comes first). Layers of one window
// are a group: they share slots and block tables, so that blocks behind a window can be freed.
std::vector<int64_t> attention_windows(const Graph& graph);

// Adds inputs kv_lengths i32[S] and, of every group g, slots.g i32[T] and block_table.g i32[S, B]; before a head's
// product, input logit_rows i32[R] of the rows that reach it. Declares in the program, for keys and values of every
// attention node, a kKvCache [blocks * block_size, kv_heads * head_dim]; with scales also kCacheScale and
// kCacheScaleInv f32[1], 1 until they are loaded. The graph keeps its other inputs; `segments` now says which rows are
// whose queries. Attention with dropout is refused: build the model for inference.
Graph add_kv_cache(Program& program, const Graph& graph, const KvCacheOptions& options);

// Name of an input of group g: "slots.0".
std::string group_input(const char* name, size_t group);

}  // namespace octet
