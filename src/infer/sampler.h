// Translates a request's sampling options to op inputs: rows of `sample`, entries of `adjust_logits`.
//
// Op `sample` chooses the same token for the same logits, options, sequence and position on every device
// (kernels/common/sampling.h). Independent of engine, batch and tensors.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/common/sampling.h"
#include "octet/sampling.h"

namespace octet {

// Throws kInvalidArgument with the value and its range; with vocab > 0 the tokens of logit_bias must be less than it.
void validate(const SamplingOptions& options, int64_t vocab = 0);

// The row of op `sample` for the token at `position` (0: the first one generated) of sequence `sequence`. Sequences of
// one seed get independent random numbers.
SampleRow sample_row(const SamplingOptions& options, int64_t sequence, int64_t position);

// Token counts of one sequence, as its options need them, and the resulting entries of `adjust_logits`.
class TokenCounts {
 public:
  // `stops`: tokens that end the sequence, forbidden while fewer than min_tokens were generated.
  explicit TokenCounts(const SamplingOptions& options, int64_t min_tokens = 0, std::span<const int32_t> stops = {});

  void add_prompt(std::span<const int32_t> ids);
  void add_output(int32_t id);
  void remove_output(int32_t id);  // the last one added
  int64_t outputs() const { return outputs_; }

  // Whether the next token's logits are adjusted.
  bool adjusts() const { return !tokens_.empty(); }
  // Number of entries that append_entries() adds; every added token adds at most one, and only if grows().
  int64_t entries() const { return static_cast<int64_t>(tokens_.size()); }
  bool grows() const { return repetition_ != 1 || presence_ != 0 || frequency_ != 0; }
  // Appends (row, token) pairs i32[E, 2] and (bias, repetition, penalty) triples f32[E, 3], one entry a token.
  void append_entries(int32_t row, std::vector<int32_t>& entries, std::vector<float>& values) const;

 private:
  struct Token {
    int32_t id = 0, outputs = 0;
    float bias = 0;
    bool stops = false, prompt = false;  // prompt: is in it
    bool output_only = false;            // has an entry because it was generated
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
