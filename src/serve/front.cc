#include "serve/front.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/log.h"

namespace octet::serve {

double Front::now() const {
  if (options_.clock) return options_.clock();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Front::Front(Engine& engine, std::vector<ApiKey> keys, const FrontOptions& options, FrontWatch* watch)
    : engine_(engine), options_(options), watch_(watch), queue_(options.queue) {
  set_keys(std::move(keys));
  thread_ = std::thread([this] { work(); });
}

Front::~Front() {
  std::deque<std::shared_ptr<Job>> left;
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->stop = true;
    left.swap(inbox_->news);
  }
  inbox_->changed.notify_all();
  thread_.join();
}

std::shared_ptr<const std::vector<ApiKey>> Front::keys() const {
  const std::lock_guard lock(mutex_);
  return keys_;
}

void Front::set_keys(std::vector<ApiKey> keys) {
  const std::lock_guard lock(mutex_);
  std::map<std::string, KeyBudget> budgets;
  for (const ApiKey& key : keys) {
    const auto old = budgets_.find(key.name);
    budgets.emplace(key.name, old != budgets_.end() ? old->second : KeyBudget(key.limits))
        .first->second.set_limits(key.limits);
  }
  keys_ = std::make_shared<const std::vector<ApiKey>>(std::move(keys)), budgets_ = std::move(budgets);
}

KeyBudget* Front::budget_of(const Job& job) {
  const auto found = budgets_.find(job.key);
  return found != budgets_.end() ? &found->second : nullptr;
}

int64_t Front::waiting() const {
  const std::lock_guard lock(mutex_);
  return queue_.size();
}

std::optional<Refusal> Front::full() const {
  const std::lock_guard lock(mutex_);
  return closed_ ? closed_ : queue_.full(0, beyond());
}

FairQueue::Beyond Front::beyond() const {
  return {.rate = speed_.rate(now()), .waiting = std::min<int64_t>(inside_ - options_.sequences, ahead_)};
}

void Front::submit(const std::shared_ptr<Job>& job, int64_t prompt_tokens) {
  job->submitted = now();
  job->tokens_ = job->prompt_tokens_ = prompt_tokens;
  int64_t most = 0;  // tokens of a text
  for (const GenerationRequest& prompt : job->prompts) {
    const int64_t room = std::max<int64_t>(engine_.context() - static_cast<int64_t>(prompt.prompt_ids.size()), 1);
    const int64_t texts = std::max(prompt.n, prompt.beams);
    const int64_t tokens = std::min(prompt.max_tokens, room);
    most = std::max(most, tokens);
    job->texts_ += texts, job->tokens_ += texts * tokens;
  }
  std::optional<Refusal> refusal;
  {
    const std::lock_guard lock(mutex_);
    refusal = closed_;
    KeyBudget* budget = budget_of(*job);
    if (!refusal && budget != nullptr) refusal = budget->take(job->texts_, job->tokens_, job->submitted);
    if (!refusal) {
      const int32_t priority = job->priority + (budget != nullptr ? budget->limits().priority : 0);
      job->id_ = next_id_++;
      const int64_t usual = prompt_tokens + job->texts_ * std::min(most, std::lround(usual_));
      refusal = queue_.push(job->id_, job->key, priority, std::min(job->tokens_, usual), beyond());
      if (refusal && budget != nullptr) budget->give_back(job->texts_, job->tokens_);
      if (!refusal) jobs_[job->id_] = job, job->waiting_ = true;
    }
  }
  if (refusal) {
    if (watch_ != nullptr) watch_->refused(*refusal);
    return refuse(*job, *refusal);
  }
  inbox_->notify(job);
}

void Front::cancel(const std::shared_ptr<Job>& job) {
  {
    const std::lock_guard lock(mutex_);
    job->cancelled_ = true;
  }
  inbox_->notify(job);
}

void Front::refuse_all(const Refusal& refusal) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = refusal;
  }
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->refuse = refusal;
  }
  inbox_->changed.notify_all();
}

void Front::Inbox::notify(const std::shared_ptr<Job>& job) {
  {
    const std::lock_guard lock(mutex);
    if (stop || std::exchange(job->news_, true)) return;
    news.push_back(job);
  }
  changed.notify_one();
}

void Front::work() {
  for (;;) {
    std::deque<std::shared_ptr<Job>> jobs;
    std::optional<Refusal> refusal;
    {
      std::unique_lock lock(inbox_->mutex);
      inbox_->changed.wait(lock, [&] { return inbox_->stop || inbox_->refuse || !inbox_->news.empty(); });
      if (inbox_->stop) return;
      refusal = std::exchange(inbox_->refuse, std::nullopt);
      jobs.swap(inbox_->news);
      for (const auto& job : jobs) job->news_ = false;
    }
    if (refusal) {
      std::map<FairQueue::Id, std::shared_ptr<Job>> all;
      {
        const std::lock_guard lock(mutex_);
        all = jobs_;
      }
      for (const auto& [id, job] : all) refuse(*job, *refusal), cancel(job);
    }
    for (const auto& job : jobs) {
      try {
        drain(job);
      } catch (const std::exception& error) {
        log_warning("a request failed: {}", error.what());
        refuse(*job, {500, "internal", "the reply could not be made", 0});
        cancel(job);
      }
    }
    try {
      pump();
    } catch (const std::exception& error) {
      log_warning("a request could not enter the engine: {}", error.what());
    }
  }
}

