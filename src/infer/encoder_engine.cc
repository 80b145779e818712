#include "infer/encoder_engine.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "io/sequence_template.h"

namespace octet {
namespace {

constexpr double kIdleSeconds = 3600;

void normalize(std::vector<float>& values) {
  double square = 0;
  for (const float value : values) square += double{value} * double{value};
  if (square == 0) return;
  const double factor = 1 / std::sqrt(square);
  for (float& value : values) value = static_cast<float>(value * factor);
}

}  // namespace

EncoderEngine::EncoderEngine(EncoderParts parts, const EngineOptions& options)
    : parts_(std::move(parts)),
      options_(options),
      mailbox_(std::make_shared<Mailbox>(options.max_waiting, options.max_waiting_tokens)) {
  release_threads();  // they loaded the weights; steps have the thread's own
  thread_ = std::thread([this] { run(); });
}

EncoderEngine::~EncoderEngine() {
  mailbox_->stop();
  thread_.join();
}

std::unique_ptr<Request> EncoderEngine::checked(GenerationRequest asked) const {
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
  request->asked = std::move(asked);
  return request;
}

GenerationStream EncoderEngine::submit(GenerationRequest asked) {
  const int64_t ticket = next_ticket_++;
  auto stream = std::make_shared<StreamState>(1, ticket, mailbox_, std::move(asked.on_news));
  const auto refuse = [&](ErrorKind kind, const std::string& reason) {
    ++refused_;
    stream->refuse(FinishReason::kError, kind, reason);
    return GenerationStream(stream);
  };
  std::unique_ptr<Request> request;
  try {
    request = checked(std::move(asked));
  } catch (const std::exception& error) {
    return refuse(kind_of(error), error.what());
  }
  request->stream = stream, request->ticket = ticket, request->submitted = now();
  request->asked.n = 1;
  const Mailbox::Refusal refusal = mailbox_->post(request);
  if (refusal.kind != ErrorKind::kNone) return refuse(refusal.kind, refusal.reason);
  return GenerationStream(stream);
}

EngineStats EncoderEngine::stats() const {
  const std::lock_guard lock(stats_mutex_);
  EngineStats stats = stats_;
  stats.failed += refused_;
  stats.since_step = now() - last_step_;
  stats.in_step = in_step_, stats.broken = broken_;
  return stats;
}

void EncoderEngine::run() {
  try {
    while (intake()) {
      in_step_ = true;
      if (Step step = next_step(); !step.empty()) launch(std::move(step));
      // With a step launched behind it, or nothing more to launch.
      if (!launched_.empty() && (!parts_.runner->runs_ahead() || launched_.size() > 1 || queue_.empty())) collect();
      publish_stats();
      in_step_ = false;
    }
    end_all(FinishReason::kCancelled, ErrorKind::kNone, "the engine was closed");
  } catch (const std::exception& error) {
    in_step_ = false, broken_ = true;
    log_warning("engine: {}", error.what());
    end_all(FinishReason::kError, ErrorKind::kDevice, fmt::format("the engine failed: {}", error.what()));
  }
}

// Takes new requests and cancellations; sleeps while there is nothing to do.
bool EncoderEngine::intake() {
  const bool idle = queue_.empty() && launched_.empty();
  const bool runs = mailbox_->take(incoming_, cancelled_, idle ? kIdleSeconds : 0);
  if (idle) last_step_ = now();
  for (std::unique_ptr<Request>& request : incoming_) {
    auto entry = std::make_unique<Entry>();
    entry->sequence = {std::move(request->asked.prompt_ids), std::move(request->asked.token_types),
                       request->asked.left_out};
    entry->request = std::move(request);
    queue_.push_back(std::move(entry));
  }
  incoming_.clear();
  for (const int64_t ticket : cancelled_) {
    const auto is = [&](const std::unique_ptr<Entry>& entry) { return entry->request->ticket == ticket; };
    if (const auto found = std::ranges::find_if(queue_, is); found != queue_.end()) {
      leave_queue(**found);
      end(**found, {.finished = FinishReason::kCancelled});
      queue_.erase(found);
    }
    for (Step& step : launched_)
      if (const auto found = std::ranges::find_if(step, is); found != step.end())
        end(**found, {.finished = FinishReason::kCancelled});
  }
  return runs;
}

void EncoderEngine::leave_queue(const Entry& entry) { mailbox_->admitted(1, entry.request->prompt_tokens); }

// As many of the queue as a step holds.
EncoderEngine::Step EncoderEngine::next_step() {
  Step step;
  int64_t tokens = 0;
  while (!queue_.empty() && std::ssize(step) < parts_.runner->max_sequences()) {
    Entry& entry = *queue_.front();
    const double limit = entry.request->asked.timeout_seconds, waited = now() - entry.request->submitted;
    const bool late = limit > 0 && waited > limit;
    if (!late && tokens + entry.request->prompt_tokens > parts_.runner->max_tokens()) break;
    leave_queue(entry);
    if (late) {
      end(entry, {.finished = FinishReason::kTimeout,
                  .error_kind = ErrorKind::kLate,
                  .error = fmt::format("timeout_seconds of {} exceeded after {:.3f} s", limit, waited)});
    } else {
      tokens += entry.request->prompt_tokens;
      entry.request->stream->started(waited, entry.request->prompt_tokens, 0);
      step.push_back(std::move(queue_.front()));
    }
    queue_.pop_front();
  }
  return step;
}

void EncoderEngine::launch(Step step) {
  std::vector<const EncoderSequence*> sequences;
  int64_t tokens = 0;
  for (const std::unique_ptr<Entry>& entry : step) {
    sequences.push_back(&entry->sequence);
    tokens += entry->request->prompt_tokens;
  }
  launched_.push_back(std::move(step));
  counts_.padded_tokens += parts_.runner->padded_tokens(tokens, std::ssize(sequences)) - tokens;
  counts_.prompt_tokens += tokens, ++counts_.steps;
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
  for (size_t s = 0; s < step.size(); ++s) end(*step[s], result(*step[s], std::span(values).subspan(s * width, width)));
}

GenerationEvent EncoderEngine::result(const Entry& entry, std::span<const float> values) const {
  const GenerationRequest& asked = entry.request->asked;
  GenerationEvent event{.values = {values.begin(), values.end()}, .finished = FinishReason::kStop};
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
    return {.finished = FinishReason::kError,
            .error_kind = ErrorKind::kInternal,
            .error = "the model's values for this input are not finite"};
  if (parts_.folder.sigmoid) event.values[0] = 1 / (1 + std::exp(-event.values[0]));
  if (asked.dimensions > 0) event.values.resize(static_cast<size_t>(asked.dimensions));
  if (asked.normalize.value_or(parts_.folder.facts.normalize) && !parts_.folder.facts.classifies)
    normalize(event.values);
  return event;
}

void EncoderEngine::end(Entry& entry, const GenerationEvent& event) {
  if (std::exchange(entry.over, true)) return;
  (event.finished == FinishReason::kStop    ? counts_.finished
   : event.finished == FinishReason::kError ? counts_.failed
                                            : counts_.cancelled) += 1;
  publish_stats();  // a caller that waited for the end finds it counted
  entry.request->stream->publish(event, now() - entry.request->submitted);
  mailbox_->ended();
}

void EncoderEngine::publish_stats() {
  counts_.waiting = std::ssize(queue_), counts_.running = 0;
  for (const Step& step : launched_) counts_.running += std::ssize(step);
  const std::lock_guard lock(stats_mutex_);
  stats_ = counts_;
}

// Last call of the thread: ends every request and refuses later ones.
void EncoderEngine::end_all(FinishReason reason, ErrorKind kind, const std::string& message) {
  mailbox_->close(ErrorKind::kDevice, message);
  intake();
  const GenerationEvent event{.finished = reason, .error_kind = kind, .error = message};
  for (const std::unique_ptr<Entry>& entry : queue_) end(*entry, event);
  for (const Step& step : launched_)
    for (const std::unique_ptr<Entry>& entry : step) end(*entry, event);
  queue_.clear(), launched_.clear();
  publish_stats();
}

}  // namespace octet
