// The third part of a step: sampled ids become text, logprobs and ends of texts, and go to the readers. Knows requests
// and streams, neither blocks nor tensors.
//
// append_token() takes a token when the step's results are known and says whether it ends the text; that much the
// scheduler must hear at once. Everything slow (detokenization, stop strings, readers) waits for deliver(), which the
// engine calls while the device computes the next step.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "infer/request.h"
#include "infer/runner.h"

namespace octet {

class Postprocess {
 public:
  explicit Postprocess(int64_t tokenizer_vocab) : tokenizer_vocab_(tokenizer_vocab) {}

  // The token of row `row`. Returns what the scheduler is to be told: kNone, kStop or kError.
  FinishReason append_token(Sequence& sequence, const SampleOutput& output, size_t row);
  // The text ends for a reason that did not come with a token; its first end stands.
  void end(Sequence& sequence, FinishReason reason, const std::string& error = {});
  // Publishes what was noted. Texts that a stop string ended are added to `stopped`.
  void deliver(double now, std::vector<Sequence*>& stopped);
  // Of deliver(): the requests whose last text was closed.
  std::vector<Request*>& completed() { return completed_; }
  int64_t generated_tokens() const { return generated_tokens_; }

 private:
  void touch(Sequence& sequence);
  void add_logprobs(Sequence& sequence, const SampleOutput& output, size_t row);
  bool add_text(Sequence& sequence);
  void finish_text(Sequence& sequence);

  int64_t tokenizer_vocab_;  // ids from here on have no text
  int64_t generated_tokens_ = 0;
  std::vector<Sequence*> touched_;
  std::vector<Request*> completed_;
};

}  // namespace octet
