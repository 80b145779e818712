#include "dist/local_ranks.h"

#include <algorithm>
#include <atomic>

#include "base/threads.h"
#include "dist/nccl.h"

namespace octet {

void run_local_ranks(const Mesh& mesh, bool gpus, const std::function<void(const LocalRank&)>& work, double timeout,
                     bool peer_memory) {
  if (gpus) nccl_version();  // opened here: it sets a variable of the environment, which the ranks' libraries read
  std::atomic<int32_t> lost = -1;
  const auto look = [&] { check(lost < 0, ErrorCode::kIo, "rank {} is lost", lost.load()); };
  const auto run = [&](Communicator& ranks) {
    try {
      LocalRank rank{.ranks = &ranks, .device = gpus ? ranks.rank() : 0, .check = look};
      std::unique_ptr<cuda::DeviceRanks> devices;
      if (gpus) devices = make_nccl_ranks(ranks, {.device = rank.device, .peer_memory = peer_memory, .check = look});
      rank.devices = devices.get();
      work(rank);
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

LocalRanks::LocalRanks(int32_t count, bool gpus, double timeout)
    : RankTeam(count, 0), gpus_(gpus), share_(count), queues_(static_cast<size_t>(count - 1)) {
  Mesh mesh;
  mesh[Axis::kTensor] = count;
  ranks_ = make_thread_ranks(mesh, timeout);
  devices_ = open_devices(0);
}

void LocalRanks::start(const Work& follow) {
  for (int32_t r = 1; r < count(); ++r) {
    threads_.emplace_back([this, r, follow] {
      try {
        guard(rank(r, nullptr), [&] {
          const std::unique_ptr<cuda::DeviceRanks> devices = open_devices(r);
          follow(rank(r, devices.get()));
        });
      } catch (const std::exception&) {  // kept in failure_
      }
    });
  }
}

LocalRanks::~LocalRanks() {
  const bool failed = [&] {
    const std::lock_guard lock(mutex_);
    return failure_.has_value();
  }();
  if (failed && devices_ != nullptr) devices_->abort();  // its peers may be gone
  devices_.reset();
  for (std::thread& thread : threads_) thread.join();
}

std::unique_ptr<cuda::DeviceRanks> LocalRanks::open_devices(int32_t rank) {
  if (!gpus_) return nullptr;
  return make_nccl_ranks(*ranks_[static_cast<size_t>(rank)],
                         {.device = rank, .check = this->rank(rank, nullptr).check});
}

LocalRank LocalRanks::rank(int32_t rank, cuda::DeviceRanks* devices) const {
  const auto check = [this, rank] {
    check_alive();
    if (rank == 0) check_time();
  };
  return {
      .ranks = ranks_[static_cast<size_t>(rank)].get(), .devices = devices, .device = gpus_ ? rank : 0, .check = check};
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

void LocalRanks::meet() {
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

void LocalRanks::tell(Message message) {
  for (MessageQueue& queue : queues_) queue.push(message);
}

RankTeam::Message LocalRanks::hear(const LocalRank& rank) {
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
