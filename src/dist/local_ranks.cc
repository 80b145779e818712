#include "dist/local_ranks.h"

#include <algorithm>
#include <atomic>

#include "base/threads.h"

namespace octet {

void run_local_ranks(const Mesh& mesh, const RankDevices& devices, const std::function<void(const LocalRank&)>& work,
                     double timeout) {
  std::atomic<int32_t> lost = -1;
  const auto look = [&] { check(lost < 0, ErrorCode::kIo, "rank {} is lost", lost.load()); };
  const auto run = [&](Communicator& ranks) {
    try {
      const int index = devices.make ? ranks.rank() : 0;
      const auto device = devices.make ? devices.make(ranks, index, look) : nullptr;
      work({.ranks = &ranks, .devices = device.get(), .device = index, .check = look});
    } catch (...) {
      lost = ranks.rank();
      throw;
    }
  };
  run_thread_ranks(mesh, run, timeout);
}

ThreadShare::ThreadShare(int32_t ranks) : before_(thread_count()) { set_thread_count(std::max(before_ / ranks, 1)); }

ThreadShare::~ThreadShare() { set_thread_count(before_); }

void MessageQueue::push(Message message) {
  {
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
  }
  changed_.notify_one();
}

void MessageQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_one();
}

MessageQueue::Message MessageQueue::pop() {
  std::unique_lock lock(mutex_);
  doing_ = false;
  changed_.wait(lock, [&] { return closed_ || !messages_.empty(); });
  if (messages_.empty()) return nullptr;
  doing_ = true;
  Message message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

int64_t MessageQueue::open() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(messages_) + (doing_ ? 1 : 0);
}

LocalRanks::LocalRanks(int32_t count, RankDevices devices, double timeout)
    : RankTeam(count, 0), devices_(std::move(devices)), share_(count), queues_(static_cast<size_t>(count - 1)) {
  Mesh mesh;
  mesh[Axis::kTensor] = count;
  ranks_ = make_thread_ranks(mesh, timeout);
  device_ = open_device(0);
}

void LocalRanks::start(const Work& follow) {
  for (int32_t r = 1; r < count(); ++r) {
    threads_.emplace_back([this, r, follow] {
      try {
        guard(rank(r, nullptr), [&] {
          const std::shared_ptr<cuda::DeviceRanks> device = open_device(r);
          follow(rank(r, device.get()));
        });
      } catch (const std::exception&) {  // kept in failure_
      }
    });
  }
}

LocalRanks::~LocalRanks() {
  device_.reset();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<cuda::DeviceRanks> LocalRanks::open_device(int32_t rank) {
  if (!devices_.make) return nullptr;
  return devices_.make(*ranks_[static_cast<size_t>(rank)], rank, this->rank(rank, nullptr).check);
}

LocalRank LocalRanks::rank(int32_t rank, cuda::DeviceRanks* device) const {
  const auto check = [this, rank] {
    check_alive();
    if (rank == 0) check_time();
  };
  return {.ranks = ranks_[static_cast<size_t>(rank)].get(),
          .devices = device,
          .device = devices_.make ? rank : 0,
          .check = check};
}

void LocalRanks::guard(const LocalRank& rank, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    fail(rank.ranks->rank(), error.message(), error.code());
    check_alive();
  } catch (const std::exception& error) {
    fail(rank.ranks->rank(), error.what(), ErrorCode::kInternal);
    check_alive();
  }
}

void LocalRanks::barrier() {
  std::unique_lock lock(mutex_);
  if (++waiting_ == count()) {
    waiting_ = 0;
    ++meetings_;
    changed_.notify_all();
  } else {
    changed_.wait(lock, [&, meeting = meetings_] { return meetings_ > meeting || failure_.has_value(); });
  }
  if (failure_) throw Error(*failure_);
}

void LocalRanks::fail(int32_t rank, const std::string& why, ErrorCode code) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_.emplace(code, fmt::format("rank {} of {}: {}", rank, count(), why));
  }
  changed_.notify_all();
  ranks_[static_cast<size_t>(rank)]->abort(failure_->message());
}

void LocalRanks::check_alive() const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
}

void LocalRanks::broadcast(Message message) {
  for (MessageQueue& queue : queues_) queue.push(message);
}

RankTeam::Message LocalRanks::receive(const LocalRank& rank) {
  return queues_[static_cast<size_t>(rank.ranks->rank() - 1)].pop();
}

void LocalRanks::close() noexcept {
  for (MessageQueue& queue : queues_) queue.close();
}

std::vector<int64_t> LocalRanks::behind() const {
  std::vector<int64_t> behind = {0};
  for (const MessageQueue& queue : queues_) behind.push_back(queue.open() - 1);  // rank 0 is at the last one
  return behind;
}

}  // namespace octet
