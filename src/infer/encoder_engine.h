// The engine of models that encode whole texts: requests become packed steps of at most so many tokens, in the order in
// which they came, without a cache. One thread; on a GPU it prepares a step while the one before runs.
//
// A request's result does not depend on those it shares a step with, but for the order of sums of a product's kernel,
// which may follow the rows of a step.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "infer/encoder_folder.h"
#include "infer/request.h"

namespace octet {

struct EncoderParts {
  std::unique_ptr<EncoderRunner> runner;
  EncoderFolder folder;
  std::unique_ptr<Tokenizer> tokenizer = {};  // null: requests must give ids
  int64_t vocab = 0, token_types = 0;
};

class EncoderEngine final : public Engine {
 public:
  EncoderEngine(EncoderParts parts, const EngineOptions& options);
  ~EncoderEngine() override;

  GenerationStream submit(GenerationRequest request) override;
  EngineStats stats() const override;
  const EngineOptions& options() const override { return options_; }
  void drain() override { mailbox_->drain(); }
  int64_t context() const override { return parts_.folder.max_length; }
  int64_t vocab_size() const override { return parts_.vocab; }
  const EncoderFacts* encoder() const override { return &parts_.folder.facts; }
  const std::vector<int32_t>& end_tokens() const override { return no_ids_; }

 private:
  // A request and what the runner reads of it.
  struct Entry {
    std::unique_ptr<Request> request;
    EncoderSequence sequence;
    bool over = false;  // its end is published; it still is part of a step
  };
  using Step = std::vector<std::unique_ptr<Entry>>;

  double now() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  std::unique_ptr<Request> checked(GenerationRequest asked) const;
  void run();
  bool intake();
  Step next_step();
  void launch(Step step);
  void collect();
  GenerationEvent result(const Entry& entry, std::span<const float> values) const;
  void end(Entry& entry, const GenerationEvent& event);
  void leave_queue(const Entry& entry);
  void publish_stats();
  void end_all(FinishReason reason, ErrorKind kind, const std::string& message);

  EncoderParts parts_;
  EngineOptions options_;
  const std::vector<int32_t> no_ids_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::shared_ptr<Mailbox> mailbox_;
  std::atomic<int64_t> next_ticket_ = 1, refused_ = 0;
  std::atomic<double> last_step_ = 0;
  std::atomic<bool> in_step_ = false, broken_ = false;

  // Of the engine's thread.
  std::deque<std::unique_ptr<Entry>> queue_;
  std::deque<Step> launched_;
  std::vector<std::unique_ptr<Request>> incoming_;
  std::vector<int64_t> cancelled_;
  EngineStats counts_;

  mutable std::mutex stats_mutex_;
  EngineStats stats_;  // under the mutex
  std::thread thread_;
};

// Whether an engine of these options encodes: as their task says, else as the model is made. Throws kUnsupported where
// an encoder is asked to generate.
bool encodes(const std::string& model, const EngineOptions& options);
std::unique_ptr<Engine> open_encoder(const std::string& model, const EngineOptions& options);

}  // namespace octet
