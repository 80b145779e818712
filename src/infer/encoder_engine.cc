#include "infer/encoder_engine.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "io/sequence_template.h"

namespace octet {
namespace {

void normalize(std::vector<float>& values) {
  double square = 0;
  for (const float value : values) square += double{value} * double{value};
  if (square == 0) return;
  const double factor = 1 / std::sqrt(square);
  for (float& value : values) value = static_cast<float>(value * factor);
}

}  // namespace

EncoderEngine::EncoderEngine(EncoderParts parts, const EngineOptions& options)
    : EngineThread(options, nullptr), parts_(std::move(parts)) {
  start();
}

EncoderEngine::~EncoderEngine() { stop(); }

std::unique_ptr<Request> EncoderEngine::read(GenerationRequest asked) const {
  const EncoderFacts& facts = parts_.folder.facts;
  check(asked.encode, ErrorCode::kInvalidArgument,
        "this model encodes whole texts ({}): it generates none; ask it for {}",
        facts.classifies ? "a classifier" : "embeddings", facts.classifies ? "scores" : "embeddings or scores");
  check(asked.dimensions >= 0 && asked.dimensions <= facts.width && (asked.dimensions == 0 || !facts.classifies),
        ErrorCode::kInvalidArgument, "dimensions: {} (want 1 to {}, of an embedding)", asked.dimensions, facts.width);
  check(asked.left_out >= 0, ErrorCode::kInvalidArgument, "left_out: {} (want 0 or more)", asked.left_out);
  check(asked.prompt.empty() || asked.prompt_ids.empty(), ErrorCode::kInvalidArgument,
        "both prompt and prompt_ids are given (want one of them)");
  auto request = std::make_unique<Request>();
  if (!asked.prompt.empty()) {
    check(parts_.tokenizer != nullptr, ErrorCode::kInvalidArgument, "this engine has no tokenizer: give prompt_ids");
    EncodedTexts encoded = encode_texts(*parts_.tokenizer, asked.prompt);
    asked.prompt_ids = std::move(encoded.ids), asked.token_types = std::move(encoded.types);
  }
  if (parts_.token_types < 2) asked.token_types.clear();
  check(!asked.prompt_ids.empty(), ErrorCode::kInvalidArgument, "the input is empty: there is nothing to encode");
  const auto within = [](const char* what, std::span<const int32_t> ids, int64_t count) {
    for (const int32_t id : ids)
      check(id >= 0 && id < count, ErrorCode::kInvalidArgument, "{}: {} (the model has {})", what, id, count);
  };
  within("token id", asked.prompt_ids, parts_.vocab);
  within("token type", asked.token_types, std::max<int64_t>(parts_.token_types, 1));
  check(asked.token_types.empty() || asked.token_types.size() == asked.prompt_ids.size(), ErrorCode::kInvalidArgument,
        "{} token types for {} tokens", asked.token_types.size(), asked.prompt_ids.size());
  request->prompt_tokens = std::ssize(asked.prompt_ids);
  if (request->prompt_tokens > context())
    throw RequestError(ErrorKind::kTooLong,
                       fmt::format("the input has {} tokens, the model takes {}: shorten it, or have it cut "
                                   "(truncate_prompt_tokens)",
                                   request->prompt_tokens, context()));
  request->sequences.resize(1);
  request->sequences[0].request = request.get();
  request->open = request->waiting = 1;
  request->asked = std::move(asked);
  return request;
}

void EncoderEngine::step() {
  Step step = next_step();
  deliver();  // what was cancelled or is late
  if (!step.empty()) launch(std::move(step));
  // With a step launched behind it, or nothing more to launch.
  if (!launched_.empty() && (!parts_.runner->runs_ahead() || launched_.size() > 1 || queue_.empty())) collect();
  deliver();
  counts_.waiting = std::ssize(queue_), counts_.running = 0;
  for (const Step& launched : launched_) counts_.running += std::ssize(launched);
}

// As many of the queue as a step holds.
EncoderEngine::Step EncoderEngine::next_step() {
  Step step;
  int64_t tokens = 0;
  while (!queue_.empty() && std::ssize(step) < parts_.runner->max_sequences()) {
    RequestSequence& text = *queue_.front();
    Request& request = *text.request;
    const double limit = request.asked.timeout_seconds, waited = now() - request.submitted;
    const bool late = limit > 0 && waited > limit;
    if (!late && tokens + request.prompt_tokens > parts_.runner->max_tokens()) break;
    queue_.pop_front();
    if (late) {
      postprocess_.end(text, FinishReason::kTimeout, ErrorKind::kLate,
                       fmt::format("timeout_seconds of {} exceeded after {:.3f} s", limit, waited));
    } else {
      tokens += request.prompt_tokens;
      request.waiting = 0;
      request.stream->started(waited, request.prompt_tokens, 0);
      step.push_back(&text);
    }
  }
  if (!step.empty()) mailbox_->admitted(std::ssize(step), tokens);
  return step;
}

void EncoderEngine::launch(Step step) {
  std::vector<EncoderSequence> sequences;
  int64_t tokens = 0;
  ++counts_.steps;
  for (RequestSequence* text : step) {
    const GenerationRequest& asked = text->request->asked;
    sequences.push_back({asked.prompt_ids, asked.token_types, asked.left_out});
    tokens += text->request->prompt_tokens;
    text->last_step = counts_.steps;
  }
  launched_.push_back(std::move(step));
  counts_.padded_tokens += parts_.runner->padded_tokens(tokens, std::ssize(sequences)) - tokens;
  counts_.prompt_tokens += tokens;
  const double before = now();
  parts_.runner->launch(sequences);
  counts_.seconds += now() - before;
}

void EncoderEngine::collect() {
  const double before = now();
  const std::vector<float> values = parts_.runner->collect();
  last_step_ = now();
  counts_.seconds += last_step_ - before, counts_.wait_seconds += last_step_ - before;
  const auto width = static_cast<size_t>(parts_.runner->width());
  const Step step = std::move(launched_.front());
  launched_.pop_front();
  ++committed_step_;
  for (size_t s = 0; s < step.size(); ++s)
    if (!step[s]->over()) give(*step[s], std::span(values).subspan(s * width, width));
}

void EncoderEngine::give(RequestSequence& text, std::span<const float> values) {
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
    return postprocess_.end(text, FinishReason::kError, ErrorKind::kInternal,
                            "the model's values for this input are not finite");
  const GenerationRequest& asked = text.request->asked;
  postprocess_.end(text, FinishReason::kStop);
  std::vector<float>& given = text.news.values;
  given.assign(values.begin(), values.end());
  if (parts_.folder.sigmoid) given[0] = 1 / (1 + std::exp(-given[0]));
  if (asked.dimensions > 0) given.resize(static_cast<size_t>(asked.dimensions));
  if (asked.normalize.value_or(parts_.folder.facts.normalize) && !parts_.folder.facts.classifies) normalize(given);
}

}  // namespace octet
