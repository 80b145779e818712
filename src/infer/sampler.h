// Sampling as a request states it, and what it means for the ops: rows of `sample`, entries of `adjust_logits`.
//
// The same choice everywhere: op `sample` gives one token for the same logits, options, sequence and position on any
// device (kernels/common/sampling.h). Nothing here knows of engines, batches or tensors.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/common/sampling.h"
#include "octet/sampling.h"

namespace octet {

// Throws kInvalidArgument with the value and its range; with vocab > 0 the tokens of logit_bias must lie below it.
void validate(const SamplingOptions& options, int64_t vocab = 0);

// The row of op `sample` for the token at `position` (0: the first one generated) of sequence `sequence`. Different
// numbers of sequences draw different samples from one seed.
SampleRow sample_row(const SamplingOptions& options, int64_t sequence, int64_t position);

// What one sequence has said, as far as its options look at it, and the entries of `adjust_logits` that follow.
class TokenCounts {
 public:
  // `stops`: tokens that end the text, forbidden while fewer than min_tokens were generated.
  explicit TokenCounts(const SamplingOptions& options, int64_t min_tokens = 0, std::span<const int32_t> stops = {});

  void add_prompt(std::span<const int32_t> ids);
  void add_output(int32_t id);
  int64_t outputs() const { return outputs_; }

  // Whether the next token's logits change at all.
  bool adjusts() const { return !tokens_.empty(); }
  // How many entries append_entries adds now; grows by at most one with every token added, if grows() at all.
  int64_t entries() const { return static_cast<int64_t>(tokens_.size()); }
  bool grows() const { return repetition_ != 1 || presence_ != 0 || frequency_ != 0; }
  // Appends (row, token) pairs i32[E, 2] and (bias, repetition, penalty) triples f32[E, 3], one entry a token.
  void append_entries(int32_t row, std::vector<int32_t>& entries, std::vector<float>& values) const;
  // The same on a row of logits [V] in memory.
  void adjust(std::span<float> logits) const;

 private:
  struct Token {
    int32_t id = 0, outputs = 0;
    float bias = 0;
    bool stops = false, seen = false;  // seen: in the prompt or generated
  };
  struct Values {
    float bias, repetition, penalty;
  };
  Token& token(int32_t id);
  Values values(const Token& token) const;

  double repetition_, presence_, frequency_;
  int64_t min_tokens_, outputs_ = 0;
  std::vector<Token> tokens_;  // in order of appearance
  std::unordered_map<int32_t, size_t> index_;
};

}  // namespace octet
