#include "infer/request.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "infer/adapter_store.h"
#include "infer/runner.h"

namespace octet {
namespace {

void check_ids(const char* what, std::span<const int32_t> ids, int64_t vocab) {
  for (int32_t id : ids)
    check(id >= 0 && id < vocab, ErrorCode::kInvalidArgument, "{}: id {} is outside the vocabulary of {} tokens", what,
          id, vocab);
}

void check_numbers(const GenerationRequest& asked, const ServedModel& model) {
  auto in_range = [](const char* name, int64_t value, int64_t low, int64_t high) {
    check(value >= low && value <= high, ErrorCode::kInvalidArgument, "{}: {} (want {} .. {})", name, value, low, high);
  };
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  in_range("max_tokens", asked.max_tokens, 0, kAny);
  in_range("min_tokens", asked.min_tokens, 0, asked.max_tokens);
  in_range("n", asked.n, 1, model.max_sequences);
  in_range("logprobs", asked.logprobs, -1, std::min(kTopLogprobs, model.vocab));
  in_range("prompt_logprobs", asked.prompt_logprobs, -1, std::min(kTopLogprobs, model.vocab));
  check(asked.prompt_logprobs < 0 || asked.n == 1, ErrorCode::kInvalidArgument,
        "prompt_logprobs of a request with n = {}: want n = 1", asked.n);
  check(asked.timeout_seconds >= 0 && std::isfinite(asked.timeout_seconds), ErrorCode::kInvalidArgument,
        "timeout_seconds: {} (want >= 0; 0 is none)", asked.timeout_seconds);
  in_range("draft_tokens", asked.draft_tokens, -1, kMaxDraftTokens);
  validate(asked.sampling, model.vocab);
  check_ids("stop_ids", asked.stop_ids, model.vocab);
}

// What beams leave out has no meaning in a search, or none that sequences of other engines agree on.
void check_beams(const GenerationRequest& asked, const ServedModel& model) {
  const auto require = [](bool holds, const char* name, const auto& value, const char* want) {
    check(holds, ErrorCode::kInvalidArgument, "{}: {} with beams (want {})", name, value, want);
  };
  const int64_t most = std::min(kMaxBeams, model.max_sequences);
  check(asked.beams >= 0 && asked.beams <= most, ErrorCode::kInvalidArgument, "beams: {} (want 0 .. {})", asked.beams,
        most);
  if (asked.beams == 0) return;
  const SamplingOptions& o = asked.sampling;
  require(asked.n <= asked.beams, "n", asked.n, "at most as many as there are beams");
  require(std::isfinite(asked.length_penalty), "length_penalty", asked.length_penalty, "a finite number");
  require(asked.stop.empty(), "stop", asked.stop.size(), "stop_ids: stop strings are not supported");
  require(asked.prompt_logprobs < 0, "prompt_logprobs", asked.prompt_logprobs, "a request of its own");
  require(o.temperature == 0 || o.temperature == 1, "temperature", o.temperature, "0 or 1: nothing is sampled");
  require(o.top_k == 0, "top_k", o.top_k, "0: nothing is sampled");
  require(o.top_p == 1, "top_p", o.top_p, "1: nothing is sampled");
  require(o.min_p == 0, "min_p", o.min_p, "0: nothing is sampled");
  require(o.repetition_penalty == 1, "repetition_penalty", o.repetition_penalty, "1");
  require(o.presence_penalty == 0, "presence_penalty", o.presence_penalty, "0");
  require(o.frequency_penalty == 0, "frequency_penalty", o.frequency_penalty, "0");
}

std::vector<int32_t> prompt_of(GenerationRequest& asked, const ServedModel& model) {
  check(asked.prompt.empty() || asked.prompt_ids.empty(), ErrorCode::kInvalidArgument,
        "both prompt and prompt_ids are given (want one of them)");
  if (!asked.prompt_ids.empty()) {
    check_ids("prompt_ids", asked.prompt_ids, model.vocab);
    return std::move(asked.prompt_ids);
  }
  const Tokenizer* tokenizer = model.tokenizer;
  check(tokenizer != nullptr, ErrorCode::kInvalidArgument,
        "prompt_ids is empty and this engine has no tokenizer to encode a prompt");
  std::vector<int32_t> ids = tokenizer->encode(
      asked.prompt, {.parse_special = asked.parse_special, .add_bos = tokenizer->adds_bos() && asked.add_bos});
  int32_t start = tokenizer->bos_id() >= 0 ? tokenizer->bos_id() : tokenizer->eos_id();
  if (ids.empty() && start >= 0) ids.push_back(start);
  check(!ids.empty(), ErrorCode::kInvalidArgument, "the prompt is empty and the vocabulary has no begin token");
  check_ids("prompt", ids, model.vocab);
  return ids;
}

AdapterUse adapter_of(GenerationRequest& asked, const ServedModel& model) {
  if (asked.adapter.empty()) return {};
  check(model.adapters != nullptr, ErrorCode::kInvalidArgument,
        "adapter {}: this engine was started without adapters (give them by --adapter NAME=DIR, or room for them by "
        "max_adapters)",
        asked.adapter);
  std::shared_ptr<const HostAdapter> adapter;
  try {
    adapter = model.adapters->find(asked.adapter);
  } catch (const Error& error) {
    throw RequestError(ErrorKind::kInvalid, error.message());
  }
  if (adapter->virtual_tokens > 0) asked.draft_tokens = 0;  // of no vocabulary: no draft follows from them
  return AdapterUse(std::move(adapter));
}

// Length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t partial_match(const std::string& text, const std::string& stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length)
    if (text.compare(text.size() - length, length, stop, 0, length) == 0) return length;
  return 0;
}

}  // namespace

