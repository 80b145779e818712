// Records of requests that wait for a thread of their own, which may take its time: a full queue drops and counts.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "serve/request_record.h"

namespace octet::serve {

class RecordQueue {
 public:
  using Record = std::shared_ptr<const RequestRecord>;
  struct Options {
    size_t most = 65'536;  // that wait
    size_t batch = 1;      // they are written once so many wait,
    double delay = 0;      // or the first has waited so many seconds
  };
  // `write` is called by the thread alone and does not throw.
  RecordQueue(const Options& options, std::function<void(const std::vector<Record>& records)> write);
  ~RecordQueue();  // behind what waits
  RecordQueue(const RecordQueue&) = delete;
  RecordQueue& operator=(const RecordQueue&) = delete;

  void add(Record record);
  void drop(size_t records) { dropped_ += static_cast<int64_t>(records); }
  int64_t dropped() const { return dropped_; }

 private:
  void work();

  const Options options_;
  const std::function<void(const std::vector<Record>&)> write_;
  std::atomic<int64_t> dropped_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Record> waiting_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace octet::serve
