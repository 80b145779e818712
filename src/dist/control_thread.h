// The thread of a rank's control plane. It owns the connections: to all others on rank 0, to rank 0 elsewhere. Calls
// queue messages and wait for what the thread hears; one mutex guards all state. States of a rank: running; ended
// (after the last answer: connections may close); failed (`failure_` is what every call throws).
#pragma once

#include <poll.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "dist/control.h"
#include "dist/rendezvous.h"

namespace octet {

class ControlThread {
 public:
  // What rank 0 answers to all ranks, from what each gave; and whether that ends the connections.
  using Answer = std::function<std::string(std::vector<std::string>& given)>;
  using IsLast = std::function<bool(const std::string& answer)>;

  ControlThread(const RankIdentity& identity, ControlOptions options);
  ControlThread(const ControlThread&) = delete;
  ~ControlThread();

  int32_t rank() const { return identity_.rank; }
  // `answer` and `is_last` run on rank 0 only.
  std::string call(
      std::string_view operation, std::string_view name, std::string_view given, const Answer& answer,
      const IsLast& is_last = [](const std::string&) { return false; });
  void send_parcel(int32_t to, std::span<const std::byte> bytes);
  void take_parcel(int32_t from, std::span<std::byte> bytes);
  std::vector<std::byte> next_parcel(int32_t from);
  std::vector<uint64_t> graphs();
  void note(int64_t step, std::string_view graph);
  void give_up(const std::string& why);
  [[noreturn]] void fail_operations(ErrorCode code, const std::string& why);  // this call and all later ones throw

 private:
  struct Note {
    int64_t step = 0;
    std::string graph;
    uint64_t graphs = 0;  // run so far; 0: none yet
  };
  struct Peer {
    Met met;
    Note note;
    Clock::time_point heard;
    std::deque<Message> calls;  // that rank 0 has not answered
  };

  void run();
  void turn(std::unique_lock<std::mutex>& lock);  // of the thread: waits, hears, sends, and looks for who is silent
  std::vector<pollfd> wait(std::unique_lock<std::mutex>& lock, Clock::time_point deadline);
  void attend(Peer& peer, int events);
  void on_message(Peer& peer, Message message);
  void hear_parcel(Peer& peer, Message message);
  void lose(Peer& peer, const std::string& why);
  void fail_all(const std::string& why);
  void say_farewell(Peer& peer);
  Clock::time_point next_note();
  Note own_note();
  void send_note();
  void send_new_note();  // where there is one
  void wake() const;
  void throw_failure() const;
  std::string where(int32_t rank, const std::string& host, const Note& note, const std::string& what) const;
  bool over() const { return stop_ || ended_ || failure_.has_value(); }

  const RankIdentity identity_;
  const ControlOptions options_;
  const Clock::duration timeout_, interval_;  // of silence; between heartbeats
  Socket wake_;                               // an eventfd that interrupts poll

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;                   // by rank, without this one
  uint64_t sequence_ = 0;                     // calls so far
  std::vector<std::deque<Message>> parcels_;  // by sender: that this rank has not taken
  std::optional<Message> reply_;
  std::optional<Error> failure_;
  bool lost_ = false, ended_ = false, stop_ = false;
  Clock::time_point noted_;  // when the last heartbeat was sent

  std::mutex note_mutex_;  // taken after mutex_ where both are
  Note note_;
  bool note_is_new_ = false;

  std::thread thread_;
};

}  // namespace octet
