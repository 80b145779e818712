// The graphs of serving, made from a model's inference graph: forward (tokens to hidden rows), sampling (hidden rows to
// ids) and copies of cache blocks. Two states pass between them without the host: `hidden` [R, H], the rows the forward
// left for sampling, and `sampled` i32[S, 1], the last id of every sequence, from which the next forward may read.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/plan.h"
#include "passes/kv_cache.h"

namespace octet {

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
// adjustment.
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
