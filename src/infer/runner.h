// The runner knows tensors, never policy: it turns a StepInput into inputs of a plan and runs it.
//
// A step is two calls: forward() enqueues the model's graph for the step's tokens and leaves the hidden states of the
// rows that will be sampled on the device; sample() enqueues head, penalties and sampling for them and leaves the
// sampled ids on the device too, in the table `sampled`, where the next step's forward() can take them from without the
// host knowing them. wait() gives the host the ids. The engine calls
//   forward(N+1), wait() of step N, [commit], sample(N+1), forward(N+2), ...
// so that the device always has the next step's forward to run while the host works. sample() and wait() are called for
// every forward, also for one that samples no row. Inputs are the caller's again when a call returns.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "infer/cache_group.h"

namespace octet {

// What a forward reads: plain data of fixed layout, the same bytes on every rank. T tokens in order of their sequences,
// then padding that belongs to none; S sequences; R rows to be sampled.
struct StepInput {
  struct Group {                 // of caches (full attention; window N)
    std::vector<int32_t> slots;  // [T] where a token's key and value go; -1 = nowhere
    std::vector<int32_t> table;  // [S, blocks_per_sequence] block tables; -1 = freed or unused
  };
  std::vector<int32_t> ids;         // [T]
  std::vector<int32_t> positions;   // [T]
  std::vector<int32_t> from;        // [T] >= 0: the id is sampled[from]
  std::vector<int32_t> segments;    // [S + 1]
  std::vector<int32_t> kv_lengths;  // [S] keys of a sequence, this step's included
  std::vector<int32_t> logit_rows;  // [R] token rows whose next token will be sampled
  std::vector<Group> groups;
  bool decode_only = false;  // every sequence has one token

  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t sequences() const { return static_cast<int64_t>(kv_lengths.size()); }
};

// What sampling reads, for the R rows of the forward before it.
struct SampleInput {
  std::vector<float> params;       // [R, 3] temperature, top_p, min_p
  std::vector<int32_t> top_k;      // [R]
  std::vector<int64_t> seeds;      // [R, 3] seed, sequence, position
  std::vector<int32_t> store;      // [R] row of the table `sampled` the id goes to; -1 = nowhere
  std::vector<int32_t> entries;    // [E, 2] of adjust_logits
  std::vector<float> values;       // [E, 3]
  std::vector<uint32_t> masks;     // [M, ceil(V / 32)]
  std::vector<int32_t> mask_rows;  // [R] or empty
  bool top_logprobs = false;

  int64_t rows() const { return static_cast<int64_t>(top_k.size()); }
};

struct SampleOutput {                   // valid until the next sample()
  std::span<const int32_t> ids;         // [R]; -1: no finite logit
  std::span<const float> logprobs;      // [R]
  std::span<const float> top_logprobs;  // [R, kTopLogprobs or the whole vocabulary] if asked for
  std::span<const int32_t> top_ids;     // the same
};
inline constexpr int64_t kTopLogprobs = 20;

struct RunnerLimits {
  int64_t tokens = 0, sequences = 0, rows = 0;  // of a step, at most
  int64_t context = 0, vocab = 0, block_size = 0;
  int64_t entries = 0, masks = 0;  // of a sampling step, at most
  std::vector<CacheGroup> groups;
  int64_t kv_bytes = 0;
};

class Runner {
 public:
  virtual ~Runner() = default;
  virtual const RunnerLimits& limits() const = 0;
  virtual void copy_blocks(std::span<const BlockCopy> copies) = 0;  // before the forward that writes to the copies
  virtual void forward(const StepInput& input) = 0;
  virtual void sample(const SampleInput& input) = 0;
  // Results of the last sample(). Throws octet::Error for a device that failed; then the runner is of no more use.
  virtual SampleOutput wait() = 0;
  // Tokens the plan runs for a step of so many tokens and sequences (buckets are padded): for statistics.
  virtual int64_t padded_tokens(const StepInput& input) const = 0;
};

}  // namespace octet
