#include "exec/cuda/host_wait.h"

#include <chrono>
#include <thread>

#include "base/error.h"

namespace octet::cuda {

cudaError_t HostWait::ask(FunctionRef<cudaError_t()> query) const {
  using Clock = std::chrono::steady_clock;
  constexpr auto kBetweenChecks = std::chrono::milliseconds(5);
  check(!ranks_->aborted(), ErrorCode::kIo, "rank {} was aborted: what its graphs gave is no result", ranks_->rank());
  auto checked = Clock::now();
  cudaError_t status = query();
  for (; status == cudaErrorNotReady; status = query()) {
    cudaGetLastError();  // a query leaves this one behind, and launches are checked by it
    if (Clock::now() - checked >= kBetweenChecks) {
      try {
        ranks_->check();
      } catch (...) {
        drop_graphs_();
        ranks_->abort();
        throw;
      }
      checked = Clock::now();
    }
    std::this_thread::yield();
  }
  return status;
}

}  // namespace octet::cuda