void Front::refuse(Job& job, const Refusal& refusal) {
  if (job.record) job.record->error = refusal.reason;
  job.on_refusal(refusal);
}

void Front::drain(const std::shared_ptr<Job>& job) {
  bool cancelled = false, left = false;
  {
    const std::lock_guard lock(mutex_);
    cancelled = job->cancelled_;
    if (cancelled && job->waiting_) left = queue_.remove(job->id_), job->waiting_ = false;
  }
  if (left || (cancelled && !job->streams_.empty())) {
    job->finished_ = FinishReason::kCancelled;
    if (job->record) job->record->finished.push_back(FinishReason::kCancelled);
    return end(job);
  }
  bool more = false;
  for (size_t i = 0; i < job->streams_.size(); ++i) {
    // One event of each text: others have their turn before the next.
    size_t turns = job->last_[i].size();
    for (GenerationEvent event; turns > 0 && job->streams_[i].try_next(event); --turns) {
      started(*job);
      const double at = now();
      double& last = job->last_[i][static_cast<size_t>(event.sample)];
      if (watch_ != nullptr && last > 0 && !event.ids.empty())
        watch_->between((at - last) / static_cast<double>(event.ids.size()), static_cast<int64_t>(event.ids.size()));
      if (!event.ids.empty()) last = at;
      if (event.finished != FinishReason::kNone) --inside_, --job->running_, job->finished_ = event.finished;
      if (event.finished != FinishReason::kNone && job->record) {
        job->record->finished.push_back(event.finished);
        if (event.error_kind != ErrorKind::kNone) job->record->error = error_kind_name(event.error_kind);
      }
      job->on_event(i, event);
      // The request has failed as a whole: its other texts are cancelled with their streams.
      if (event.finished == FinishReason::kError || event.finished == FinishReason::kTimeout) return end(job);
    }
    more |= turns == 0;
  }
  if (!job->streams_.empty() && job->running_ == 0) return end(job);
  if (more) inbox_->notify(job);
}

void Front::started(Job& job) {
  if (job.streams_.empty() || std::exchange(job.started_, true)) return;
  const std::lock_guard lock(mutex_);
  --ahead_, ahead_tokens_ -= job.prompt_tokens_;
}

void Front::end(const std::shared_ptr<Job>& job) {
  std::vector<RequestTimes> times;
  int64_t used = 0, generated = 0;
  for (const GenerationStream& stream : job->streams_) {
    times.push_back(stream.times());
    used += times.back().prompt_tokens + times.back().generated_tokens;
    generated += times.back().generated_tokens;
  }
  started(*job);
  inside_ -= std::exchange(job->running_, 0);
  job->streams_.clear();
  {
    const std::lock_guard lock(mutex_);
    jobs_.erase(job->id_);
    if (generated > 0 && job->finished_ != FinishReason::kCancelled)
      usual_ += (static_cast<double>(generated) / static_cast<double>(job->texts_) - usual_) /
                static_cast<double>(std::min<int64_t>(++ended_, 32));
    if (KeyBudget* budget = budget_of(*job)) budget->give_back(job->texts_, std::max<int64_t>(job->tokens_ - used, 0));
  }
  const double queued = std::max(job->entered_ - job->submitted, 0.0);
  if (job->record) job->record->add(times, queued);
  if (watch_ != nullptr) watch_->finished(times, queued, job->finished_);  // counted before its client knows
  job->on_end(times);
}

void Front::pump() {
  bool waits = false;  // what is left here, and will have waited until the next time
  for (;;) {
    std::shared_ptr<Job> job;
    {
      const std::lock_guard lock(mutex_);
      const bool enough =
          ahead_ >= options_.ahead && (ahead_tokens_ >= options_.ahead_tokens || ahead_ >= options_.ahead_most);
      const auto id = enough ? std::nullopt : queue_.pop();
      if (!id) {
        waits = queue_.size() > 0;
        break;
      }
      job = jobs_.at(*id);
      job->waiting_ = false;
      ++ahead_, ahead_tokens_ += job->prompt_tokens_, inside_ += job->texts_;
    }
    job->running_ = 0, job->entered_ = now();
    for (const GenerationRequest& prompt : job->prompts) job->running_ += prompt.n;
    for (GenerationRequest& prompt : job->prompts) {
      job->last_.emplace_back(static_cast<size_t>(prompt.n));
      prompt.on_news = [inbox = inbox_, weak = std::weak_ptr<Job>(job)] {
        if (const std::shared_ptr<Job> told = weak.lock()) inbox->notify(told);
      };
      job->streams_.push_back(engine_.submit(std::move(prompt)));
    }
    inbox_->notify(job);
  }
  const EngineStats stats = engine_.stats();
  const std::lock_guard lock(mutex_);
  speed_.note(now(), stats.prompt_tokens + stats.cached_tokens + stats.generated_tokens, waits);
}

}  // namespace octet::serve
