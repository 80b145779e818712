// Between API requests and the engine: admission, order, and one thread that turns news of texts into bytes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "octet/engine.h"
#include "serve/admission.h"
#include "serve/request_record.h"

namespace octet::serve {

// Texts of one API request. What a wire form does with news of them; called by the front's thread, one at a time.
class Job : public std::enable_shared_from_this<Job> {
 public:
  virtual ~Job() = default;
  virtual void on_event(size_t prompt, const GenerationEvent& event) = 0;
  // All texts have ended. `times`: of each prompt.
  virtual void on_end(const std::vector<RequestTimes>& times) = 0;
  // It never ran, or is cut off by the server's end; nothing comes behind it.
  virtual void on_refusal(const Refusal& refusal) = 0;

  std::vector<GenerationRequest> prompts;
  std::string key;                             // name of the one that asks; empty: none
  int32_t priority = 0;                        // added to the key's
  double submitted = 0;                        // seconds, of the front's clock
  std::string reply_id;                        // of the object that answers; empty: it has none
  std::string adapter;                         // that its prompts have; empty: none
  std::shared_ptr<RequestRecord> record = {};  // none: nobody wants it

 private:
  friend class Front;
  int64_t tokens_ = 0, texts_ = 0;  // taken from the key's budget
  int64_t prompt_tokens_ = 0;
  int64_t running_ = 0;  // texts in the engine
  std::vector<GenerationStream> streams_;
  std::vector<std::vector<double>> last_;  // when a token of each text came
  double entered_ = 0;                     // the engine
  FinishReason finished_ = FinishReason::kNone;
  FairQueue::Id id_ = 0;
  bool waiting_ = false, started_ = false, cancelled_ = false, news_ = false;
};

struct FrontOptions {
  FairQueue::Bounds queue;
  int64_t ahead = 16;        // requests that wait inside of the engine at least
  int64_t ahead_tokens = 0;  // and as many as have so many prompt tokens: enough to fill its next steps
  int64_t ahead_most = std::numeric_limits<int64_t>::max();  // but, above `ahead`, no more than so many
  int64_t sequences = std::numeric_limits<int64_t>::max();   // texts that run at once: more inside of the engine wait
  std::function<double()> clock = {};                        // seconds; none: of a steady clock
};

// Hears of what is worth counting: of refusals in the thread of submit(), else in the front's.
class FrontWatch {
 public:
  virtual ~FrontWatch() = default;
  virtual void refused(const Refusal& refusal) = 0;
  // Seconds from one token of a text to the next, for so many.
  virtual void between(double seconds, int64_t tokens) = 0;
  // A request has ended; `queued`: its seconds outside of the engine, `reason`: how its last text ended.
  virtual void finished(const std::vector<RequestTimes>& times, double queued, FinishReason reason) = 0;
};

class Front {
 public:
  Front(Engine& engine, std::vector<ApiKey> keys, const FrontOptions& options, FrontWatch* watch = nullptr);
  ~Front();  // cancels all
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

  // Takes the job, whose prompts are `prompt_tokens` long together; from any thread. Refusals are told at once.
  void submit(const std::shared_ptr<Job>& job, int64_t prompt_tokens);
  void cancel(const std::shared_ptr<Job>& job);
  // Ends all that waits and runs, and all that comes later.
  void refuse_all(const Refusal& refusal);

  std::shared_ptr<const std::vector<ApiKey>> keys() const;
  // Budgets of keys that stay go on.
  void set_keys(std::vector<ApiKey> keys);
  int64_t waiting() const;  // requests outside of the engine
  // What any request would hear now, however small; none: there is room.
  std::optional<Refusal> full() const;

 private:
  double now() const;
  void work();
  KeyBudget* budget_of(const Job& job);
  void drain(const std::shared_ptr<Job>& job);
  void started(Job& job);  // it no longer waits for its first step
  void end(const std::shared_ptr<Job>& job);
  static void refuse(Job& job, const Refusal& refusal);
  // Moves requests into the engine while it has few that wait. Called without the lock.
  void pump();
  FairQueue::Beyond beyond() const;  // under the lock

  Engine& engine_;
  const FrontOptions options_;
  FrontWatch* const watch_;
  mutable std::mutex mutex_;
  std::shared_ptr<const std::vector<ApiKey>> keys_;
  std::map<std::string, KeyBudget> budgets_;
  FairQueue queue_;
  std::map<FairQueue::Id, std::shared_ptr<Job>> jobs_;
  FairQueue::Id next_id_ = 1;
  int64_t ahead_ = 0, ahead_tokens_ = 0;  // in the engine, without a token yet
  std::atomic<int64_t> inside_ = 0;       // texts in the engine
  QueueSpeed speed_;
  // Mean tokens of the last texts that have ended: what one that may go on to the context's end is taken to need, in
  // the queue alone. Budgets of keys take what a request may use.
  double usual_ = 256;
  int64_t ended_ = 0;

  std::optional<Refusal> closed_;  // what refuse_all() has said: later requests hear it too

  // What wakes the thread. The engine may still tell of a stream that is destroyed with the front.
  struct Inbox {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::shared_ptr<Job>> news;
    std::optional<Refusal> refuse;
    bool stop = false;
    void notify(const std::shared_ptr<Job>& job);
  };
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::thread thread_;
};

}  // namespace octet::serve
