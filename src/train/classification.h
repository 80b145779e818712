// Classes of texts, or of pairs of them, from labelled JSON lines {"text": .., "text_pair"?: .., "label": ..}: an
// encoder's pooled first token through a linear head, in a folder as transformers' ...ForSequenceClassification has it.
#pragma once

#include <vector>

#include "io/sequence_template.h"
#include "train/encoder_training.h"

namespace octet {

struct LabelledTexts {
  std::vector<EncodedTexts> texts;
  std::vector<int32_t> labels;
  uint32_t checksum = 0;  // of ids and labels
};

class Classification : public EncoderTraining {
 public:
  // Graphs alone: it has no batches. As many labels as model_from has, or two.
  Classification(ModelConfig model, std::vector<std::string> names, const RunConfig& config);
  // With data.train and data.validation; throws where they are missing, or a line is wrong.
  static std::unique_ptr<Classification> open(const RunConfig& config);
  // Of a finished folder, with data.validation alone.
  static std::unique_ptr<Classification> open_finished(const RunConfig& config);

  Graph loss(GraphRole role, int64_t shape) const override;
  int64_t units() const override { return shape_.max_segments; }
  std::unique_ptr<TrainingWorkload> with_settings(const RunConfig& config) const override;

  Batch batch(DataSplit split, int64_t index) const override;
  int64_t validation_batches() const override;
  int64_t samples_per_epoch() const override { return std::ssize(train_.texts); }
  DataRecord data() const override { return record_; }
  std::vector<Metric> metrics() const override;
  std::vector<double> measure(const Batch& batch, const EvalOutputs& outputs) const override;
  std::vector<double> join(const std::vector<std::vector<double>>& numbers, double targets) const override;

  void write_files(const std::string& folder, DType weights) const override;
  const std::vector<std::string>& names() const { return names_; }  // of labels 0, 1, ..

 private:
  std::vector<std::string> names_;
  uint64_t seed_;
  LabelledTexts train_, validation_;
  DataRecord record_;
};

// Whether the folder's config.json describes a sequence classification.
bool is_classifier(const std::string& folder);

// Over a file of labelled lines, by the weights of a finished folder.
struct ClassifierScores {
  int64_t texts = 0;
  std::vector<Metric> metrics;
  std::vector<double> values;
};
ClassifierScores evaluate_classifier(const std::string& folder, const std::string& file, int64_t length, int64_t batch,
                                     const CompileOptions& options);

extern const WorkloadRow kClassification;

}  // namespace octet
