// The graphs of serving, made from a model's inference graph: forward (tokens to hidden rows), sampling (hidden rows to
// ids) and copies of cache blocks. Two states pass between them without the host: `hidden` [R, H], the rows the forward
// left for sampling, and `sampled` i32[S, 1], the last id of every sequence, from which the next forward may read.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ir/plan.h"
#include "passes/pass.h"

namespace octet {

// kv_cache: turns a model graph into an incremental one. Attention appends its keys and values to a paged cache and
// reads them back through block tables; only the requested rows reach the head.
struct KvCacheOptions {
  std::vector<int64_t> blocks = {};  // in the cache of every layer, by group: as many as attention_windows() gives
  int64_t block_size = 16;           // tokens a block holds
  int64_t sequences = 1;             // S: rows of kv_lengths and block_table
  int64_t blocks_per_sequence = 0;   // B: columns of a block table
  int64_t logit_rows = 1;            // R: rows of the hidden states that reach the head
  DType cache_dtype = DType::kF32;   // a float type, or i8: codes with a scale for every slot and kv head
  int64_t max_query_len = 0;         // of a sequence in one run; 0 = any number. Kernels rely on it
  bool scales = false;  // of an FP8 cache: one of keys and one of values in every layer, found by calibration
};

// The distinct windows of a graph's attention, ascending (0 = all tokens are seen comes first). Layers of one window
// are a group: they share slots and block tables, so that blocks behind a window can be freed.
std::vector<int64_t> attention_windows(const Graph& graph);

// Adds inputs kv_lengths i32[S] and, of every group g, slots.g i32[T] and block_table.g i32[S, B]; before a head's
// product, input logit_rows i32[R] of the rows that reach it. Declares in the program, for keys and values of every
// attention node, a kKvCache [blocks * block_size, kv_heads * head_dim]; with scales also kCacheScale and
// kCacheScaleInv f32[1], 1 until they are loaded; with a cache of i8 also kKvCaches f32[blocks * block_size, kv_heads]
// of the scales that scatter_codes finds. The graph keeps its other inputs; `segments` now says which rows are
// whose queries. Attention with dropout is refused: build the model for inference.
Graph add_kv_cache(Program& program, const Graph& graph, const KvCacheOptions& options);

// Types of a cache by the names that users give: "f32", "bf16", "e4m3", "int8". Throws kInvalidArgument with the list.
DType parse_cache_dtype(const std::string& name);
const char* cache_dtype_name(DType cache);
// Bytes of one token's keys (or values) of a head, the scale of an i8 cache included.
int64_t cached_head_bytes(int64_t head_dim, DType cache);

// Name of an input of group g: "slots.0".
std::string group_input(const char* name, size_t group);

// Buffers.
inline constexpr const char* kHiddenState = "hidden";
inline constexpr const char* kSampledState = "sampled";

struct ServingStates {
  int64_t sequences = 0;  // rows of `sampled`
  int64_t rows = 0;       // rows of `hidden`
  DType hidden_dtype = DType::kF32;
};

// `logits`: a graph of T tokens with one head product. What stands before that product, with add_kv_cache(): input
// `from` i32[T] (id t is sampled[from[t]] where it is not negative), input hidden_rows i32[T] (the row of `hidden`
// token t goes to; -1 = none). No outputs.
Graph forward_graph(Program& program, const std::string& name, const Graph& logits, const KvCacheOptions& cache,
                    const ServingStates& states);

// A forward graph whose last layer, behind its keys and values, works on the rows alone that are sampled or scored:
// inputs read_rows, read_positions, hidden_rows i32[rows] (token rows, their positions, rows of `hidden`; -1 = none),
// and as attention's queries, each a sequence of its own, read_segments i32[rows + 1], read_lengths i32[rows] and
// read_table i32[rows, B]. Not for graphs with adapters, whose inputs say which rows are whose.
Graph read_rows_only(const Graph& forward, int64_t rows);

struct SampleGraphOptions {
  int64_t rows = 0;          // R of this graph
  int64_t entries = 0;       // E of adjust_logits; 0 = no adjustment
  int64_t masks = 0;         // M of adjust_logits; 0 = none (they need entries > 0)
  int64_t top_logprobs = 0;  // k; 0 = none
};

// `logits`: a graph with output "logits" and one head product. The head and what follows it on rows 0..R-1 of `hidden`
// in float32, then the choice of a token. Inputs params f32[R, 3], top_k i32[R], seeds i64[R, 3], store i32[R] (row of
// `sampled`; -1 = none) and, where options say so, entries i32[E, 2], values f32[E, 3], masks i32[M, ceil(V / 32)],
// mask_rows i32[R]; outputs ids, logprobs and, for k > 0, top_logprobs, top_ids. Log-probabilities are those before the
// adjustment; with k and entries, adjusted_logprobs and adjusted_ids are the likeliest ones after it.
Graph sample_graph(Program& program, const std::string& name, const Graph& logits, const SampleGraphOptions& options,
                   const ServingStates& states);

// copy_blocks for every cache of one group of a forward graph. Input pairs i32[pairs, 2].
Graph copy_blocks_graph(const std::string& name, const Graph& forward, size_t group, int64_t block_size, int64_t pairs);

// The cache states of a forward graph and the group each belongs to.
std::map<std::string, size_t> cache_groups(const Graph& forward);

// Gives the caches of a plan other numbers of blocks. Nothing else depends on them, so that a plan made with one block
// says how much memory is left for more.
void set_cache_blocks(Plan& plan, const std::map<std::string, size_t>& groups, const std::vector<int64_t>& blocks,
                      int64_t block_size);

}  // namespace octet
