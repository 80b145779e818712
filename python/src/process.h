// What a module in another program's process has to watch: forks, Ctrl-C and the interpreter's end.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace octet::python {

namespace nb = nanobind;

// Before anything that starts threads or uses those of before. Throws kUnsupported in a process that was forked from
// one which has used Octet, whose threads are not there, and in a callback of a running engine.
void enter();
bool forked();  // since enter() was called first

// While it lives this thread runs a callback of an engine's, in which enter() throws: to wait there is to wait forever.
class InCallback {
 public:
  InCallback();
  ~InCallback();
};

// For waits with the GIL released: lets Python's signal handlers run every 50 ms.
class Signals {
 public:
  static constexpr auto kSlice = std::chrono::milliseconds(50);
  // Throws the exception that a handler raised, KeyboardInterrupt of Ctrl-C. Outside of Python's main thread nothing.
  void look();

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Numbers of what has news, rung from any thread, read by one.
class Bell {
 public:
  void ring(size_t number);
  // What has rung since the last call; waits at most Signals::kSlice for the first.
  std::vector<size_t> wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<size_t> rung_;
};

// The same for an event loop, which watches `fd`.
class Inbox {
 public:
  Inbox();
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;
  int fd() const { return fd_; }
  size_t next_number() { return ++last_; }
  void ring(size_t number);
  std::vector<size_t> take();

 private:
  int fd_;
  std::atomic<size_t> last_ = 0;
  std::mutex mutex_;
  std::vector<size_t> rung_;
};

// A thread that the interpreter's end awaits.
void start_thread(std::function<void()> work);

// Runs `work` in a thread of its own; called with the GIL, which it releases. After Ctrl-C `stop` is true; what `work`
// captures stays until it has ended, which KeyboardInterrupt awaits only where `patient` (a second Ctrl-C does not).
// At the interpreter's end all such work is awaited.
void run_apart(std::function<void(const std::atomic<bool>& stop)> work, bool patient);

// `close` runs once at the interpreter's end, unless what it returns has gone.
std::shared_ptr<void> at_end(std::function<void()> close);
void end_all();  // at the interpreter's end: everything of at_end(), and work that is left
bool ended();    // end_all() was called: objects of Python are left as they are

}  // namespace octet::python
