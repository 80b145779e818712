// Ranks as threads: a mailbox for each pair of ranks, in which a sender leaves a span until the receiver has copied it.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "dist/communicator.h"

namespace octet {
namespace {

struct Letter {
  std::span<const std::byte> bytes;
  bool taken = false;
};

struct Office {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::deque<Letter*>> boxes;  // [from * ranks + to]
  std::string failure;
  double timeout = 0;
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(const Mesh& mesh, int32_t rank, std::shared_ptr<Office> office)
      : Communicator(mesh, rank), office_(std::move(office)) {}

  void exchange(const std::vector<int32_t>& ranks, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override {
    std::vector<Letter> letters(ranks.size());
    std::unique_lock lock(office_->mutex);
    for (size_t i = 0; i < ranks.size(); ++i) {
      letters[i].bytes = send[i];
      box(rank(), ranks[i]).push_back(&letters[i]);
    }
    office_->changed.notify_all();
    try {
      for (size_t i = 0; i < ranks.size(); ++i) take(lock, ranks[i], receive[i]);
      // The senders' spans are theirs again when all receivers have copied them.
      for (size_t i = 0; i < ranks.size(); ++i) wait(lock, ranks[i], [&] { return letters[i].taken; });
    } catch (...) {
      for (int32_t to : ranks)
        std::erase_if(box(rank(), to), [&](Letter* letter) {
          return letter >= letters.data() && letter < letters.data() + letters.size();
        });
      throw;
    }
  }

  void abort(const std::string& why) override {
    const std::lock_guard lock(office_->mutex);
    if (office_->failure.empty()) office_->failure = why;
    office_->changed.notify_all();
  }

 private:
  std::deque<Letter*>& box(int32_t from, int32_t to) {
    return office_->boxes[static_cast<size_t>(from * mesh().ranks() + to)];
  }

  void take(std::unique_lock<std::mutex>& lock, int32_t from, std::span<std::byte> to) {
    std::deque<Letter*>& letters = box(from, rank());
    wait(lock, from, [&] { return !letters.empty(); });
    Letter& letter = *letters.front();
    check(letter.bytes.size() == to.size(), ErrorCode::kInternal,
          "rank {} sent {} bytes, rank {} expects {}: they do not run the same exchanges", from, letter.bytes.size(),
          rank(), to.size());
    letters.pop_front();
    std::copy(letter.bytes.begin(), letter.bytes.end(), to.begin());
    letter.taken = true;
    office_->changed.notify_all();
  }

  template <typename Done>
  void wait(std::unique_lock<std::mutex>& lock, int32_t other, const Done& done) {
    const bool in_time = office_->changed.wait_for(lock, std::chrono::duration<double>(office_->timeout),
                                                   [&] { return done() || !office_->failure.empty(); });
    check(done() || in_time, ErrorCode::kIo, "rank {} has waited {} s for rank {}", rank(), office_->timeout, other);
    check(done(), ErrorCode::kIo, "rank {}: {}", rank(), office_->failure);
  }

  std::shared_ptr<Office> office_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_ranks(const Mesh& mesh, double timeout) {
  auto office = std::make_shared<Office>();
  office->boxes.resize(static_cast<size_t>(mesh.ranks()) * static_cast<size_t>(mesh.ranks()));
  office->timeout = timeout;
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int32_t rank = 0; rank < mesh.ranks(); ++rank) ranks.push_back(std::make_unique<ThreadRank>(mesh, rank, office));
  return ranks;
}

void run_thread_ranks(const Mesh& mesh, const std::function<void(Communicator&)>& work, double timeout) {
  const auto ranks = make_thread_ranks(mesh, timeout);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) {
    threads.emplace_back([&] {
      try {
        work(*rank);
      } catch (const std::exception& error) {
        {
          const std::lock_guard lock(mutex);
          if (first == nullptr) first = std::current_exception();
        }
        rank->abort(fmt::format("rank {} failed: {}", rank->rank(), error.what()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace octet
