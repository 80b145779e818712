#include "serve/record_queue.h"

#include <chrono>
#include <csignal>

namespace octet::serve {

RecordQueue::RecordQueue(const Options& options, std::function<void(const std::vector<Record>& records)> write)
    : options_(options), write_(std::move(write)) {
  thread_ = std::thread([this] { work(); });
}

RecordQueue::~RecordQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void RecordQueue::add(Record record) {
  size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= options_.most) return drop(1);
    waiting_.push_back(std::move(record));
    count = waiting_.size();
  }
  if (count == 1 || count == options_.batch) changed_.notify_one();
}

void RecordQueue::work() {
  // A pipe whose reader has gone is an error of write(), not the end of the process.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  for (bool last = false; !last;) {
    std::vector<Record> records;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      changed_.wait_for(lock, std::chrono::duration<double>(options_.delay),
                        [&] { return stop_ || waiting_.size() >= options_.batch; });
      records.swap(waiting_);
      last = stop_;
    }
    if (!records.empty()) write_(records);
  }
}

}  // namespace octet::serve
