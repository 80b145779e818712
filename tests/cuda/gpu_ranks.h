// For tests only: the ranks of a mesh as threads of one process, each with a device. Over NCCL every rank has a device
// of its own; over the host they share one, which shows what kernels do on any mesh: graphs with collectives run
// eagerly only, what stages send each other goes through the device's memory, late.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "dist/communicator.h"
#include "dist/cuda/nccl.h"
#include "exec/executor.h"
#include "exec/logical_states.h"
#include "exec/testing/tiny_program.h"
#include "kernels/cuda/context.h"

namespace octet {

// The control plane of the ranks that run: which of them is known to be lost. Where ranks share a process, freeing a
// device's memory may wait for other devices' kernels: a rank that is to fail says so before it lets go of its
// executor.
inline std::atomic<int32_t> lost_rank = -1;

inline std::string message_of(const std::function<void()>& work) {
  try {
    work();
    return "nothing was thrown";
  } catch (const Error& error) {
    return error.message();
  }
}

// Whatever does not wait for the stream computes other bits.
inline void be_late(cudaStream_t stream) {
  const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::microseconds(200)); };
  cuda::check_cuda(cudaLaunchHostFunc(stream, sleep, nullptr), "a late rank");
}

// What ranks that share a device have put on their streams for each other: a copy, and the event of its end.
class Mail {
 public:
  void clear() { letters_.clear(); }

  void send(int32_t from, int32_t to, const void* x, size_t bytes, cudaStream_t stream) {
    Letter letter;
    cuda::check_cuda(cudaMallocAsync(&letter.copy, bytes, stream), "sending");
    be_late(stream);
    cuda::check_cuda(cudaMemcpyAsync(letter.copy, x, bytes, cudaMemcpyDefault, stream), "sending");
    cuda::check_cuda(cudaEventCreateWithFlags(&letter.sent, cudaEventDisableTiming), "sending");
    cuda::check_cuda(cudaEventRecord(letter.sent, stream), "sending");
    const std::lock_guard lock(mutex_);
    letters_[{from, to}].push_back(letter);
    arrived_.notify_all();
  }
  // The host waits for send(), the stream for what that has put there.
  void receive(int32_t from, int32_t to, void* y, size_t bytes, cudaStream_t stream) {
    const Letter letter = take({from, to});
    cuda::check_cuda(cudaStreamWaitEvent(stream, letter.sent, 0), "receiving");
    be_late(stream);
    cuda::check_cuda(cudaMemcpyAsync(y, letter.copy, bytes, cudaMemcpyDefault, stream), "receiving");
    cuda::check_cuda(cudaFreeAsync(letter.copy, stream), "receiving");
    cuda::check_cuda(cudaEventDestroy(letter.sent), "receiving");
  }

 private:
  struct Letter {
    void* copy = nullptr;
    cudaEvent_t sent = nullptr;
  };
  Letter take(const std::pair<int32_t, int32_t>& way) {
    std::unique_lock lock(mutex_);
    for (int waited = 0; letters_[way].empty(); ++waited) {
      check(lost_rank < 0 && waited < 600, ErrorCode::kIo, "rank {} gets nothing from rank {}", way.second, way.first);
      arrived_.wait_for(lock, std::chrono::milliseconds(100));
    }
    const Letter letter = letters_[way].front();
    letters_[way].pop_front();
    return letter;
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<int32_t, int32_t>, std::deque<Letter>> letters_;
};
inline Mail mail;

class MailLink final : public cuda::DeviceLink {
 public:
  MailLink(int32_t own, int32_t other, int64_t bytes) : own_(own), other_(other), bytes_(static_cast<size_t>(bytes)) {}
  void send(const void* x, Stream stream) override { mail.send(own_, other_, x, bytes_, stream); }
  void receive(void* y, Stream stream) override { mail.receive(other_, own_, y, bytes_, stream); }

 private:
  int32_t own_, other_;
  size_t bytes_;
};

// Collectives as they are defined, over a Communicator.
class HostGroup final : public cuda::RankGroup {
 public:
  HostGroup(Communicator& ranks, std::vector<int32_t> members, int64_t own)
      : RankGroup(std::ssize(members), own), ranks_(ranks), members_(std::move(members)) {}

