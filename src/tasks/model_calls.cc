#include "tasks/model_calls.h"

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "base/threads.h"
#include "io/tokenizer_utf8.h"
#include "tasks/python_text.h"

namespace octet {
namespace {

// A stream's next event; false at its end. Throws what ended it with an error.
bool next_event(GenerationStream& stream, GenerationEvent& event) {
  if (!stream.next(event)) return false;
  if (event.finished == FinishReason::kError || event.finished == FinishReason::kTimeout) {
    const bool fault = event.error_kind == ErrorKind::kDevice || event.error_kind == ErrorKind::kInternal;
    throw_error(fault ? ErrorCode::kInternal : ErrorCode::kInvalidArgument, event.error);
  }
  return true;
}

}  // namespace

ModelCalls::ModelCalls(Engine& engine, const Tokenizer& tokenizer, int64_t max_length, std::function<void()> done,
                       std::string adapter)
    : engine_(&engine),
      tokenizer_(tokenizer),
      prefix_(tokenizer.bos_id() >= 0 ? tokenizer.bos_id() : tokenizer.eos_id()),
      done_(std::move(done)),
      adapter_(std::move(adapter)) {
  check(engine.encoder() == nullptr, ErrorCode::kInvalidArgument,
        "tasks need a model that generates, and this one encodes texts");
  int64_t room = engine.context();  // virtual tokens take of it
  for (const AdapterFacts& facts : engine.adapters())
    if (facts.name == adapter_) room -= facts.virtual_tokens;
  max_length_ = max_length > 0 ? max_length : room;
  check(max_length_ <= room, ErrorCode::kInvalidArgument,
        "--max-length {}: the model's context is {} tokens (want 1 .. {})", max_length_, room, room);
}

ModelCalls::ModelCalls(ScoreTokens score, const Tokenizer& tokenizer, int64_t max_length)
    : score_(std::move(score)),
      tokenizer_(tokenizer),
      max_length_(max_length),
      prefix_(tokenizer.bos_id() >= 0 ? tokenizer.bos_id() : tokenizer.eos_id()),
      done_([] {}) {}

// As transformers' tokenizers: special tokens that the text spells are tokens; a begin token is added where the model
// was trained with one and the text has none.
ModelCalls::Ids ModelCalls::encode(const std::string& text, bool special) const {
  bool begin = special && tokenizer_.adds_bos() && tokenizer_.bos_id() >= 0;
  if (begin) begin = !text.starts_with(tokenizer_.token_bytes(tokenizer_.bos_id()));
  return tokenizer_.encode(text, {.parse_special = true, .add_bos = begin});
}

ModelCalls::Scored ModelCalls::split(const ScoredText& text) const {
  Ids context, whole;
  if (text.context.empty()) {
    check(prefix_ >= 0, ErrorCode::kInvalidArgument,
          "a text without a context, and the vocabulary has neither a begin nor an end token to put in front");
    whole = encode(text.continuation, false);
    if (whole.empty() || whole[0] != prefix_) whole.insert(whole.begin(), prefix_);
    context = {prefix_};
  } else {
    // White space at the end of the context belongs to the continuation, as tokens have it in front.
    const std::string stripped(strip_right(text.context));
    whole = encode(text.context + text.continuation, true);
    context = encode(stripped, true);
  }
  const auto before = std::min(std::ssize(context), std::ssize(whole)), after = std::ssize(whole) - before;
  check(before > 0 && after > 0, ErrorCode::kInvalidArgument,
        "the continuation '{}' adds {} tokens to its context's {} (want at least one of each)",
        text.continuation.substr(0, 100), after, before);
  check(after <= max_length_, ErrorCode::kInvalidArgument,
        "the continuation '{}...' has {} tokens, more than the maximum length {}", text.continuation.substr(0, 100),
        after, max_length_);
  // What is too long loses tokens on the left; the last is scored and not seen.
  const int64_t cut = std::max<int64_t>(std::ssize(whole) - (max_length_ + 1), 0);
  whole.erase(whole.begin(), whole.begin() + cut);
  const int64_t from = std::ssize(whole) - after;
  return {std::move(whole), from};
}

// get_rolling_token_windows and make_disjoint_window with one token of context: each token is scored once, in windows
// whose last ends at the text's end.
std::vector<ModelCalls::Scored> ModelCalls::windows(const std::string& text) const {
  const Ids ids = encode(text, true);
  check(prefix_ >= 0, ErrorCode::kInvalidArgument,
        "the vocabulary has neither a begin nor an end token to put in front of a text");
  std::vector<Scored> windows;
  const int64_t count = std::ssize(ids), first = std::min(max_length_, count);
  if (count == 0) return windows;
  Scored& begin = windows.emplace_back();
  begin.ids = {prefix_};
  begin.ids.insert(begin.ids.end(), ids.begin(), ids.begin() + first);
  for (int64_t done = first; done < count;) {
    const int64_t fresh = std::min(count - done, max_length_), end = done + fresh;
    Scored& window = windows.emplace_back();
    window.ids.assign(ids.begin() + (end - max_length_ - 1), ids.begin() + end);
    window.from = std::ssize(window.ids) - fresh;
    done = end;
  }
  return windows;
}

void ModelCalls::run(size_t count, const std::function<GenerationRequest(size_t)>& request,
                     const std::function<void(size_t, GenerationStream&)>& take) {
  const auto most = static_cast<size_t>(std::max<int64_t>(4 * engine_->options().max_sequences, 16));
  std::deque<GenerationStream> streams;
  for (size_t next = 0, oldest = 0; oldest < count;) {
    for (; next < count && streams.size() < most; ++next) {
      GenerationRequest asked = request(next);
      asked.adapter = adapter_;
      streams.push_back(engine_->submit(std::move(asked)));
    }
    take(oldest++, streams.front());
    streams.pop_front();
  }
}

Likelihood ModelCalls::read_scores(GenerationStream& stream, const Scored& scored) const {
  Likelihood result{.greedy = true};
  size_t count = 0;
  for (GenerationEvent event; next_event(stream, event);)
    for (size_t i = 0; i < event.prompt_logprobs.size(); ++i, ++count) {
      result.sum += event.prompt_logprobs[i].logprob;
      result.greedy &= event.prompt_top[i].at(0).id == event.prompt_logprobs[i].id;
    }
  check(static_cast<int64_t>(count) == std::ssize(scored.ids) - scored.from, ErrorCode::kInternal,
        "{} scores of {} tokens", count, std::ssize(scored.ids) - scored.from);
  return result;
}

namespace {

GenerationRequest score_request(const std::vector<int32_t>& ids, int64_t from) {
  GenerationRequest request{.prompt_ids = ids, .max_tokens = 0};
  request.prompt_logprobs = 1;
  request.prompt_logprobs_from = from;
  return request;
}

}  // namespace

std::vector<ModelCalls::Scored> ModelCalls::split_all(std::span<const ScoredText> texts) const {
  std::vector<Scored> scored(texts.size());
  parallel_for(std::ssize(texts), 16, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) scored[i] = split(texts[i]);
  });
  release_threads();
  return scored;
}

