// A request inside the engine: the checked request, its prompt as token ids, and the output state of each sequence.
//
// Made by prepare() on the submitting thread, then owned by the engine's thread. It lives until the last step that
// computes one of its sequences has finished, which may be after its stream has ended.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "infer/beam_search.h"
#include "infer/host_adapter.h"
#include "infer/sampler.h"
#include "infer/scheduler.h"
#include "infer/stream.h"
#include "io/tokenizer.h"

namespace octet {

// Finds the first stop string in streamed text and holds back a suffix that could become one. Pure.
class StopMatcher {
 public:
  // `include`: the text ends behind the stop string, not in front of it. Throws for an empty stop string.
  explicit StopMatcher(std::vector<std::string> stops = {}, bool include = false);
  // Returns the text that cannot be part of a stop string. stopped() becomes true when one is found.
  std::string push(const std::string& text);
  std::string finish() { return std::move(held_); }
  bool stopped() const { return matched_ < stops_.size(); }
  const std::string& matched() const { return stops_[matched_]; }  // when stopped()
  bool empty() const { return stops_.empty(); }                    // no stop strings

 private:
  std::vector<std::string> stops_;
  bool include_;
  std::string held_;
  size_t matched_ = std::string::npos;
};

class AdapterStore;

// Properties of the model that requests are checked against.
struct ServedModel {
  const Tokenizer* tokenizer = nullptr;  // null: requests and results are ids only
  std::vector<int32_t> eos_ids = {};
  int64_t context = 0, vocab = 0, max_sequences = 0;
  const AdapterStore* adapters = nullptr;  // null: no request may have one
};

struct Request;

// The output of one sequence of a request.
struct RequestSequence {
  Request* request = nullptr;
  SequenceId id = -1;                      // the scheduler's
  int64_t sample = 0;                      // 0 .. n-1; of a search also the beam
  bool started = false;                    // has been part of a step
  bool closed = false;                     // its end is published; later tokens are dropped
  int64_t last_step = 0;                   // the last step that computes it
  int64_t generated = 0;                   // number of tokens; Scheduler::tokens() has them
  std::optional<TokenCounts> counts = {};  // set at its first sample if the request adjusts logits

  // Output since the last publication, and the state of detokenization.
  GenerationEvent news = {};
  bool touched = false;  // is in Postprocess's list of sequences to publish
  std::optional<StreamDecoder> decoder = {};
  StopMatcher stops = StopMatcher();

  bool over() const { return closed || news.finished != FinishReason::kNone; }
};

struct Request {
  GenerationRequest asked;
  std::vector<int32_t> prompt = {};  // moved to the scheduler when it admits the request
  int64_t prompt_tokens = 0;         // of the sequence; virtual_tokens of the adapter stand in front of them
  int32_t last = -1;                 // of a prompt that is only scored: its last token, no longer in `prompt`; -1: none
  AdapterUse adapter = {};
  int64_t virtual_tokens() const { return adapter.get() != nullptr ? adapter.get()->virtual_tokens : 0; }
  std::vector<int32_t> end_ids = {};  // end tokens and stop ids: they end the sequence and are not part of it
  std::vector<std::pair<int32_t, std::string>> stop_tokens = {};  // of end_ids: special tokens that are stop strings
  bool computes = true;                                           // false: its sequences end as they begin
  bool adjusts = false;                                           // has biases, penalties or min_tokens
  int64_t adjusted = 0;      // number of logits adjusted for a sequence's first token,
  int64_t max_adjusted = 0;  // and the maximum for any of its tokens
  bool text_start = true;    // the prompt has special tokens only
  std::shared_ptr<StreamState> stream = {};
  std::optional<BeamSearch> search = {};  // none: its sequences are sampled
  std::vector<RequestSequence> sequences =
      {};  // n, or the beams: of these the first n give sequences, the others are closed
  int64_t ticket = 0;
  uint64_t salt = 0;                                 // of cache_salt
  int64_t open = 0;                                  // sequences whose end is not published
  int64_t waiting = 0;                               // sequences that have not been part of a step
  bool over() const { return sequences[0].over(); }  // of a search, whose sequences end together
  double submitted = 0;                              // seconds on the engine's clock
  int64_t unreported = 0;                            // sequences whose end the scheduler has not reported
  FinishReason outcome = FinishReason::kNone;        // worst finish reason of its sequences
};

// A request that cannot be served, by a kind that the error's code does not tell.
class RequestError : public Error {
 public:
  RequestError(ErrorKind kind, std::string message)
      : Error(ErrorCode::kInvalidArgument, std::move(message)), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};
ErrorKind kind_of(const std::exception& error);  // kInvalid of an invalid argument alone

// Throws kInvalidArgument with the invalid value and its range or the remedy; RequestError for a long prompt.
std::unique_ptr<Request> prepare(GenerationRequest asked, const ServedModel& model);

}  // namespace octet
