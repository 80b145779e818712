// Pairs of answers as micro-batches: a row is one pair, the chosen sequence and the rejected one behind it, each a
// segment of its own.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/batch.h"
#include "io/dataset.h"
#include "train/preference_settings.h"

namespace octet {

// Log-probabilities, the sums over an answer's tokens: of the chosen one and of the rejected one.
using PairLogps = std::array<float, 2>;

struct PreferencePair {
  std::array<std::vector<int32_t>, 2> tokens;  // prompt and answer: chosen, rejected; at least two tokens each
  std::array<std::vector<uint8_t>, 2> counts;  // 1: of the answer
  PairLogps reference = {};

  int64_t inputs() const { return std::ssize(tokens[0]) + std::ssize(tokens[1]) - 2; }
};

// A row of a set of pairs. Throws kCorrupt where it is not two sequences with an answer each.
PreferencePair pair_of(const TokenSample& row, const std::string& where);

// Up to `pairs` rows of `length` inputs:
//
//   ids, positions, targets (-1: not of an answer) i32[T], segments i32[2 pairs + 1]
//   chosen, rejected f32[T]: 1 on the inputs of that sequence, else 0
//   pair_targets i32[pairs]: 0; -1 where there is no pair
//   reference_chosen, reference_rejected f32[pairs]; chosen_share, rejected_share: 1 / tokens of the answer
//   goal f32[pairs]: 1 / (2 beta); 0 where there is no pair
//
// Its targets that count are the pairs.
Batch pack_pairs(std::span<const PreferencePair> given, int64_t pairs, int64_t length,
                 const PreferenceSettings& settings);

}  // namespace octet
