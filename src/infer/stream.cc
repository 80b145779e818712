#include "infer/stream.h"

#include <fmt/format.h>
#include <chrono>

#include "infer/request.h"

namespace octet {

void clear(GenerationEvent& event) {
  event.text.clear();
  event.ids.clear();
  event.logprobs.clear();
  event.top.clear();
  event.prompt_logprobs.clear();
  event.prompt_top.clear();
  event.values.clear();
  if (event.finished == FinishReason::kNone) return;
  event.finished = FinishReason::kNone;
  event.score = 0;
  event.stop.clear();
  event.stop_id = -1;
  event.error_kind = ErrorKind::kNone;
  event.error.clear();
}

StreamState::StreamState(int64_t texts, int64_t ticket, std::shared_ptr<Mailbox> mailbox, std::function<void()> on_news)
    : ticket_(ticket),
      mailbox_(std::move(mailbox)),
      on_news_(std::move(on_news)),
      texts_(static_cast<size_t>(texts)),
      open_(texts) {
  for (size_t i = 0; i < texts_.size(); ++i) texts_[i].pending.sample = static_cast<int64_t>(i);
  ready_.reserve(texts_.size());
}

bool StreamState::take(GenerationEvent& event, bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) {
    reader_waits_ = true;
    changed_.wait(lock, [this] { return !ready_.empty() || open_ == 0; });
    reader_waits_ = false;
  }
  if (ready_.empty()) {
    told_ = false;
    return false;
  }
  Text& text = texts_[ready_.front()];
  std::swap(event, text.pending);
  clear(text.pending);
  text.pending.sample = event.sample;
  text.ready = false;
  ready_.erase(ready_.begin());
  return true;
}

void StreamState::cancel() {
  {
    std::lock_guard lock(mutex_);
    if (open_ == 0) return;
  }
  if (!cancelled_.exchange(true)) mailbox_->cancel(ticket_);
}

void StreamState::abandon() {
  cancel();
  std::lock_guard lock(mutex_);
  abandoned_ = true;
}

bool StreamState::notify() {
  if (!on_news_ || abandoned_ || told_) return false;
  told_ = true;
  return true;
}

RequestTimes StreamState::times() const {
  std::lock_guard lock(mutex_);
  return times_;
}

void StreamState::publish(const GenerationEvent& news, double seconds) {
  bool wake = false, told = false;
  {
    std::lock_guard lock(mutex_);
    Text& text = texts_[static_cast<size_t>(news.sample)];
    GenerationEvent& pending = text.pending;
    pending.text += news.text;
    const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    append(pending.ids, news.ids);
    if (!news.logprobs.empty()) {
      append(pending.logprobs, news.logprobs);
      append(pending.top, news.top);
    }
    if (!news.prompt_logprobs.empty()) {
      append(pending.prompt_logprobs, news.prompt_logprobs);
      append(pending.prompt_top, news.prompt_top);
    }
    if (!news.values.empty()) pending.values = news.values, times_.first_token = times_.last_token = seconds;
    if (!news.ids.empty()) {
      if (times_.first_token == 0) times_.first_token = seconds;
      times_.last_token = seconds;
      times_.generated_tokens += static_cast<int64_t>(news.ids.size());
    }
    if (news.finished != FinishReason::kNone) {
      pending.finished = news.finished;
      pending.score = news.score;
      pending.stop = news.stop;
      pending.stop_id = news.stop_id;
      pending.error_kind = news.error_kind;
      pending.error = news.error;
      --open_;
    }
    if (!text.ready) {
      text.ready = true;
      ready_.push_back(static_cast<size_t>(news.sample));
    }
    wake = reader_waits_;
    told = notify();
  }
  if (wake) changed_.notify_one();
  if (told) on_news_();
}

void StreamState::refuse(FinishReason reason, ErrorKind kind, const std::string& error) {
  bool told = false;
  {
    std::lock_guard lock(mutex_);
    texts_[0].pending.finished = reason;
    texts_[0].pending.error_kind = kind;
    texts_[0].pending.error = error;
    texts_[0].ready = true;
    ready_.assign(1, 0);
    open_ = 0;
    told = notify();
  }
  changed_.notify_one();
  if (told) on_news_();
}

