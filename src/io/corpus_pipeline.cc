// run_over_corpus (corpus.h): one reading thread, the workers, and the caller as the ordered sink.
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "io/corpus.h"

namespace octet {
namespace {

struct Finished {
  std::function<void()> sink;
  std::exception_ptr error;
};

// Shared state of one run under one mutex: a batch is about a megabyte of work, so contention is negligible.
struct Pipeline {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::unique_ptr<CorpusBatch>> waiting;
  std::map<int64_t, Finished> finished;
  int64_t in_flight = 0;  // batches read whose sink has not run: bounds memory
  int64_t read = 0;
  bool reading = true, stop = false;
};

void read_batches(CorpusReader& reader, Pipeline& shared, int64_t max_in_flight) {
  for (;;) {
    auto batch = std::make_unique<CorpusBatch>();
    std::exception_ptr error;
    bool more = false;
    try {
      more = reader.next(*batch);
    } catch (...) {
      error = std::current_exception();
    }
    std::unique_lock lock(shared.mutex);
    shared.changed.wait(lock, [&] { return shared.stop || shared.in_flight < max_in_flight; });
    if (error) shared.finished[shared.read++] = {nullptr, error};
    if (error || !more || shared.stop) break;
    ++shared.read;
    ++shared.in_flight;
    shared.waiting.push_back(std::move(batch));
    shared.changed.notify_all();
  }
  std::lock_guard lock(shared.mutex);
  shared.reading = false;
  shared.changed.notify_all();
}

void work_on_batches(int worker, Pipeline& shared, const CorpusWork& work) {
  for (;;) {
    std::unique_ptr<CorpusBatch> batch;
    {
      std::unique_lock lock(shared.mutex);
      shared.changed.wait(lock, [&] { return shared.stop || !shared.waiting.empty() || !shared.reading; });
      if (shared.stop || shared.waiting.empty()) return;
      batch = std::move(shared.waiting.front());
      shared.waiting.pop_front();
    }
    Finished result;
    try {
      result.sink = work(worker, *batch);
    } catch (...) {
      result.error = std::current_exception();
    }
    std::lock_guard lock(shared.mutex);
    shared.finished[batch->number] = std::move(result);
    shared.changed.notify_all();
  }
}

}  // namespace

void run_over_corpus(CorpusReader& reader, int threads, const CorpusWork& work) {
  Pipeline shared;
  std::vector<std::thread> pool;
  const auto stop = [&] {
    {
      std::lock_guard lock(shared.mutex);
      shared.stop = true;
      shared.changed.notify_all();
    }
    for (std::thread& thread : pool) thread.join();
  };
  try {
    pool.emplace_back([&] { read_batches(reader, shared, 3 * threads + 2); });
    for (int worker = 0; worker < threads; ++worker) {
      pool.emplace_back([&, worker] { work_on_batches(worker, shared, work); });
    }
    for (int64_t number = 0;; ++number) {
      Finished result;
      {
        std::unique_lock lock(shared.mutex);
        const auto ready = [&] { return shared.finished.count(number) > 0; };
        shared.changed.wait(lock, [&] { return ready() || (!shared.reading && number >= shared.read); });
        if (!ready()) break;
        result = std::move(shared.finished.at(number));
        shared.finished.erase(number);
      }
      if (result.error) std::rethrow_exception(result.error);
      if (result.sink) result.sink();
      std::lock_guard lock(shared.mutex);
      --shared.in_flight;
      shared.changed.notify_all();
    }
  } catch (...) {
    stop();
    throw;
  }
  stop();
}

}  // namespace octet
