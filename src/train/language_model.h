// Language modelling: the target of a token is the next one, where the data set counts it. Decoders of src/model/,
// their Hugging Face folders, and prepared token sets.
#pragma once

#include <memory>
#include <string>

#include "io/dataset.h"
#include "model/adapter.h"
#include "model/hugging_face.h"
#include "model/model.h"
#include "train/workload.h"

namespace octet {

class LanguageModel : public TrainingWorkload {
 public:
  // Graphs and plans alone: it has no batches.
  LanguageModel(ModelConfig model, int64_t sequences, int64_t length, bool separate_documents = false,
                AdapterSpec adapter = {});
  LanguageModel(ModelConfig model, const RunConfig& config);
  // With the sets that the settings name. Throws where they are missing, or do not fit the model or each other.
  explicit LanguageModel(const RunConfig& config);

  Graph loss(GraphRole role, int64_t shape) const override;
  int64_t units() const override { return sequences_ * whole_length(); }
  std::string description() const override;
  int64_t most_ranks(Axis axis) const override;
  std::unique_ptr<TrainingWorkload> with_settings(const RunConfig& config) const override;

  // Training micro-batch m of n sequences holds samples m n to m n + n - 1 of the order that data.sampling names.
  Batch batch(DataSplit split, int64_t index) const override;
  int64_t validation_batches() const override;
  int64_t samples_per_epoch() const override { return training_ ? training_->samples_per_epoch() : 0; }
  int64_t units_of(DataSplit split) const override;
  Batch made_up_batch() const override;
  DataRecord data() const override;
  std::vector<Metric> metrics() const override;

  FileSet weight_files(const Program& program, DType dtype, int64_t max_bytes) const override;
  void write_files(const std::string& folder, DType weights) const override;
  void load(const std::string& folder, Executor& executor, const BytesLoaded& loaded) const override;
  void check_same_model(const std::string& checkpoint) const override;
  void check_start(const std::string& folder) const override;

  // Rows of up to length() tokens and one more, sequences() of them at most, behind virtual tokens where there are any.
  Batch batch_of(std::span<const TokenSample> rows) const;
  int64_t sequences() const { return sequences_; }
  int64_t length() const { return length_; }
  bool separates_documents() const { return separate_documents_; }
  const std::string& tokenizer_folder() const { return tokenizer_folder_; }  // "" where there is none

  const ModelConfig& model() const { return model_; }
  void weigh_targets(bool weighed) { weighed_ = weighed; }  // batches have weights of targets
  const AdapterSpec& adapter() const { return adapter_; }   // empty: the model itself is trained

 protected:
  ModelConfig model_;
  AdapterSpec adapter_;
  int64_t sequences_, length_;
  std::unique_ptr<const TokenSampler> training_, validation_;

 private:
  void write_chat_template(const std::string& folder) const;

  int64_t whole_length() const { return length_ + adapter_.virtual_tokens; }  // they stand in front of a sequence
  void set_adapter(const RunConfig& config);

  bool weighed_ = false;  // targets of the data have weights
  bool separate_documents_;
  bool scores_tokens_ = false;                // eval graphs give the likeliest ids too
  std::string base_;                          // of an adapter: the folder of the frozen model
  uint64_t seed_ = 0;                         // of an adapter's first values
  std::string train_data_, validation_data_;  // prefixes
  SpecialTokens special_;                     // of the data, or of the folder that the run begins from
  std::string tokenizer_folder_;              // "" where there is none
  std::string chat_folder_;                   // whose chat template stands in where the tokenizer's has none; "" none
  DataRecord record_;                         // without the checksums, which data() adds
  std::string validation_cut_;                // how the validation split is cut
};

// In front of a sample, by ids that follow the vocabulary; the last one predicts the sequence's first token.
void add_virtual_tokens(TokenSample& sample, const AdapterSpec& adapter, int64_t vocab_size);

extern const WorkloadRow kLanguageModelling;

// The loss of one micro-batch of any decoder, alone: what the graphs of a LanguageModel are.
Graph loss_graph(GraphRole role, const ModelSpec& model, const BatchShape& shape);

}  // namespace octet
