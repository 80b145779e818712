// Lays token sequences out as micro-batches: token-flattened, with positions, segments and targets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/batch.h"
#include "io/dataset.h"
#include "model/model.h"

namespace octet {

// The static shape of micro-batches of `sequences` sequences of `length` tokens. With separate documents the number of
// segments is not known beforehand: as many as tokens are allowed for.
BatchShape batch_shape(int64_t sequences, int64_t length, bool separate_documents, bool training);

// What the targets of a batch count together: 1 each, or what its "target_weights" say.
double weight_of_targets(const Batch& batch);

// Lays sequences (each of up to `length` inputs and as many targets) one after the other. Pure.
class BatchPacker {
 public:
  // `weighed`: with a tensor "target_weights", of 1 where sequences have none.
  BatchPacker(int64_t sequences, int64_t length, bool separate_documents, bool weighed = false);
  void clear();
  // `tokens`: inputs then one more (n + 1 tokens make n inputs and n targets), n <= length; shorter ones are padded.
  // `documents`: where documents begin inside the inputs, first 0; used with separate documents only. `counts`: whether
  // each of the tokens counts as a target; empty: all do. `weights`: of each, as a target; empty: 1.
  void add(const std::vector<int32_t>& tokens, const std::vector<int32_t>& documents,
           std::span<const uint8_t> counts = {}, std::span<const float> weights = {});
  void add(const TokenSample& sample) { add(sample.tokens, sample.segments, sample.counts, sample.weights); }
  // ids, positions (optional), targets (-1: does not count), segments; pads to the full shape.
  const Batch& finish();

 private:
  int64_t sequences_, length_;
  bool separate_, weighed_;
  Batch batch_;
  int64_t tokens_ = 0, segments_ = 0;  // laid out so far
};

}  // namespace octet
