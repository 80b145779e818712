// What workloads of encoders share: the model's Hugging Face folder, in which parameters that the run adds to those of
// model.from begin with fresh values, and the inputs of sequences packed behind one another.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "model/hugging_face.h"
#include "model/model.h"
#include "train/workload.h"

namespace octet {

class EncoderTraining : public TrainingWorkload {
 public:
  std::string description() const override;
  int64_t most_ranks(Axis axis) const override;
  CountedUnit unit() const override { return {.one = "sequence", .brief = "seq"}; }

  FileSet weight_files(const Program& program, DType dtype, int64_t max_bytes) const override;
  void write_files(const std::string& folder, DType weights) const override;
  void load(const std::string& folder, Executor& executor, const BytesLoaded& loaded) const override;
  void check_same_model(const std::string& checkpoint) const override;

  const ModelConfig& model() const { return model_; }

 protected:
  // `shape.max_length` is data.sequence_length.
  EncoderTraining(ModelConfig model, const RunConfig& config, BatchShape shape);
  void set_tokenizer(const std::string& folder) { tokenizer_folder_ = folder; }

  BatchShape shape_;

 private:
  ModelConfig model_;
  std::string from_, tokenizer_folder_;
  uint64_t seed_;
};

// Lays sequences out as the inputs ids, token_types, positions, segments and rows (of the first token of each) of a
// batch of this shape, one behind the other; what is behind the last belongs to no segment.
class SequencePacker {
 public:
  SequencePacker(Batch& batch, const BatchShape& shape);
  // Returns the place of the first token. Throws kInternal where there is no room.
  int64_t add(std::span<const int32_t> ids, std::span<const int32_t> types);
  int64_t sequences() const { return sequences_; }

 private:
  Batch& batch_;
  BatchShape shape_;
  int64_t tokens_ = 0, sequences_ = 0;
};

// The likeliest class of every row of logits, as output `name` i32[rows, 1].
void output_likeliest(Builder& b, const std::string& name, Value logits);

}  // namespace octet
