// BERT pretraining (arXiv 1810.04805): masked tokens and, of every sequence, whether its second text follows its first.
// Up to data.row_sequences sequences share a row of data.sequence_length tokens, none of which sees another's.
#pragma once

#include "io/bert_set.h"
#include "train/encoder_training.h"

namespace octet {

class BertPretraining : public EncoderTraining {
 public:
  // Graphs and plans alone: it has no batches.
  BertPretraining(ModelConfig model, const RunConfig& config);
  // With the sets that the settings name. Throws where they are missing, or do not fit the model or each other.
  explicit BertPretraining(const RunConfig& config);

  Graph loss(GraphRole role, int64_t shape) const override;
  int64_t units() const override { return shape_.max_segments; }
  std::unique_ptr<TrainingWorkload> with_settings(const RunConfig& config) const override;

  Batch batch(DataSplit split, int64_t index) const override;
  int64_t validation_batches() const override;
  int64_t samples_per_epoch() const override { return train_ ? train_->rows.size() : 0; }
  int64_t units_of(DataSplit split) const override;
  Batch made_up_batch() const override;
  DataRecord data() const override;
  std::vector<Metric> metrics() const override;
  std::vector<double> measure(const Batch& batch, const EvalOutputs& outputs) const override;
  std::vector<double> join(const std::vector<std::vector<double>>& numbers, double targets) const override;

  // One micro-batch of these sequences, in this order, which fit its shape.
  Batch pack(std::span<const BertSequence> sequences) const;

 private:
  struct Split {
    std::unique_ptr<const BertSet> set;
    BertRows rows;
  };
  std::unique_ptr<const Split> open_split(const std::string& setting, const std::string& prefix,
                                          const RunConfig& config) const;

  int64_t rows_;  // of a micro-batch
  uint64_t seed_;
  std::unique_ptr<const Split> train_, validation_;
  DataRecord record_;  // without the checksums, which data() adds
  int64_t eval_tokens_ = 0;
};

// The model that such a run trains: of model.size or model.from, with both heads.
ModelConfig pretraining_model(const RunConfig& config, int64_t data_vocab_size);

extern const WorkloadRow kBertPretraining;

}  // namespace octet
