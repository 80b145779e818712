#include "infer/engine_thread.h"

#include <algorithm>

#include "base/log.h"
#include "base/threads.h"

namespace octet {
namespace {

constexpr double kIdleSeconds = 1, kStalledSeconds = 0.001;

}  // namespace

Engine::~Engine() = default;

void Engine::load_adapter(const std::string& name, const std::string&, bool) {
  fail(ErrorCode::kUnsupported, "adapter {}: an engine that encodes takes no adapters", name);
}

void Engine::unload_adapter(const std::string& name) { load_adapter(name, ""); }

EngineThread::EngineThread(const EngineOptions& options, const Tokenizer* tokenizer)
    : options_(options),
      mailbox_(std::make_shared<Mailbox>(options.max_waiting, options.max_waiting_tokens)),
      postprocess_(tokenizer != nullptr ? tokenizer->vocab_size() : 0) {}

void EngineThread::start() {
  publish_stats();
  release_threads();  // they loaded the weights; steps have the thread's own
  thread_ = std::thread([this] { run(); });
}

void EngineThread::stop() {
  mailbox_->stop();
  thread_.join();
}

GenerationStream EngineThread::submit(GenerationRequest asked) {
  const int64_t ticket = next_ticket_++;
  const std::function<void()> on_news = std::move(asked.on_news);
  const auto stream = [&](int64_t texts) { return std::make_shared<StreamState>(texts, ticket, mailbox_, on_news); };
  const auto refuse = [&](ErrorKind kind, const std::string& reason) {
    ++refused_;
    const auto state = stream(1);
    state->refuse(FinishReason::kError, kind, reason);
    return GenerationStream(state);
  };
  std::unique_ptr<Request> request;
  try {
    request = read(std::move(asked));
  } catch (const std::exception& error) {
    return refuse(kind_of(error), error.what());
  }
  const auto state = stream(request->open);
  if (!request->computes) {
    for (int64_t i = 0; i < request->open; ++i) state->publish({.sample = i, .finished = FinishReason::kLength}, 0);
    return GenerationStream(state);
  }
  request->stream = state;
  request->ticket = ticket;
  request->submitted = now();
  const Mailbox::Refusal refusal = mailbox_->post(request);
  if (refusal.kind != ErrorKind::kNone) return refuse(refusal.kind, refusal.reason);
  return GenerationStream(state);
}

EngineStats EngineThread::stats() const {
  const std::lock_guard lock(stats_mutex_);
  EngineStats stats = stats_;
  stats.failed += refused_;
  stats.since_step = now() - last_step_;
  stats.in_step = in_step_;
  stats.broken = broken_;
  return stats;
}

void EngineThread::run() {
  try {
    while (intake()) {
      in_step_ = true;
      step();
      publish_stats();
      retire();  // after publish_stats(): a caller that waited for a request's end finds it counted
      in_step_ = false;
    }
    end_all(FinishReason::kCancelled, ErrorKind::kNone, "the engine was closed");
  } catch (const std::exception& error) {
    in_step_ = false, broken_ = true;
    log_warning("engine: {}", error.what());
    end_all(FinishReason::kError, ErrorKind::kDevice, fmt::format("the engine failed: {}", error.what()));
  }
}

// Takes new requests and cancellations. Sleeps while there is nothing to do; false when the engine is shut down.
bool EngineThread::intake() {
  const bool idle = requests_.empty();
  const bool running = receive(idle ? kIdleSeconds : stalled_ ? kStalledSeconds : 0);
  if (idle) check_alive();
  if (idle && !arrived_.empty()) last_step_ = now();
  for (Request* request : arrived_) admit(*request);
  for (const int64_t ticket : cancelled_)
    if (const auto found = requests_.find(ticket); found != requests_.end())
      end(*found->second, FinishReason::kCancelled);
  return running;
}

bool EngineThread::receive(double seconds) {
  const bool running = mailbox_->take(incoming_, cancelled_, seconds);
  arrived_.clear();
  for (std::unique_ptr<Request>& request : incoming_) {
    arrived_.push_back(request.get());
    requests_.try_emplace(arrived_.back()->ticket, std::move(request));
  }
  return running;
}

void EngineThread::end(Request& request, FinishReason reason, ErrorKind kind, const std::string& error) {
  for (RequestSequence& text : request.sequences) {
    postprocess_.end(text, reason, kind, error);
    leave(text);
  }
}

void EngineThread::deliver() {
  stopped_.clear();
  postprocess_.deliver(now(), stopped_);
  for (RequestSequence* text : stopped_) leave(*text);
  std::vector<Request*>& completed = postprocess_.completed();
  for (Request* request : completed) count_outcome(request->outcome);
  retiring_.insert(retiring_.end(), completed.begin(), completed.end());
  completed.clear();
}

// Deletes completed requests that neither the engine nor a step in flight refers to.
void EngineThread::retire() {
  std::erase_if(retiring_, [this](Request* request) {
    const bool in_flight = std::ranges::any_of(
        request->sequences, [this](const RequestSequence& text) { return text.last_step > committed_step_; });
    if (in_flight || request->unreported > 0) return false;
    if (request->waiting > 0)
      mailbox_->admitted(request->waiting,
                         request->waiting == std::ssize(request->sequences) ? request->prompt_tokens : 0);
    requests_.erase(request->ticket);
    mailbox_->ended();
    return true;
  });
}

void EngineThread::count_outcome(FinishReason outcome) {
  const bool cancelled = outcome == FinishReason::kCancelled || outcome == FinishReason::kTimeout;
  ++(outcome == FinishReason::kError ? counts_.failed : cancelled ? counts_.cancelled : counts_.finished);
}

void EngineThread::publish_stats() {
  const std::lock_guard lock(stats_mutex_);
  stats_ = counts_;
}

// Last call of the thread: ends every request and refuses later ones.
void EngineThread::end_all(FinishReason reason, ErrorKind kind, const std::string& message) {
  mailbox_->close(ErrorKind::kDevice, message);
  receive(0);
  for (auto& [ticket, request] : requests_)
    for (RequestSequence& text : request->sequences) postprocess_.end(text, reason, kind, message);
  stopped_.clear();
  postprocess_.deliver(now(), stopped_);
  for (Request* request : postprocess_.completed()) count_outcome(request->outcome);
  counts_.running = counts_.waiting = 0;
  publish_stats();
  for (size_t i = requests_.size(); i > 0; --i) mailbox_->ended();
}

}  // namespace octet