void StreamState::started(double seconds, int64_t prompt_tokens, int64_t cached_tokens) {
  std::lock_guard lock(mutex_);
  times_.scheduled = seconds;
  times_.prompt_tokens = prompt_tokens;
  times_.cached_tokens = cached_tokens;
}

void StreamState::preempted() {
  std::lock_guard lock(mutex_);
  ++times_.preemptions;
}

GenerationStream::GenerationStream(std::shared_ptr<StreamState> state) : state_(std::move(state)) {}
GenerationStream::GenerationStream(GenerationStream&&) noexcept = default;

GenerationStream& GenerationStream::operator=(GenerationStream&& other) noexcept {
  if (this != &other) {
    if (state_) state_->abandon();
    state_ = std::move(other.state_);
  }
  return *this;
}

GenerationStream::~GenerationStream() {
  if (state_) state_->abandon();
}

bool GenerationStream::next(GenerationEvent& event) { return state_ && state_->take(event, true); }
bool GenerationStream::try_next(GenerationEvent& event) { return state_ && state_->take(event, false); }
void GenerationStream::cancel() {
  if (state_) state_->cancel();
}
RequestTimes GenerationStream::times() const { return state_ ? state_->times() : RequestTimes{}; }

Mailbox::Mailbox(int64_t max_texts, int64_t max_tokens) : max_texts_(max_texts), max_tokens_(max_tokens) {}
Mailbox::~Mailbox() = default;

Mailbox::Refusal Mailbox::post(std::unique_ptr<Request>& request) {
  {
    std::lock_guard lock(mutex_);
    if (closed_.kind != ErrorKind::kNone) return closed_;
    const auto texts = static_cast<int64_t>(request->sequences.size()), tokens = request->prompt_tokens;
    if (texts_ + texts > max_texts_ || tokens_ + tokens > max_tokens_)
      return {ErrorKind::kQueueFull, fmt::format("the queue is full: {} of {} sequences and {} of {} prompt tokens are "
                                                 "waiting, {} and {} more do not fit; try again later",
                                                 texts_, max_texts_, tokens_, max_tokens_, texts, tokens)};
    texts_ += texts;
    tokens_ += tokens;
    ++live_;
    requests_.push_back(std::move(request));
  }
  posted_.notify_one();
  return {};
}

void Mailbox::cancel(int64_t ticket) {
  {
    std::lock_guard lock(mutex_);
    if (closed_.kind != ErrorKind::kNone) return;
    cancelled_.push_back(ticket);
  }
  posted_.notify_one();
}

void Mailbox::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  posted_.notify_one();
}

void Mailbox::drain() {
  std::unique_lock lock(mutex_);
  drained_.wait(lock, [this] { return live_ == 0; });
}

bool Mailbox::take(std::vector<std::unique_ptr<Request>>& requests, std::vector<int64_t>& cancelled, double seconds) {
  requests.clear();
  cancelled.clear();
  std::unique_lock lock(mutex_);
  if (seconds > 0)
    posted_.wait_for(lock, std::chrono::duration<double>(seconds),
                     [this] { return stop_ || !requests_.empty() || !cancelled_.empty(); });
  std::swap(requests, requests_);
  std::swap(cancelled, cancelled_);
  return !stop_;
}

void Mailbox::admitted(int64_t texts, int64_t tokens) {
  std::lock_guard lock(mutex_);
  texts_ -= texts;
  tokens_ -= tokens;
}

void Mailbox::ended() {
  std::lock_guard lock(mutex_);
  if (--live_ == 0) drained_.notify_all();
}

void Mailbox::close(ErrorKind kind, const std::string& reason) {
  std::lock_guard lock(mutex_);
  closed_ = {kind, reason};
  cancelled_.clear();
}

}  // namespace octet
