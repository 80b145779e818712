// The Program of a serving runner: forward graphs for buckets of tokens, sampling graphs for buckets of rows, block
// copies; and how many cache blocks the memory allows.
//
// A step runs the smallest bucket that holds it, padded with tokens that belong to no sequence and are not stored.
// Decode buckets have as many sequences as tokens; mixed buckets have max_sequences. With adapters a bucket has several
// graphs: one without any, one for each class of ranks and one for all of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "infer/runner.h"
#include "model/model.h"
#include "octet/engine.h"
#include "passes/pass.h"

namespace octet {

struct ServingOptions {
  EngineOptions engine = {};  // those of its context, recipe and cache that it leaves open are chosen below
  Target target = {};
  Recipe recipe = {};
  DType cache_dtype = DType::kF32;
  bool cache_scales = false;    // FP8 cache: scales are loaded with the weights
  int64_t max_entries = 0;      // of adjust_logits in a step; 0 = 65536, or what one sequence may need if that is more
  bool warm_up = true;          // run every graph before the first request (GPUs only)
  AdapterTables adapters = {};  // empty: none; its linears and types are found out below
  std::vector<std::string> adapter_targets = {};  // of adapted_linears()

  // Tokens of a sequence that a step verifies beside its next one; 0: no speculation.
  int64_t draft_tokens() const { return engine.draft.empty() ? 0 : engine.draft_tokens; }
};

struct ForwardBucket {
  int64_t tokens = 0, sequences = 0;
  std::string graph;
  uint64_t adapters = 0;  // bit c: class c of AdapterTables::classes(). 0: a graph without
  int64_t read_rows = 0;  // rows that the last layer works on (read_rows_only); 0: all tokens
  size_t read_group = 0;  // cache group of the last layer
};

struct SampleBucket {
  int64_t rows = 0, entries = 0, masks = 0;
  bool top_logprobs = false;
  std::string graph;
};

struct ServingProgram {
  Plan plan;
  RunnerLimits limits;
  std::vector<ForwardBucket> decode, mixed;  // ascending
  std::vector<SampleBucket> samples;         // cheapest first
  std::vector<std::string> copies;           // graph of each group
};
inline constexpr int64_t kCopyPairs = 64;  // (from, to) pairs per run of a copy graph

// Bucket sizes up to `most`: two for every power of two, which limits padding to a third, each a multiple of
// `multiple`.
std::vector<int64_t> bucket_sizes(int64_t smallest, int64_t most, int64_t multiple = 1);

// The program of each of options.engine.tensor ranks. `free_bytes`: of memory on the rank that has the least; none: as
// the device says, 0: not known. Throws kInvalidArgument for options that contradict the model or each other,
// kOutOfMemory with the missing bytes and a context that would fit.
ServingProgram build_serving_program(const ModelSpec& model, const ServingOptions& options,
                                     std::optional<int64_t> free_bytes = {});

}  // namespace octet
