// The Program of a serving runner: forward graphs for buckets of tokens, sampling graphs for buckets of rows, block
// copies; and how many cache blocks the memory allows.
//
// A step runs the smallest bucket that holds it, padded with tokens that belong to no sequence and are not stored.
// Decode buckets have as many sequences as tokens; mixed buckets have max_sequences.
#pragma once

#include <functional>
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
  Target target = {};
  Recipe recipe = {};
  DType cache_dtype = DType::kF32;
  bool cache_scales = false;       // FP8 cache: scales are loaded with the weights
  int64_t tensor = 1;              // ranks that share the model; bytes below are those of each
  double rank_timeout = 60;        // seconds that a step waits for a rank
  std::string build = {};          // equal in all processes of the ranks
  int64_t context = 0;             // tokens a sequence may reach; 0 = the model's
  int64_t max_sequences = 256;     // in a step
  int64_t max_step_tokens = 2048;  // in a step
  int64_t block_size = 0;          // 0 = the Target's: 64 on GPUs, 16 on CPUs
  int64_t kv_cache_bytes = 0;      // 0 = what memory_fraction leaves
  double memory_fraction = 0.9;    // of the device's free memory
  int64_t draft_tokens = 0;        // tokens of a text that a step verifies beside its next one; 0: no speculation
  int64_t max_entries = 0;  // of adjust_logits in a step; 0 = 65536, or what one sequence may need if that is more
  bool warm_up = true;      // run every graph before the first request (GPUs only)
  std::function<void(const EnginePlan&)> planned = {};  // called when memory is planned, before weights are read
};

struct ForwardBucket {
  int64_t tokens = 0, sequences = 0;
  std::string graph;
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

// The program of each of options.tensor ranks. `free_bytes`: of memory on the rank that has the least; none: as the
// device says, 0: not known. Throws kInvalidArgument for options that contradict the model or each other, kOutOfMemory
// with the missing bytes and a context that would fit.
ServingProgram build_serving_program(const ModelSpec& model, const ServingOptions& options,
                                     std::optional<int64_t> free_bytes = {});

}  // namespace octet
