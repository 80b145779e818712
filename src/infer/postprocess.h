// The last part of a step: turns sampled ids into text, logprobs and finish reasons and publishes them to the streams.
// Knows requests and streams, neither blocks nor tensors.
//
// append_token() records a token when the step's results arrive and returns whether it ends the sequence, which the
// scheduler needs for its commit. Slow work (detokenization, stop strings, waking readers) is left to deliver(), which
// the engine calls while the device computes the next step.
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

  // Appends a token, the one of row `row` or a draft that is taken in its place. Returns the finish reason for the
  // scheduler: kNone, kStop or kError.
  FinishReason append_token(RequestSequence& sequence, const SampleOutput& output, size_t row, int32_t id);
  // Appends the log-probability of the prompt's token `id`, given by row `row`: of its predecessor, sampled with a bias
  // that leaves `id` alone.
  void append_prompt_token(RequestSequence& sequence, int32_t id, const SampleOutput& output, size_t row);
  // Goes on with a search whose beams' rows begin at `row`. Returns the beams' steps; none: the search is over, and its
  // sequences have their ends.
  std::span<const BeamSearch::Step> append_beams(Request& request, const SampleOutput& output, size_t row);
  // Ends the sequence for a reason other than a token. The first reason is kept.
  void end(RequestSequence& sequence, FinishReason reason, ErrorKind kind = ErrorKind::kNone,
           const std::string& error = {});
  // Publishes the events recorded since the last call. Sequences ended by a stop string are added to `stopped`.
  void deliver(double now, std::vector<RequestSequence*>& stopped);
  // Requests whose last sequence deliver() has closed.
  std::vector<Request*>& completed() { return completed_; }
  int64_t generated_tokens() const { return generated_tokens_; }

 private:
  void touch(RequestSequence& sequence) {
    if (sequence.touched) return;
    sequence.touched = true;
    touched_.push_back(&sequence);
  }
  void end_search(Request& request);
  bool add_text(RequestSequence& sequence);
  void finish_text(RequestSequence& sequence);

  int64_t tokenizer_vocab_;  // ids from this value on have no text
  int64_t generated_tokens_ = 0;
  std::vector<BeamSearch::Row> beam_rows_;
  std::vector<RequestSequence*> touched_;
  std::vector<Request*> completed_;
};

}  // namespace octet
