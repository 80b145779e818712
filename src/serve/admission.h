// Who may ask now, and whose turn it is: budgets of keys, and a bounded queue that is fair among keys by tokens.
//
// Times are seconds of any steady clock. Not thread safe: the caller locks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "serve/keys.h"

namespace octet::serve {

struct Refusal {
  int status = 503;    // 429: the key's own limits; 503: the server's
  std::string reason;  // of a metric: "requests", "tokens", "texts", "queue", "wait"
  std::string message;
  double retry_after = 1;  // seconds; 0: trying again does not help
};

// What one key has used of its limits: buckets of one minute's amount that refill evenly. A request larger than a full
// bucket is let in by a full one.
class KeyBudget {
 public:
  explicit KeyBudget(const KeyLimits& limits) : limits_(limits) {}
  void set_limits(const KeyLimits& limits) { limits_ = limits; }
  const KeyLimits& limits() const { return limits_; }

  // Takes `texts` texts and `tokens` tokens (prompts and the most that may be generated), or says why not.
  std::optional<Refusal> take(int64_t texts, int64_t tokens, double now);
  // The texts have ended and did not use these tokens.
  void give_back(int64_t texts, int64_t unused_tokens);

 private:
  struct Bucket {
    double used = 0, at = 0;
    // Seconds until `amount` fits into `limit` a minute; 0: now.
    double wait(double amount, double limit, double now);
  };
  KeyLimits limits_;
  Bucket requests_, tokens_;
  int64_t texts_ = 0;
};

// Tokens a second that the engine finishes while requests wait for it: at other times it may have too little to do to
// show its speed. A mean whose past fades; 0 where none has waited for two seconds of the last minute.
class QueueSpeed {
 public:
  // `tokens`: finished so far; `waits`: requests are left that the engine does not take yet.
  void note(double now, int64_t tokens, bool waits);
  double rate(double now) const;

 private:
  static constexpr double kLeast = 2, kForget = 60;  // seconds
  bool waits_ = false;
  double from_ = 0;  // begin of what is measured
  int64_t from_tokens_ = 0;
  double at_ = 0, seconds_ = 0, tokens_ = 0;  // until when, and of which time so many
};

// Requests that wait for the engine. The next one is of the highest priority, then of the key that has had the fewest
// tokens (start-time fair queueing: a key that was idle does not save up), then the oldest of that key.
class FairQueue {
 public:
  using Id = uint64_t;
  struct Bounds {
    int64_t requests = 4096;
    int64_t tokens = 16'000'000;
    double wait = 60;  // seconds that a request may be expected to wait
  };
  explicit FairQueue(const Bounds& bounds) : bounds_(bounds) {}

  // What the engine does meanwhile.
  struct Beyond {
    double rate = 0;      // tokens a second that it finishes; 0: not known yet
    int64_t waiting = 0;  // requests that wait inside of it, and count as those here; < 0: places for so many of these
  };

  // Enters a request, or says why not.
  std::optional<Refusal> push(Id id, const std::string& key, int32_t priority, int64_t tokens, const Beyond& engine);
  // Why a request of so many tokens cannot wait; none: it can.
  std::optional<Refusal> full(int64_t tokens, const Beyond& engine) const;
  std::optional<Id> pop();
  bool remove(Id id);  // whether it was waiting

  int64_t size() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t tokens() const { return tokens_; }

 private:
  struct Place {         // ordered: the first is next
    int32_t behind = 0;  // - priority
    double start = 0;
    Id id = 0;
    auto operator<=>(const Place&) const = default;
  };
  const Bounds bounds_;
  std::map<Place, int64_t> waiting_;  // tokens of each
  std::map<Id, Place> places_;
  std::map<std::string, double> finish_;  // of each key, in tokens
  double now_ = 0;                        // start of the last one that left
  int64_t tokens_ = 0;
};

}  // namespace octet::serve
