// Log-likelihoods of token sequences by the weights in training: what tasks ask of them at an evaluation (eval.tasks).
// The eval graph's batches are filled with sequences; with separate documents several stand in a row.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "train/language_model.h"
#include "train/stepper.h"

namespace octet {

struct ScoredSequence {
  std::vector<int32_t> ids;  // at most the length of a row and one more, which is scored and not seen
  int64_t from = 1;          // the first that is scored
};

struct SequenceScore {
  double sum = 0;      // of the log-probabilities of ids[from ..]
  bool greedy = true;  // each of them is the likeliest one
};

using ScoreSequences = std::function<std::vector<SequenceScore>(const std::vector<ScoredSequence>&)>;

// What a run evaluates beside its validation set, from outside of this room. All ranks have one and ask for the same.
class TaskEvaluation {
 public:
  struct Value {
    std::string name;  // "hellaswag/acc"
    double value = 0;
  };
  virtual ~TaskEvaluation() = default;
  virtual std::vector<Value> run(const ScoreSequences& score) = 0;
};

// What a TaskEvaluation is opened for.
struct TaskPlace {
  std::string tokenizer;  // a file or folder
  int64_t length = 0;     // tokens that the model sees at once
  bool first = true;      // of the ranks
};

// Throws kUnsupported for layouts whose eval graphs do not hold whole rows.
void check_scores_sequences(const RunConfig& config);

// All ranks call it with the same sequences. `stop` is called between batches; once it returns true, nothing comes
// back.
std::vector<SequenceScore> score_sequences(Stepper& stepper, const LanguageModel& model,
                                           const std::vector<ScoredSequence>& sequences,
                                           const std::function<bool()>& stop = {});

}  // namespace octet
