// The engine of models that encode whole texts: requests become packed steps of at most so many tokens, in the order in
// which they came, without a cache. On a GPU its thread prepares a step while the one before runs.
//
// A request's result does not depend on those it shares a step with, but for the order of sums of a product's kernel,
// which may follow the rows of a step.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "infer/encoder_folder.h"
#include "infer/engine_thread.h"

namespace octet {

struct EncoderParts {
  std::unique_ptr<EncoderRunner> runner;
  EncoderFolder folder;
  std::unique_ptr<Tokenizer> tokenizer = {};  // null: requests must give ids
  int64_t vocab = 0, token_types = 0;
};

class EncoderEngine final : public EngineThread {
 public:
  EncoderEngine(EncoderParts parts, const EngineOptions& options);
  ~EncoderEngine() override;

  int64_t context() const override { return parts_.folder.max_length; }
  int64_t vocab_size() const override { return parts_.vocab; }
  const EncoderFacts* encoder() const override { return &parts_.folder.facts; }
  const std::vector<int32_t>& end_tokens() const override { return no_ids_; }

 private:
  using Step = std::vector<RequestSequence*>;

  std::unique_ptr<Request> read(GenerationRequest asked) const override;
  void admit(Request& request) override { queue_.push_back(request.sequences.data()); }
  void leave(RequestSequence& text) override { std::erase(queue_, &text); }
  void step() override;
  Step next_step();
  void launch(Step step);
  void collect();
  void give(RequestSequence& text, std::span<const float> values);

  EncoderParts parts_;
  const std::vector<int32_t> no_ids_;

  // Of the engine's thread.
  std::deque<RequestSequence*> queue_;
  std::deque<Step> launched_;
};

// Whether an engine of these options encodes: as their task says, else as the model is made. Throws kUnsupported where
// an encoder is asked to generate.
bool encodes(const std::string& model, const EngineOptions& options);
std::unique_ptr<Engine> open_encoder(const std::string& model, const EngineOptions& options);

}  // namespace octet