  void all_reduce(const void* x, void* y, int64_t count, DType dtype, Stream stream) override {
    const auto mine = download(x, count * dtype_bytes(dtype), stream);
    upload(y, sum(exchange(std::vector(members_.size(), mine)), dtype), stream);
  }
  void reduce_scatter(const void* x, void* y, int64_t count, DType dtype, Stream stream) override {
    upload(y, sum(exchange(rows(x, count * dtype_bytes(dtype), stream)), dtype), stream);
  }
  void all_gather(const void* x, void* y, int64_t bytes, Stream stream) override {
    upload(y, joined(exchange(std::vector(members_.size(), download(x, bytes, stream)))), stream);
  }
  void all_to_all(const void* x, void* y, int64_t bytes, Stream stream) override {
    upload(y, joined(exchange(rows(x, bytes, stream))), stream);
  }
  void coalesce(FunctionRef<void()> calls, std::span<std::byte>) override { calls(); }

 private:
  using Bytes = std::vector<std::byte>;

  static Bytes download(const void* x, int64_t bytes, Stream stream) {
    Bytes data(static_cast<size_t>(bytes));
    cuda::check_cuda(cudaMemcpyAsync(data.data(), x, data.size(), cudaMemcpyDeviceToHost, stream), "downloading");
    cuda::check_cuda(cudaStreamSynchronize(stream), "downloading");
    return data;
  }
  static void upload(void* y, const Bytes& data, Stream stream) {
    cuda::check_cuda(cudaMemcpyAsync(y, data.data(), data.size(), cudaMemcpyHostToDevice, stream), "uploading");
    cuda::check_cuda(cudaStreamSynchronize(stream), "uploading");
  }
  std::vector<Bytes> rows(const void* x, int64_t bytes, Stream stream) const {
    std::vector<Bytes> all;
    for (int64_t i = 0; i < size(); ++i)
      all.push_back(download(static_cast<const std::byte*>(x) + i * bytes, bytes, stream));
    return all;
  }
  std::vector<Bytes> exchange(const std::vector<Bytes>& mine) {
    std::vector<Bytes> theirs(mine);
    ranks_.exchange(members_, {std::vector<std::span<const std::byte>>(mine.begin(), mine.end())},
                    {std::vector<std::span<std::byte>>(theirs.begin(), theirs.end())});
    return theirs;
  }
  static Bytes joined(const std::vector<Bytes>& rows) {
    Bytes all;
    for (const Bytes& row : rows) all.insert(all.end(), row.begin(), row.end());
    return all;
  }
  static Bytes sum(const std::vector<Bytes>& rows, DType dtype) {
    Bytes y(rows[0].size());
    for (int64_t i = 0; i < std::ssize(y) / dtype_bytes(dtype); ++i) {
      double all = load_element(dtype, rows[0].data(), i);
      for (size_t r = 1; r < rows.size(); ++r) {
        const double next = load_element(dtype, rows[r].data(), i);
        all =
            dtype == DType::kF64 ? all + next : static_cast<double>(static_cast<float>(all) + static_cast<float>(next));
      }
      store_element(dtype, y.data(), i, all);
    }
    return y;
  }

  Communicator& ranks_;
  std::vector<int32_t> members_;
};

class HostRanks final : public cuda::DeviceRanks {
 public:
  explicit HostRanks(Communicator& ranks) : DeviceRanks(ranks.mesh(), ranks.rank()), ranks_(ranks) {}
  cuda::RankGroup& group(const AxisList& over) override {
    std::vector<int32_t> members = mesh().group(rank(), over);
    const int64_t own = std::find(members.begin(), members.end(), rank()) - members.begin();
    return *groups_.emplace_back(std::make_unique<HostGroup>(ranks_, std::move(members), own));
  }
  std::shared_ptr<cuda::DeviceLink> link(int32_t other, bool, int64_t bytes) override {
    return std::make_shared<MailLink>(rank(), other, bytes);
  }
  void check() override {}
  void abort() override {}
  bool aborted() const override { return false; }
  int64_t bytes() const override { return 0; }

