// What a run learns: an Objective makes micro-batches of a data set, named tensors that graphs of its loss read.
//
// Micro-batch m of n samples holds samples m n to m n + n - 1 of an endless shuffled order. What is random is drawn by
// the sample's index: the same index gives the same sample, whatever was drawn before it and on whichever rank.
#pragma once

#include <memory>
#include <vector>

#include "train/batches.h"

namespace octet {

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
