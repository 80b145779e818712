// Text generation over a Decoder: sampling, stop strings, streaming.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "infer/decoder.h"
#include "infer/sampler.h"
#include "io/tokenizer.h"

namespace octet {

struct GenerateOptions {
  SamplingOptions sampling = {};
  int64_t max_tokens = 256;
  std::vector<std::string> stop = {};  // the text ends before the first of these
  std::vector<int32_t> stop_ids = {};  // the text ends before these ids
  bool ignore_eos = false;
  uint64_t sequence = 0;  // different numbers draw different samples from one seed
};

enum class FinishReason { kLength, kStop, kContext };
const char* finish_reason_name(FinishReason reason);

struct GenerateResult {
  std::vector<int32_t> ids;  // generated, without the prompt
  std::string text;
  FinishReason reason = FinishReason::kLength;
  int64_t prompt_tokens = 0;
  double prompt_seconds = 0, decode_seconds = 0;
};

// Continues from the decoder's present tokens plus `prompt`. `on_text` gets text as it becomes certain (never half a
// character, never a part of a stop string); returning false ends generation.
GenerateResult generate(Decoder& decoder, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                        const GenerateOptions& options, const std::function<bool(const std::string&)>& on_text = {});

// Finds the first stop string in a growing text and holds back what could still become one. Pure; used by generate.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);
  // Text that is certain not to be part of a stop string. `stopped` becomes true when one was found.
  std::string push(const std::string& text);
  std::string finish() { return std::move(held_); }
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace octet
