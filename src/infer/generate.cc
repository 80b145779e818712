#include "infer/generate.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace octet {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t partial_match(const std::string& text, const std::string& stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length)
    if (text.compare(text.size() - length, length, stop, 0, length) == 0) return length;
  return 0;
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength: return "length";
    case FinishReason::kStop: return "stop";
    case FinishReason::kContext: return "context full";
  }
  return "";
}

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_)
    check(!stop.empty(), ErrorCode::kInvalidArgument, "stop: an empty stop string would end every text at once");
}

std::string StopMatcher::push(const std::string& text) {
  held_ += text;
  size_t found = std::string::npos, keep = 0;
  for (const std::string& stop : stops_) {
    found = std::min(found, held_.find(stop));
    keep = std::max(keep, partial_match(held_, stop));
  }
  if (found != std::string::npos) {
    stopped_ = true;
    std::string certain = held_.substr(0, found);
    held_.clear();
    return certain;
  }
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return certain;
}

GenerateResult generate(Decoder& decoder, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                        const GenerateOptions& options, const std::function<bool(const std::string&)>& on_text) {
  validate(options.sampling, tokenizer.vocab_size());
  GenerateResult result;
  result.prompt_tokens = static_cast<int64_t>(prompt.size());
  StopMatcher stops(options.stop);
  // A SentencePiece-like vocabulary puts a space before the text; it is shown only when it does not begin the text.
  bool starts_text = decoder.length() == 0 &&
                     std::all_of(prompt.begin(), prompt.end(), [&](int32_t id) { return tokenizer.is_special(id); });
  StreamDecoder stream(tokenizer, starts_text);
  bool wanted = true;
  auto emit = [&](const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    if (on_text) wanted = on_text(text);
  };
  auto started = std::chrono::steady_clock::now();
  std::vector<int32_t> ends = options.stop_ids;
  if (!options.ignore_eos) ends.push_back(tokenizer.eos_id());
  TokenCounts counts(options.sampling);
  counts.add_prompt(prompt);
  std::span<const float> logits = decoder.append(prompt);
  std::vector<float> adjusted;
  result.prompt_seconds = seconds_since(started);
  started = std::chrono::steady_clock::now();
  while (wanted && static_cast<int64_t>(result.ids.size()) < options.max_tokens) {
    if (counts.adjusts()) {
      adjusted.assign(logits.begin(), logits.end());
      counts.adjust(adjusted);
      logits = adjusted;
    }
    int32_t id = sample_token(logits, options.sampling, static_cast<int64_t>(options.sequence), counts.outputs());
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) {
      result.reason = FinishReason::kStop;
      break;
    }
    result.ids.push_back(id);
    counts.add_output(id);
    emit(stops.push(stream.push(id)));
    if (stops.stopped()) {
      result.reason = FinishReason::kStop;
      break;
    }
    if (static_cast<int64_t>(result.ids.size()) == options.max_tokens) break;
    if (decoder.length() == decoder.max_length()) {
      result.reason = FinishReason::kContext;
      break;
    }
    logits = decoder.append({&id, 1});
  }
  if (!stops.stopped()) {
    emit(stops.push(stream.finish()));
    if (!stops.stopped()) emit(stops.finish());
  }
  result.decode_seconds = seconds_since(started);
  return result;
}

}  // namespace octet