 private:
  Communicator& ranks_;
  std::vector<std::unique_ptr<HostGroup>> groups_;
};

enum class Wire : uint8_t { kHost, kNccl };
inline void PrintTo(Wire wire, std::ostream* out) { *out << (wire == Wire::kNccl ? "NCCL" : "host"); }

// Why the ranks cannot be had here; "": they can.
inline std::string no_ranks(Wire wire, const Mesh& mesh) {
  std::string why;
  if (!cuda_available(&why)) return why;
  if (wire == Wire::kHost) return "";
  if (cuda::device_count() < mesh.ranks())
    return fmt::format("{} GPUs are wanted and {} can be used", mesh.ranks(), cuda::device_count());
  try {
    nccl_version();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

inline int device_of(Wire wire, int32_t rank) { return wire == Wire::kNccl ? rank : 0; }

// Runs `work` for each rank in a thread of its own; when one throws, the others' waits end. Throws what the first
// threw.
inline void run_gpu_ranks(Wire wire, const Mesh& mesh,
                          const std::function<void(Communicator&, cuda::DeviceRanks&)>& work, bool peer_memory = true) {
  lost_rank = -1;
  mail.clear();
  run_thread_ranks(mesh, [&](Communicator& rank) {
    try {
      std::unique_ptr<cuda::DeviceRanks> ranks;
      if (wire == Wire::kHost) {
        ranks = std::make_unique<HostRanks>(rank);
      } else {
        const auto look = [&] { check(lost_rank < 0, ErrorCode::kIo, "rank {} is lost", lost_rank.load()); };
        ranks =
            make_nccl_ranks(rank, {.device = device_of(wire, rank.rank()), .peer_memory = peer_memory, .check = look});
      }
      work(rank, *ranks);
    } catch (...) {
      lost_rank = rank.rank();
      throw;
    }
  });
}

inline CudaOptions rank_options(Wire wire, cuda::DeviceRanks& ranks, bool eager = false) {
  return {.device = device_of(wire, ranks.rank()),
          .eager = eager || wire == Wire::kHost,
          .deterministic = true,
          .ranks = &ranks};
}

// Parameters by their names, the same whatever the mesh.
inline void initialize(Executor& executor) {
  for (const LogicalState& tensor : logical_states(executor.program())) {
    if (tensor.role != StateRole::kMaster || tensor.type.shape.elements() == 0) continue;
    if (executor.program().find_state(tensor.state)->slots == 0) continue;  // another stage's
    const std::vector<float> whole =
        tiny::initial_values(tensor.param, tensor.at.shape, 7, std::hash<std::string>()(tensor.param));
    const auto bytes = std::as_bytes(std::span(whole));
    for_each_run(tensor.at, DType::kF32, [&](int64_t logical, int64_t state, int64_t count) {
      executor.write_state_part(tensor.state, state,
                                bytes.subspan(static_cast<size_t>(logical), static_cast<size_t>(count)));
    });
  }
  executor.prepare();
}

// How a program is spread over ranks, by a name.
struct Way {
  const char* name;
  Mesh mesh = {};
  bool sequence = false;
  ShardLevel level = ShardLevel::kNone;
};

inline void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

inline constexpr int kMicroBatches = 4;  // of a step

// The gradients of a step; then its update.
inline void accumulate(Executor& executor, const Mesh& mesh, int step) {
  for (int i = executor.coordinate()[Axis::kData]; i < kMicroBatches; i += mesh[Axis::kData]) {
    const char* graph = i < mesh[Axis::kData] ? "train" : "accumulate";
    Batch batch = tiny::batch(kMicroBatches * step + i);
    batch.tensors.at("rng").values<int64_t>()[2] = i;
    write_inputs(executor, graph, batch);
    executor.run(graph);
  }
}

inline void apply(Executor& executor, int step) {
  input_as<float>(executor, "apply", "lr")[0] = 0.01f;
  input_as<float>(executor, "apply", "step")[0] = static_cast<float>(step + 1);
  executor.run("apply");
}

}  // namespace octet
