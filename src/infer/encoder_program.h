// The Program of an encoder: graphs for buckets of tokens, each of one packed step from ids to a row of values for
// every sequence; and its runner.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "model/model.h"
#include "passes/pass.h"
#include "weights/weights.h"

namespace octet {

// Whether a model's values are the classes of a sequence; else they are an embedding.
inline bool classifies(const ModelConfig& model) { return model.labels > 0 && model.head == Head::kNone; }

enum class Pooling : uint8_t { kCls, kMean, kLast };

struct EncoderProgramOptions {
  Target target = {};
  Recipe recipe = {};
  Pooling pooling = Pooling::kCls;
  bool include_prompt = true;   // false: a mean leaves out a sequence's first tokens
  int64_t max_length = 0;       // of a sequence
  int64_t max_step_tokens = 0;  // of a step, at least max_length
  int64_t max_sequences = 256;  // of a step
};

struct EncoderSequence {
  std::span<const int32_t> ids, types;  // types: empty, or as many
  int64_t left_out = 0;                 // without include_prompt: first ids that are not in the mean
};

// Runs packed steps. A step is launched and then collected; on a GPU the next one may be launched in between.
class EncoderRunner {
 public:
  // The classes of a model that classifies, else pooled hidden states. Weights are not loaded yet.
  EncoderRunner(const ModelConfig& model, const EncoderProgramOptions& options);

  Executor& executor() { return *executor_; }
  int64_t weight_bytes() const { return weight_bytes_; }
  int64_t activation_bytes() const { return activation_bytes_; }
  int64_t width() const { return width_; }                       // values of a sequence
  int64_t max_tokens() const { return buckets_.back().tokens; }  // of a step
  int64_t max_sequences() const { return buckets_.back().sequences; }
  bool runs_ahead() const { return copies_ > 1; }
  int64_t padded_tokens(int64_t tokens, int64_t sequences) const { return bucket_of(tokens, sequences).tokens; }

  void launch(std::span<const EncoderSequence> step);
  // Of the oldest step launched: [sequences][width], in the order given.
  std::vector<float> collect();
  // Runs every graph, so that no later step captures one.
  void warm_up();

 private:
  struct Bucket {
    int64_t tokens = 0, sequences = 0;
  };
  struct Launched {
    std::string graph;
    int64_t sequences = 0;
  };
  static std::string graph_name(const Bucket& bucket, int64_t copy);
  const Bucket& bucket_of(int64_t tokens, int64_t sequences) const;
  void fill(const std::string& graph, std::span<const EncoderSequence> step);

  Pooling pooling_;
  int64_t width_ = 0, copies_ = 1, steps_ = 0, weight_bytes_ = 0, activation_bytes_ = 0;
  std::vector<Bucket> buckets_;  // ascending
  std::vector<Launched> launched_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace octet