std::unique_ptr<Request> prepare(GenerationRequest asked, const ServedModel& model) {
  check(!asked.encode, ErrorCode::kInvalidArgument,
        "this model is served for generation: for embeddings and scores, serve it with task embed");
  check_numbers(asked, model);
  check_beams(asked, model);
  StopMatcher stops(asked.stop, asked.include_stop);
  check(stops.empty() || model.tokenizer != nullptr, ErrorCode::kInvalidArgument,
        "stop strings require a tokenizer, and this engine has none: give stop_ids");
  auto request = std::make_unique<Request>();
  request->prompt = prompt_of(asked, model);
  request->adapter = adapter_of(asked, model);
  request->prompt_tokens = static_cast<int64_t>(request->prompt.size());
  const int64_t tokens = request->virtual_tokens() + request->prompt_tokens;
  request->computes = asked.max_tokens > 0 || asked.prompt_logprobs >= 0;
  const bool scores = asked.prompt_logprobs >= 0;
  const int64_t last = std::max<int64_t>(request->prompt_tokens - 1, 1);
  check(!scores || (asked.prompt_logprobs_from >= 1 && asked.prompt_logprobs_from <= last), ErrorCode::kInvalidArgument,
        "prompt_logprobs_from: {} (want 1 .. {}: a token of the prompt behind the first)", asked.prompt_logprobs_from,
        last);
  const bool only = scores && asked.max_tokens == 0 && request->prompt_tokens > 1;
  const int64_t room = model.context + (only ? 1 : 0) - tokens;  // for what is computed behind the prompt
  if (room < 0 || (room == 0 && request->computes && !only))
    throw RequestError(
        ErrorKind::kTooLong,
        fmt::format(
            "the prompt has {} tokens{} and the context is {}: shorten it, or use a model with a longer context",
            request->prompt_tokens,
            tokens > request->prompt_tokens ? fmt::format(" behind {} virtual ones", request->virtual_tokens()) : "",
            model.context));
  if (const Tokenizer* tokenizer = model.tokenizer)
    request->text_start = std::ranges::all_of(request->prompt, [&](int32_t id) { return tokenizer->is_special(id); });
  if (only) {
    request->last = request->prompt.back();
    request->prompt.pop_back();
  }
  request->end_ids = asked.stop_ids;
  if (!asked.ignore_eos) request->end_ids.insert(request->end_ids.end(), model.eos_ids.begin(), model.eos_ids.end());
  // A special token has no text that a stop string is looked for in.
  if (const Tokenizer* tokenizer = model.tokenizer)
    for (const AddedToken& token : tokenizer->added_tokens())
      if (token.special && std::ranges::find(asked.stop, token.text) != asked.stop.end()) {
        request->stop_tokens.emplace_back(token.id, token.text);
        request->end_ids.push_back(token.id);
      }
  const auto ends = std::ssize(request->end_ids);
  check(asked.beams == 0 || asked.beams + ends <= kTopLogprobs, ErrorCode::kInvalidArgument,
        "{} beams and {} end tokens: want at most {} together", asked.beams, ends, kTopLogprobs);
  if (asked.beams > 0)
    request->search.emplace(
        BeamOptions{.width = asked.beams,
                    .length_penalty = asked.length_penalty,
                    .early_stopping = asked.early_stopping,
                    .limit = std::max<int64_t>(std::min(asked.max_tokens, model.context - tokens), 1),
                    .end_ids = request->end_ids});
  const SamplingOptions& sampling = asked.sampling;
  request->adjusts = sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
                     sampling.frequency_penalty != 0 || !sampling.logit_bias.empty() || asked.min_tokens > 0;
  if (request->adjusts) {
    TokenCounts counts(sampling, asked.min_tokens, request->end_ids);
    counts.add_prompt(request->prompt);
    request->adjusted = counts.entries();
    request->max_adjusted = counts.grows() ? model.vocab : counts.entries();
  }
  if (only) request->adjusted = request->max_adjusted = 1;  // as the row of any score
  request->sequences.resize(static_cast<size_t>(std::max(asked.n, asked.beams)));
  for (size_t i = 0; i < request->sequences.size(); ++i) {
    RequestSequence& sequence = request->sequences[i];
    sequence.request = request.get();
    sequence.sample = sequence.news.sample = static_cast<int64_t>(i);
    sequence.closed = sequence.sample >= asked.n;
    sequence.stops = stops;
    if (model.tokenizer) sequence.decoder.emplace(*model.tokenizer, request->text_start, asked.skip_special_tokens);
  }
  request->open = asked.n;
  request->waiting = request->unreported = std::ssize(request->sequences);
  request->asked = std::move(asked);
  return request;
}

ErrorKind kind_of(const std::exception& error) {
  if (const auto* refused = dynamic_cast<const RequestError*>(&error)) return refused->kind();
  const auto* own = dynamic_cast<const Error*>(&error);
  return own && own->code() == ErrorCode::kInvalidArgument ? ErrorKind::kInvalid : ErrorKind::kInternal;
}

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include) : stops_(std::move(stops)), include_(include) {
  for (const std::string& stop : stops_)
    check(!stop.empty(), ErrorCode::kInvalidArgument, "stop: an empty stop string would end every sequence at once");
}

std::string StopMatcher::push(const std::string& text) {
  held_ += text;
  size_t found = std::string::npos, keep = 0;
  for (size_t s = 0; s < stops_.size(); ++s) {
    if (const size_t at = held_.find(stops_[s]); at < found) {
      found = at;
      matched_ = s;
    }
    keep = std::max(keep, partial_match(held_, stops_[s]));
  }
  if (stopped()) {
    std::string certain = held_.substr(0, found + (include_ ? matched().size() : 0));
    held_.clear();
    return certain;
  }
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return certain;
}

}  // namespace octet
