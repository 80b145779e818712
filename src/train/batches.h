// Micro-batches: token-flattened sequences with positions, segments and targets.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "io/dataset.h"
#include "model/model.h"

namespace octet {

struct HostBatch {
  std::vector<int32_t> ids, positions, targets;  // [T]; target -1 is ignored
  std::vector<int32_t> segments;                 // [max_segments + 1]
  int64_t valid_tokens = 0;                      // targets >= 0
};

// The static shape of micro-batches of `sequences` sequences of `length` tokens. With separate documents the number of
// segments is not known beforehand: as many as tokens are allowed for.
BatchShape batch_shape(int64_t sequences, int64_t length, bool separate_documents, bool training);

// Lays sequences (each of up to `length` inputs and as many targets) one after the other. Pure.
class BatchPacker {
 public:
  BatchPacker(int64_t sequences, int64_t length, bool separate_documents);
  void clear();
  // `tokens`: inputs then one more (n + 1 tokens make n inputs and n targets), n <= length; shorter ones are padded.
  // `documents`: where documents begin inside the inputs, first 0; used with separate documents only. The first
  // `ignored` targets do not count (evaluation windows that overlap).
  void add(const std::vector<int32_t>& tokens, const std::vector<int32_t>& documents, int64_t ignored = 0);
  const HostBatch& finish();  // pads to the full shape

 private:
  int64_t sequences_, length_;
  bool separate_;
  HostBatch batch_;
};

// Micro-batch number m of a run: sequences m*n .. m*n+n-1 of the sampler. Same index, same batch.
class TrainingBatches {
 public:
  TrainingBatches(std::shared_ptr<const TokenDataset> data, SampleOptions sampling, int64_t sequences,
                  bool separate_documents);
  void get(int64_t micro_batch_index, HostBatch& out) const;
  const TokenSampler& sampler() const { return sampler_; }

 private:
  TokenSampler sampler_;
  int64_t sequences_;
  bool separate_;
};

}  // namespace octet
