// What tasks ask of a model: log-likelihoods of continuations and of whole texts, and replies, over the public engine.
// Tokens, truncation and windows are lm-evaluation-harness's (HFLM). The engine computes a context once for its
// continuations: they are submitted one after another, and its prefix cache holds what was computed.
#pragma once

#include <functional>
#include <span>

#include "io/tokenizer.h"
#include "octet/engine.h"
#include "tasks/task_metrics.h"

namespace octet {

struct ScoredText {
  std::string context, continuation;
};

struct GeneratedText {
  std::string context;
  const TaskGeneration* generation = nullptr;
  uint64_t seed = 0;
};

// A text's tokens, of which those from `from` on are scored.
struct ScoredTokens {
  std::vector<int32_t> ids;
  int64_t from = 1;
};
using ScoreTokens = std::function<std::vector<Likelihood>(std::vector<ScoredTokens>)>;

class ModelCalls {
 public:
  // `max_length`: tokens that the model sees at once; 0: the engine's context. `done`: told of each text that is done.
  // `adapter`: one that the engine has loaded, or "": none.
  ModelCalls(Engine& engine, const Tokenizer& tokenizer, int64_t max_length, std::function<void()> done,
             std::string adapter = {});

  // Of what scores tokens and generates none; `max_length` must be given.
  ModelCalls(ScoreTokens score, const Tokenizer& tokenizer, int64_t max_length);

  // Throw kInvalidArgument for texts that cannot be asked about, kInternal where the engine fails.
  std::vector<Likelihood> likelihoods(std::span<const ScoredText> texts);
  std::vector<double> rolling(std::span<const std::string> texts);  // sums of log-probabilities of all tokens
  std::vector<std::string> replies(std::span<const GeneratedText> texts);

  int64_t max_length() const { return max_length_; }

 private:
  using Ids = std::vector<int32_t>;
  using Scored = ScoredTokens;
  Ids encode(const std::string& text, bool special) const;
  Scored split(const ScoredText& text) const;
  std::vector<Scored> windows(const std::string& text) const;
  Likelihood read_scores(GenerationStream& stream, const Scored& scored) const;
  // submit(i) starts the i-th of `count` requests, take(i, stream) reads its end; some are under way at any time.
  void run(size_t count, const std::function<GenerationRequest(size_t)>& request,
           const std::function<void(size_t, GenerationStream&)>& take);

  std::vector<Scored> split_all(std::span<const ScoredText> texts) const;

  Engine* engine_ = nullptr;
  ScoreTokens score_;  // in place of it
  const Tokenizer& tokenizer_;
  int64_t max_length_ = 0;
  int32_t prefix_;  // stands in front of a text without a context
  std::function<void()> done_;
  std::string adapter_;
};

}  // namespace octet
