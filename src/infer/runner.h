// The runner executes steps and makes no scheduling decisions: it copies a StepInput to the inputs of a plan and runs
// it.
//
// A step is two calls: forward() enqueues the model's graph for the step's tokens and stores the hidden states of the
// rows to sample on the device; sample() enqueues head, penalties and sampling and stores the sampled ids on the device
// in the table `sampled`, from which the next step's forward() reads them before the host knows them. wait() returns
// the ids to the host. The engine calls
//   forward(N+1), wait() of step N, [commit], sample(N+1), forward(N+2), ...
// so that the device always has the next step's forward to run while the host works. sample() and wait() are called for
// every forward, also for one that samples no row. Inputs may be reused when a call returns.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "infer/cache_group.h"
#include "passes/serving_adapters.h"

namespace octet {

// Input of a forward: plain data of fixed layout, the same bytes on every rank. T tokens in the order of their
// sequences; S sequences; R rows to sample.
struct StepInput {
  struct Group {                 // of caches (full attention; window N)
    std::vector<int32_t> slots;  // [T] cache slot of a token's key and value; -1 = not stored
    std::vector<int32_t> table;  // [S, blocks_per_sequence] block tables; -1 = freed or unused
  };
  std::vector<int32_t> ids;         // [T]
  std::vector<int32_t> positions;   // [T]
  std::vector<int32_t> from;        // [T] >= 0: the id is read from sampled[from]
  std::vector<int32_t> segments;    // [S + 1]
  std::vector<int32_t> kv_lengths;  // [S] keys of a sequence, including this step's
  std::vector<int32_t> logit_rows;  // [R] token rows whose next token will be sampled
  std::vector<Group> groups;
  bool decode_only = false;  // every sequence has one token
  // Of steps with adapters: of every sequence class * slots + slot of its own, ascending, -1 of none; and of tokens
  // that are virtual which row of the adapter's they are, -1 of others.
  std::vector<int32_t> adapters = {};      // [S] or empty
  std::vector<int32_t> virtual_rows = {};  // [T] or empty

  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t sequences() const { return static_cast<int64_t>(kv_lengths.size()); }
};

// Input of sampling, for the R rows of the preceding forward.
struct SampleInput {
  std::vector<float> params;       // [R, 3] temperature, top_p, min_p
  std::vector<int32_t> top_k;      // [R]
  std::vector<int64_t> seeds;      // [R, 3] seed, sequence, position
  std::vector<int32_t> store;      // [R] row of the table `sampled` that receives the id; -1 = none
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
  // The same of the adjusted logits, as if they were the model's; empty where the step adjusts none.
  std::span<const float> adjusted_logprobs = {};
  std::span<const int32_t> adjusted_ids = {};
};
inline constexpr int64_t kTopLogprobs = 20;

struct RunnerLimits {
  int64_t tokens = 0, sequences = 0, rows = 0;  // maximum per step
  int64_t context = 0, vocab = 0, block_size = 0;
  int64_t entries = 0, masks = 0;  // maximum per sampling step
  std::vector<CacheGroup> groups;
  int64_t kv_bytes = 0;
  AdapterTables adapters = {};
};

// Bytes that go into a state.
struct StatePart {
  const std::string* state = nullptr;
  int64_t offset = 0;
  std::span<const std::byte> bytes;
};

class Runner {
 public:
  virtual ~Runner() = default;
  virtual const RunnerLimits& limits() const = 0;
  // Makes ready what the first step would wait for. Of several ranks all call it at once.
  virtual void warm_up() {}
  virtual void copy_blocks(std::span<const BlockCopy> copies) = 0;  // call before the forward that writes to the copies
  virtual void forward(const StepInput& input) = 0;
  virtual void sample(const SampleInput& input) = 0;
  // Results of the last sample(). Throws octet::Error if the device failed; the runner is unusable afterwards.
  virtual SampleOutput wait() = 0;
  // What an adapter's slot holds, for the forwards that follow; the bytes may be reused when it returns.
  virtual void write_states(std::span<const StatePart>) {
    fail(ErrorCode::kUnsupported, "this runner has no tables of adapters");
  }
  // Tokens of the bucket that runs this step, padding included: for statistics.
  virtual int64_t padded_tokens(const StepInput& input) const = 0;
  virtual void check_alive() const {
  }  // throws where it is known that no step can run any more: for an engine without work
  // In a process that a launcher started as another rank than 0: makes the calls of rank 0's runner until that is
  // destroyed, and is true. Throws when a rank is lost.
  virtual bool follow() { return false; }
};

}  // namespace octet
