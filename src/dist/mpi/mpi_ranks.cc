// Ranks as processes of MPI: exchanges by point-to-point messages, polled so that a lost rank or an abort ends them.
//
// One mutex goes around every call of MPI, so MPI_THREAD_SERIALIZED is enough. After a failure a communicator makes no
// calls but those of abort.
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "dist/mpi/plug_in.h"

namespace octet {
namespace {

using Clock = std::chrono::steady_clock;
using SteadyTime = Clock::time_point;

constexpr int kData = 1, kAbort = 2;        // tags
constexpr size_t kChunk = size_t{1} << 30;  // MPI counts with int
constexpr size_t kLongestReason = 1000;     // sent at once, without the receiver
constexpr unsigned kFinalizeSeconds = 1;

std::mutex g_mutex;
bool g_failed = false, g_unfinished = false;  // of any communicator: an error; sends whose buffers may be gone

void call(int result, const char* function) {
  if (result == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  fail(ErrorCode::kIo, "{}: {}", function, std::string_view(text.data(), static_cast<size_t>(length)));
}

// At the process's end. After an error other ranks may never come to MPI_Finalize: it is given a second. With
// unfinished sends it is left out; mpirun then ends the others.
void finish() {
  if (g_unfinished) return;
  if (g_failed) {
    std::signal(SIGALRM, [](int) { _exit(1); });
    alarm(kFinalizeSeconds);
  }
  MPI_Finalize();
}

void start() {
  int started = 0, level = 0;
  call(MPI_Initialized(&started), "MPI_Initialized");
  if (started == 0) {
    call(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    std::atexit(finish);
  }
  call(MPI_Query_thread(&level), "MPI_Query_thread");
  check(level >= MPI_THREAD_SERIALIZED, ErrorCode::kUnsupported,
        "this MPI has thread level {}, wanted is MPI_THREAD_SERIALIZED ({}): build it with threads", level,
        static_cast<int>(MPI_THREAD_SERIALIZED));
}

class MpiRank final : public Communicator {
 public:
  MpiRank(const Mesh& mesh, int32_t rank, MPI_Comm comm, double timeout)
      : Communicator(mesh, rank), comm_(comm), timeout_(timeout) {}

  void exchange(const std::vector<int32_t>& ranks, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override {
    std::vector<Sending> sending;
    std::vector<Receiving> receiving;
    try {
      {
        const std::lock_guard lock(g_mutex);
        check(failure_.empty(), ErrorCode::kIo, "rank {}: {}", rank(), failure_);
        for (size_t i = 0; i < ranks.size(); ++i) {
          if (ranks[i] == rank()) {
            check_size(rank(), send[i].size(), receive[i].size());
            std::ranges::copy(send[i], receive[i].begin());
            continue;
          }
          receiving.push_back({.from = ranks[i], .rest = receive[i]});
          start_sending(ranks[i], send[i], sending);
        }
      }
      const auto deadline =
          Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_));
      while (!progress(sending, receiving, deadline)) std::this_thread::yield();
    } catch (const Error& error) {
      const std::lock_guard lock(g_mutex);
      if (failure_.empty()) failure_ = error.message();
      g_failed = true;
      g_unfinished |= !sending.empty() || std::ranges::any_of(receiving, [](const Receiving& from) {
        return from.request != MPI_REQUEST_NULL;
      });
      throw;
    }
  }

  void abort(const std::string& why) override {
    const std::lock_guard lock(g_mutex);
    g_failed = true;
    if (!reason_.empty()) return;
    reason_ = why.substr(0, kLongestReason);
    if (failure_.empty()) failure_ = why;
    for (int to = 0; to < mesh().ranks(); ++to) {
      MPI_Request request = MPI_REQUEST_NULL;
      if (to != rank())
        MPI_Isend(reason_.data(), static_cast<int>(reason_.size()), MPI_CHAR, to, kAbort, comm_, &request);
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);  // completes by itself; reason_ stays
    }
  }

 private:
  struct Sending {
    int32_t to = 0;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Receiving {
    int32_t from = 0;
    std::span<std::byte> rest;  // not yet matched with a message
    MPI_Request request = MPI_REQUEST_NULL;
    bool done = false;
  };

  void check_size(int32_t from, size_t sent, size_t expected) const {
    check(sent == expected, ErrorCode::kInternal,
          "rank {} sent {} bytes, rank {} expects {}: they do not run the same exchanges", from, sent, rank(),
          expected);
  }

  void start_sending(int32_t to, std::span<const std::byte> bytes, std::vector<Sending>& sending) const {
    do {
      const size_t size = std::min(bytes.size(), kChunk);
      sending.push_back({.to = to});
      call(MPI_Isend(bytes.data(), static_cast<int>(size), MPI_BYTE, to, kData, comm_, &sending.back().request),
           "MPI_Isend");
      bytes = bytes.subspan(size);
    } while (!bytes.empty());
  }

  // One look at everything that is under way; whether all is done.
  bool progress(std::vector<Sending>& sending, std::vector<Receiving>& receiving, SteadyTime deadline) {
    const std::lock_guard lock(g_mutex);
    std::erase_if(sending, [](Sending& to) { return is_done(to.request); });
    for (Receiving& from : receiving)
      if (!from.done) receive_some(from);
    std::erase_if(receiving, [](const Receiving& from) { return from.done; });
    if (sending.empty() && receiving.empty()) return true;
    hear_abort();
    check(failure_.empty(), ErrorCode::kIo, "rank {}: {}", rank(), failure_);
    check(Clock::now() < deadline, ErrorCode::kIo, "rank {} has waited {} s for rank {}", rank(), timeout_,
          receiving.empty() ? sending.front().to : receiving.front().from);
    return false;
  }

  static bool is_done(MPI_Request& request) {
    int done = 0;
    call(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  }

  // A message is looked at before it is received, so that one of another size is an error and no lost memory.
  void receive_some(Receiving& from) const {
    if (from.request == MPI_REQUEST_NULL) {
      int found = 0, count = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      call(MPI_Improbe(from.from, kData, comm_, &found, &message, &status), "MPI_Improbe");
      if (found == 0) return;
      call(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
      check_size(from.from, static_cast<size_t>(count), std::min(from.rest.size(), kChunk));
      call(MPI_Imrecv(from.rest.data(), count, MPI_BYTE, &message, &from.request), "MPI_Imrecv");
      from.rest = from.rest.subspan(static_cast<size_t>(count));
    }
    from.done = is_done(from.request) && from.rest.empty();
  }

  void hear_abort() {
    int found = 0, count = 0;
    MPI_Status status;
    call(MPI_Iprobe(MPI_ANY_SOURCE, kAbort, comm_, &found, &status), "MPI_Iprobe");
    if (found == 0) return;
    call(MPI_Get_count(&status, MPI_CHAR, &count), "MPI_Get_count");
    failure_.resize(static_cast<size_t>(count));
    call(MPI_Recv(failure_.data(), count, MPI_CHAR, status.MPI_SOURCE, kAbort, comm_, MPI_STATUS_IGNORE), "MPI_Recv");
  }

  const MPI_Comm comm_;  // never freed: that may wait for ranks that are lost
  const double timeout_;
  std::string failure_;  // why every exchange ends; empty: it does not
  std::string reason_;   // what abort told the others
};

}  // namespace
}  // namespace octet

extern "C" octet::Communicator* octet_mpi_communicator(int32_t version, const octet::Mesh& mesh, double timeout,
                                                       std::string& error) {
  if (version != octet::kMpiPlugInVersion) return nullptr;
  try {
    const std::lock_guard lock(octet::g_mutex);
    octet::start();
    MPI_Comm comm = MPI_COMM_NULL;
    int rank = 0, ranks = 0;
    octet::call(MPI_Comm_size(MPI_COMM_WORLD, &ranks), "MPI_Comm_size");
    octet::check(ranks == mesh.ranks(), octet::ErrorCode::kInvalidArgument,
                 "MPI has {} ranks, the settings want {}: start the program with mpirun -n {}", ranks, mesh.ranks(),
                 mesh.ranks());
    octet::call(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
    octet::call(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    octet::call(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
    return new octet::MpiRank(mesh, rank, comm, timeout);
  } catch (const octet::Error& failure) {
    error = failure.message();
    return nullptr;
  }
}
