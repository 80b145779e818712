#include "serve/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace octet::serve {

double KeyBudget::Bucket::wait(double amount, double limit, double now) {
  used = std::max(used - (now - at) * limit / 60, 0.0);
  at = now;
  const double room = std::max(limit - used, 0.0), needed = std::min(amount, limit);
  return room >= needed ? 0 : (needed - room) * 60 / limit;
}

std::optional<Refusal> KeyBudget::take(int64_t texts, int64_t tokens, double now) {
  const auto refuse = [&](const char* reason, double seconds, const std::string& limit) {
    return Refusal{429, reason, fmt::format("the key allows {}: try again in {:.1f} s", limit, seconds), seconds};
  };
  const auto requests_limit = static_cast<double>(limits_.requests_per_minute);
  const auto tokens_limit = static_cast<double>(limits_.tokens_per_minute);
  if (limits_.texts > 0 && texts_ + texts > limits_.texts) {
    if (texts > limits_.texts)
      return Refusal{429, "texts",
                     fmt::format("{} completions requested, but the key allows {} at once", texts, limits_.texts), 0};
    return refuse("texts", 1, fmt::format("{} completions at once", limits_.texts));
  }
  if (requests_limit > 0)
    if (const double wait = requests_.wait(1, requests_limit, now); wait > 0)
      return refuse("requests", wait, fmt::format("{} requests a minute", limits_.requests_per_minute));
  if (tokens_limit > 0)
    if (const double wait = tokens_.wait(static_cast<double>(tokens), tokens_limit, now); wait > 0)
      return refuse("tokens", wait, fmt::format("{} tokens a minute", limits_.tokens_per_minute));
  requests_.used += 1, tokens_.used += static_cast<double>(tokens), texts_ += texts;
  return std::nullopt;
}

void KeyBudget::give_back(int64_t texts, int64_t unused_tokens) {
  texts_ -= texts;
  tokens_.used = std::max(tokens_.used - static_cast<double>(unused_tokens), 0.0);
}

void QueueSpeed::note(double now, int64_t tokens, bool waits) {
  constexpr double kPiece = 1, kFade = 30;  // seconds
  const double seconds = now - from_;
  const bool whole = waits_ && seconds >= kPiece;
  if (whole) {
    const double kept = now - at_ <= kForget ? std::exp(-(now - at_) / kFade) : 0;
    seconds_ = kept * seconds_ + seconds;
    tokens_ = kept * tokens_ + static_cast<double>(tokens - from_tokens_);
    at_ = now;
  }
  if (!std::exchange(waits_, waits) || whole) from_ = now, from_tokens_ = tokens;
}

double QueueSpeed::rate(double now) const {
  return seconds_ >= kLeast && now - at_ <= kForget ? tokens_ / seconds_ : 0;
}

std::optional<Refusal> FairQueue::full(int64_t tokens, const Beyond& engine) const {
  const double expected = engine.rate > 0 ? static_cast<double>(tokens_) / engine.rate : 0;
  const int64_t requests = std::max<int64_t>(size() + engine.waiting, 0);
  if (requests >= bounds_.requests || tokens_ + tokens > bounds_.tokens)
    return Refusal{503, "queue",
                   fmt::format("the queue is full: {} requests of {} tokens (at most {} and {})", requests, tokens_,
                               bounds_.requests, bounds_.tokens),
                   std::clamp(expected, 1.0, std::max(bounds_.wait, 1.0))};
  if (expected > bounds_.wait)
    return Refusal{503, "wait",
                   fmt::format("the request would wait about {:.0f} s (at most {:.0f})", expected, bounds_.wait),
                   expected - bounds_.wait + 1};
  return std::nullopt;
}

std::optional<Refusal> FairQueue::push(Id id, const std::string& key, int32_t priority, int64_t tokens,
                                       const Beyond& engine) {
  if (std::optional<Refusal> refusal = full(tokens, engine)) return refusal;
  double& finish = finish_[key];
  const Place place{-priority, std::max(finish, now_), id};
  finish = place.start + static_cast<double>(tokens);
  waiting_[place] = tokens, places_[id] = place, tokens_ += tokens;
  return std::nullopt;
}

std::optional<FairQueue::Id> FairQueue::pop() {
  if (waiting_.empty()) return std::nullopt;
  const Place next = waiting_.begin()->first;
  now_ = std::max(now_, next.start);
  remove(next.id);
  return next.id;
}

bool FairQueue::remove(Id id) {
  const auto found = places_.find(id);
  if (found == places_.end()) return false;
  const auto entry = waiting_.find(found->second);
  tokens_ -= entry->second;
  waiting_.erase(entry), places_.erase(found);
  return true;
}

}  // namespace octet::serve
