// What engines have in common: the thread that makes their steps, the mailbox that brings it requests and
// cancellations, the requests under way and their ends, the statistics. An engine reads requests and makes steps.
//
// Threads: submit(), stats(), drain() and streams may be used from any thread. They share only Mailbox, StreamState and
// the statistics with the engine's thread; everything else, here and in the engines, is used by that thread alone.
// Errors: an error of one request ends that request; it is the client's where kind_of() says so, and where reading the
// request threw it, nowhere else. When a step throws, every request ends with its message, later ones are refused with
// it, and the thread exits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "infer/postprocess.h"
#include "infer/request.h"
#include "infer/stream.h"

namespace octet {

class EngineThread : public Engine {
 public:
  GenerationStream submit(GenerationRequest request) final;
  EngineStats stats() const final;
  const EngineOptions& options() const final { return options_; }
  void drain() final { mailbox_->drain(); }

 protected:
  // An engine's constructor ends with start(), its destructor begins with stop().
  EngineThread(const EngineOptions& options, const Tokenizer* tokenizer);
  void start();
  void stop();

  // The request as the engine takes it, in the thread that submits it. Throws why it is refused.
  virtual std::unique_ptr<Request> read(GenerationRequest asked) const = 0;
  // A request that was read and is among requests_, to be computed by later steps.
  virtual void admit(Request& request) = 0;
  // This sequence has ended or is about to, and not by itself: no later step is to compute it.
  virtual void leave(RequestSequence& text) = 0;
  virtual void step() = 0;
  virtual void check_alive() {}  // while there are no requests: throws where a device is lost

  double now() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  void end(Request& request, FinishReason reason, ErrorKind kind = ErrorKind::kNone, const std::string& error = {});
  void deliver();  // publishes what postprocess_ has been told
  void count_outcome(FinishReason outcome);

  EngineOptions options_;
  std::shared_ptr<Mailbox> mailbox_;
  std::atomic<double> last_step_ = 0;  // when the results of a step last arrived

  Postprocess postprocess_;
  std::unordered_map<int64_t, std::unique_ptr<Request>> requests_;  // by ticket
  int64_t committed_step_ = 0;  // the last one whose results are there; RequestSequence::last_step counts alike
  bool stalled_ = false;        // the step computed nothing: only time or a cancellation helps
  EngineStats counts_;          // published after every step

 private:
  void run();
  bool intake();
  bool receive(double seconds);
  void retire();
  void publish_stats();
  void end_all(FinishReason reason, ErrorKind kind, const std::string& message);

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<int64_t> next_ticket_ = 1, refused_ = 0;
  std::atomic<bool> in_step_ = false, broken_ = false;

  std::vector<Request*> arrived_;   // and not admitted
  std::vector<Request*> retiring_;  // completed, perhaps still part of a step in flight
  std::vector<RequestSequence*> stopped_;
  std::vector<std::unique_ptr<Request>> incoming_;
  std::vector<int64_t> cancelled_;

  mutable std::mutex stats_mutex_;
  EngineStats stats_;  // under the mutex
  std::thread thread_;
};

// Of the options, else the model's own, for a model of `vocab` tokens. Null where there is none and the options allow
// that.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& model, const EngineOptions& options, int64_t vocab);

}  // namespace octet