std::vector<Likelihood> ModelCalls::likelihoods(std::span<const ScoredText> texts) {
  if (score_) return score_(split_all(texts));
  constexpr size_t kAhead = 1024;  // encoded together, by all threads, while the engine works on those before
  std::vector<Likelihood> results(texts.size());
  std::vector<Scored> scored(texts.size());
  run(
      texts.size(),
      [&](size_t i) {
        if (i % kAhead == 0) {
          std::vector<Scored> next = split_all(texts.subspan(i, std::min(kAhead, texts.size() - i)));
          std::ranges::move(next, scored.begin() + static_cast<std::ptrdiff_t>(i));
        }
        return score_request(scored[i].ids, scored[i].from);
      },
      [&](size_t i, GenerationStream& stream) {
        results[i] = read_scores(stream, scored[i]);
        scored[i] = {};
        done_();
      });
  return results;
}

std::vector<double> ModelCalls::rolling(std::span<const std::string> texts) {
  std::vector<double> results(texts.size());
  std::vector<std::pair<size_t, Scored>> all;
  std::vector<size_t> left(texts.size());
  for (size_t i = 0; i < texts.size(); ++i)
    for (Scored& window : windows(texts[i])) all.emplace_back(i, std::move(window)), ++left[i];
  for (const size_t none : left)
    if (none == 0) done_();
  if (score_) {
    std::vector<Scored> scored;
    for (auto& [text, window] : all) scored.push_back(std::move(window));
    const std::vector<Likelihood> scores = score_(std::move(scored));
    for (size_t i = 0; i < all.size(); ++i) results[all[i].first] += scores[i].sum;
    return results;
  }
  run(
      all.size(), [&](size_t i) { return score_request(all[i].second.ids, all[i].second.from); },
      [&](size_t i, GenerationStream& stream) {
        const size_t text = all[i].first;
        results[text] += read_scores(stream, all[i].second).sum;
        if (--left[text] == 0) done_();
      });
  return results;
}

std::vector<std::string> ModelCalls::replies(std::span<const GeneratedText> texts) {
  check(engine_ != nullptr || texts.empty(), ErrorCode::kUnsupported, "texts are generated by an engine alone");
  std::vector<std::string> results(texts.size());
  const std::string end = tokenizer_.eos_id() >= 0 ? std::string(tokenizer_.token_bytes(tokenizer_.eos_id())) : "";
  const auto stops_of = [&](const TaskGeneration& generation) {
    std::vector<std::string> stops = generation.until;
    stops.push_back(end);
    std::erase(stops, "");
    return stops;
  };
  run(
      texts.size(),
      [&](size_t i) {
        const TaskGeneration& generation = *texts[i].generation;
        const int64_t room = max_length_ - generation.max_tokens;  // of the context
        check(room > 0, ErrorCode::kInvalidArgument, "max_gen_toks {} leaves no room in the maximum length {}",
              generation.max_tokens, max_length_);
        GenerationRequest request{.prompt_ids = encode(texts[i].context, true), .max_tokens = generation.max_tokens};
        check(!request.prompt_ids.empty(), ErrorCode::kInvalidArgument, "a prompt without a token");
        if (const int64_t cut = std::ssize(request.prompt_ids) - room; cut > 0)
          request.prompt_ids.erase(request.prompt_ids.begin(), request.prompt_ids.begin() + cut);
        request.sampling.temperature = generation.temperature;
        request.sampling.top_p = generation.top_p;
        request.sampling.top_k = generation.top_k;
        request.sampling.seed = texts[i].seed;
        request.stop = stops_of(generation);
        return request;
      },
      [&](size_t i, GenerationStream& stream) {
        std::vector<int32_t> ids;
        for (GenerationEvent event; next_event(stream, event);)
          for (const int32_t id : event.ids)
            if (id < tokenizer_.vocab_size()) ids.push_back(id);  // rows behind the vocabulary have no text
        std::string& text = results[i];
        int64_t replaced = 0;
        text = utf8_replace_invalid(tokenizer_.decode(ids, /*skip_special=*/true), &replaced);
        for (const std::string& stop : stops_of(*texts[i].generation)) text = text.substr(0, text.find(stop));
        done_();
      });
  return results;
}

}  // namespace octet
