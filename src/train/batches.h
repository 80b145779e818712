// Lays token sequences out as micro-batches: token-flattened, with positions, segments and targets.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exec/batch.h"
#include "io/dataset.h"
#include "model/model.h"

namespace octet {

// The static shape of micro-batches of `sequences` sequences of `length` tokens. With separate documents the number of
// segments is not known beforehand: as many as tokens are allowed for.
BatchShape batch_shape(int64_t sequences, int64_t length, bool separate_documents, bool training);

// Lays sequences (each of up to `length` inputs and as many targets) one after the other. Pure.
class BatchPacker {
 public:
  BatchPacker(int64_t sequences, int64_t length, bool separate_documents);
  void clear();
  // `tokens`: inputs then one more (n + 1 tokens make n inputs and n targets), n <= length; shorter ones are padded.
  // `documents`: where documents begin inside the inputs, first 0; used with separate documents only. `counts`: whether
  // each of the tokens counts as a target; empty: all do.
  void add(const std::vector<int32_t>& tokens, const std::vector<int32_t>& documents,
           std::span<const uint8_t> counts = {});
  void add(const TokenSample& sample) { add(sample.tokens, sample.segments, sample.counts); }
  // ids, positions (optional), targets (-1: does not count), segments; pads to the full shape.
  const Batch& finish();

 private:
  int64_t sequences_, length_;
  bool separate_;
  Batch batch_;
  int64_t tokens_ = 0, segments_ = 0;  // laid out so far
};

// What a run learns: an Objective makes micro-batches of a data set, named tensors that graphs of its loss read.
//
// Micro-batch m of n samples holds samples m n to m n + n - 1 of an endless shuffled order. What is random is drawn by
// the sample's index: the same index gives the same sample, whatever was drawn before it and on whichever rank.
class Objective {
 public:
  virtual ~Objective() = default;
  virtual Batch get(int64_t micro_batch) const = 0;  // thread safe
};

// Language modelling: the target of a token is the next one, where the data set counts it.
class NextToken : public Objective {
 public:
  NextToken(std::shared_ptr<const TokenDataset> data, SampleOptions sampling, int64_t sequences,
            bool separate_documents);
  Batch get(int64_t micro_batch) const override;

 private:
  TokenSampler sampler_;
  int64_t sequences_;
  bool separate_;
};

struct MaskingOptions {
  int32_t mask_id = 0;  // of [MASK]
  int64_t vocab_size = 0;
  std::vector<int32_t> kept;  // tokens never chosen: [CLS], [SEP]
  double chosen = 0.15;       // probability of a token to be a target
  double masked = 0.8;        // of a target to be read as mask_id
  double random = 0.1;        // of a target to be read as any token of the vocabulary; the others are read unchanged
};

// Masked tokens (BERT, arXiv 1810.04805; each token is chosen on its own, as in RoBERTa): ids with some replaced,
// targets of the chosen ones, positions, segments as NextToken without separate documents.
class MaskedTokens : public Objective {
 public:
  MaskedTokens(std::shared_ptr<const TokenDataset> data, SampleOptions sampling, int64_t sequences,
               MaskingOptions masking);
  Batch get(int64_t micro_batch) const override;

 private:
  TokenSampler sampler_;
  int64_t sequences_;
  MaskingOptions masking_;
};

struct LabelledSequence {
  std::vector<int32_t> tokens;
  int32_t label = 0;
};

// Sequence classification, epoch by epoch in a shuffled order. ids and positions [S L], labels [S], first_rows and
// last_rows [S] (where a sequence begins and ends: the rows a classifier reads), segments [2 S + 1]: the padding after
// a sequence is a segment of its own.
class SequenceClassification : public Objective {
 public:
  // Throws kInvalidArgument when a sequence is empty or longer than `length`, or there is none.
  SequenceClassification(std::vector<LabelledSequence> data, int64_t length, int64_t sequences, uint64_t seed);
  Batch get(int64_t micro_batch) const override;

 private:
  std::vector<LabelledSequence> data_;
  int64_t length_, sequences_;
  uint64_t seed_;
};

}  // namespace octet
