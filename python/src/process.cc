#include "process.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <exception>
#include <list>
#include <thread>
#include <utility>

#include "base/error.h"

namespace octet::python {
namespace {

std::atomic<pid_t> g_user = 0;  // the process that has used Octet
std::atomic<bool> g_ended = false;
thread_local int t_callbacks = 0;

struct Ends {
  std::mutex mutex;
  std::condition_variable changed;
  std::list<std::weak_ptr<std::function<void()>>> close;
  int64_t running = 0;  // threads of run_apart()
};
Ends& ends() {
  static Ends& all = *new Ends;  // outlives every thread
  return all;
}

}  // namespace

bool forked() {
  const pid_t user = g_user;
  return user != 0 && user != getpid();
}

void enter() {
  pid_t none = 0;
  g_user.compare_exchange_strong(none, getpid());
  check(!forked(), ErrorCode::kUnsupported,
        "this process was forked from process {}, which had used octet: threads do not survive a fork. Start workers "
        "by spawn: multiprocessing.get_context(\"spawn\")",
        g_user.load());
  check(t_callbacks == 0, ErrorCode::kUnsupported,
        "a callback of an engine may not use an engine: it would wait for itself");
}

InCallback::InCallback() { ++t_callbacks; }
InCallback::~InCallback() { --t_callbacks; }

void Signals::look() {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < kSlice) return;
  last_ = now;
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void Bell::ring(size_t number) {
  const std::lock_guard lock(mutex_);
  rung_.push_back(number);
  changed_.notify_one();
}

std::vector<size_t> Bell::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, Signals::kSlice, [&] { return !rung_.empty(); });
  return std::exchange(rung_, {});
}

Inbox::Inbox() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  check(fd_ >= 0, ErrorCode::kIo, "eventfd: no file descriptor is left");
}

Inbox::~Inbox() { close(fd_); }

void Inbox::ring(size_t number) {
  const std::lock_guard lock(mutex_);
  rung_.push_back(number);
  if (rung_.size() == 1) eventfd_write(fd_, 1);
}

std::vector<size_t> Inbox::take() {
  const std::lock_guard lock(mutex_);
  eventfd_t count = 0;
  eventfd_read(fd_, &count);
  return std::exchange(rung_, {});
}

void start_thread(std::function<void()> work) {
  {
    const std::lock_guard lock(ends().mutex);
    ++ends().running;
  }
  std::thread([work = std::move(work)]() mutable {
    work();
    work = nullptr;
    const std::lock_guard lock(ends().mutex);
    --ends().running;
    ends().changed.notify_all();
  }).detach();
}

void run_apart(std::function<void(const std::atomic<bool>& stop)> work, bool patient) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::atomic<bool> stop = false;
    bool done = false;
    std::exception_ptr error;
  };
  const auto state = std::make_shared<State>();
  start_thread([state, work = std::move(work)]() mutable {
    std::exception_ptr error;
    try {
      work(state->stop);
    } catch (...) {
      error = std::current_exception();
    }
    work = nullptr;
    const std::lock_guard lock(state->mutex);
    state->done = true, state->error = std::move(error);
    state->changed.notify_all();
  });
  std::exception_ptr interrupt;
  const nb::gil_scoped_release release;
  Signals signals;
  while (true) {
    {
      std::unique_lock lock(state->mutex);
      if (state->changed.wait_for(lock, Signals::kSlice, [&] { return state->done; })) break;
    }
    try {
      signals.look();
    } catch (const nb::python_error&) {
      state->stop = true;
      if (interrupt || !patient) throw;
      interrupt = std::current_exception();
    }
  }
  if (interrupt) std::rethrow_exception(interrupt);
  if (state->error) std::rethrow_exception(state->error);
}

std::shared_ptr<void> at_end(std::function<void()> close) {
  auto kept = std::make_shared<std::function<void()>>(std::move(close));
  const std::lock_guard lock(ends().mutex);
  ends().close.remove_if([](const auto& one) { return one.expired(); });
  ends().close.push_back(kept);
  return kept;
}

bool ended() { return g_ended; }

void end_all() {
  if (forked()) return;
  std::list<std::weak_ptr<std::function<void()>>> all;
  {
    const std::lock_guard lock(ends().mutex);
    all.swap(ends().close);
  }
  for (const auto& one : all)
    if (const auto close = one.lock()) (*close)();
  {
    const nb::gil_scoped_release release;
    std::unique_lock lock(ends().mutex);
    ends().changed.wait(lock, [] { return ends().running == 0; });
  }
  g_ended = true;
}

}  // namespace octet::python
