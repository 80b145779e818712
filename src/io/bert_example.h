// Examples of BERT pretraining: their masks, many of them in memory, and rows that hold several.
//
// An example is a function of seed and index, whoever asks for it: masks may be drawn once, when a set is prepared, or
// anew whenever an example is trained on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/bert_set.h"
#include "io/tokenizer.h"

namespace octet {

struct BertTokens {
  int32_t cls = -1, sep = -1, mask = -1;
};
// Throws kInvalidArgument naming the one that the vocabulary lacks.
BertTokens bert_tokens(const Tokenizer& tokenizer);

struct BertMasking {
  BertTokens tokens;
  int64_t vocab_size = 0;
  double share = 0.15;  // of the tokens
  int64_t most = 76;    // of an example, at least one
};

// Masks anew, from the original tokens on: of the chosen positions, never [CLS] or [SEP], 80 % become [MASK], 10 % a
// random token, 10 % stay.
void mask_example(BertSequence& example, const BertMasking& masking, uint64_t seed, uint64_t index);

// Lengths into rows of `row` tokens, at most `most` in one: the longest first, filled with the one or two (for `most`
// of 3) that leave the least, of those the ones nearest to each other. Returns the indices of each row; every length
// once. Throws kInvalidArgument for a length that is not in 1..row, and for `most` beyond 1..3.
std::vector<std::vector<int64_t>> pack_lengths(std::span<const int32_t> lengths, int64_t row, int64_t most);

// Many examples, one behind the other.
struct BertExamples {
  std::vector<int32_t> ids, firsts;  // firsts: tokens of type 0 of an example
  std::vector<int64_t> starts = {0}, masked_starts = {0};
  std::vector<int32_t> masked_positions, masked_labels;
  std::vector<bool> is_next;

  int64_t size() const { return static_cast<int64_t>(is_next.size()); }
  void add(const BertSequence& example);
  BertSequence example(int64_t index) const;
  std::vector<int32_t> lengths() const;
};

}  // namespace octet
