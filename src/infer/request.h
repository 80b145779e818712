// A request inside the engine: what was asked, checked and in token ids, and the state of each of its texts.
//
// Made by prepare() on the submitting thread, then owned by the engine's thread alone. It lives until the last step
// that names one of its texts is over, which may be after the reader was told the end.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/sampler.h"
#include "infer/scheduler.h"
#include "infer/stop_matcher.h"
#include "infer/stream.h"
#include "io/tokenizer.h"

namespace octet {

// What requests are checked against.
struct ServedModel {
  const Tokenizer* tokenizer = nullptr;  // null: ids in, ids out
  std::vector<int32_t> eos_ids = {};
  int64_t context = 0, vocab = 0, max_sequences = 0;
};

struct Request;

struct Sequence {
  Request* request = nullptr;
  SequenceId id = -1;     // the scheduler's
  int64_t sample = 0;     // 0 .. n-1
  bool started = false;   // was part of a step
  bool closed = false;    // the reader was told the end; what still comes is dropped
  int64_t last_step = 0;  // the last one that names this text
  std::vector<int32_t> generated = {};
  std::optional<TokenCounts> counts = {};  // from the first step on, where the options adjust logits

  // Since the last publication, and what makes text of it.
  GenerationEvent news = {};
  bool touched = false;  // stands in the list of texts with news
  std::optional<StreamDecoder> decoder = {};
  StopMatcher stops = StopMatcher();

  bool over() const { return closed || news.finished != FinishReason::kNone; }
  int32_t token(int64_t position) const;  // of prompt and output
};

struct Request {
  GenerationRequest asked;
  std::vector<int32_t> prompt = {};
  std::vector<int32_t> end_ids = {};  // end tokens and stop ids: they end the text and are not part of it
  bool adjusts = false;               // its logits: bias, penalties, min_tokens
  int64_t adjusted = 0;               // how many of them for a text's first token,
  int64_t max_adjusted = 0;           // and for any of its tokens at most
  bool text_start = true;             // nothing but special tokens stands before the output
  std::shared_ptr<StreamState> stream = {};
  std::vector<Sequence> sequences = {};  // n
  int64_t ticket = 0;
  int64_t open = 0;                            // texts whose end the reader was not told
  int64_t waiting = 0;                         // texts that were not part of a step yet
  double submitted = 0;                        // the engine's clock, seconds
  int64_t unreported = 0;                      // texts whose end the scheduler has not reported
  FinishReason outcome = FinishReason::kNone;  // the gravest end of its texts
};

inline int32_t Sequence::token(int64_t position) const {
  auto at = static_cast<size_t>(position), prompt = request->prompt.size();
  return at < prompt ? request->prompt[at] : generated[at - prompt];
}

// Throws kInvalidArgument with the value at fault and the range or way out.
std::unique_ptr<Request> prepare(GenerationRequest asked, const ServedModel& model);

}  // namespace octet
