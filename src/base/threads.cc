// parallel_for and parallel_threads over OpenMP. Built with -fsanitize=thread everything runs serially, over the same
// split: libgomp's barriers are invisible to the sanitizer and would drown real races in false ones.
#include "base/threads.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#include "base/error.h"

#if defined(__SANITIZE_THREAD__)
#define OCTET_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define OCTET_THREAD_SANITIZER 1
#endif
#endif

namespace octet {
namespace {

#ifdef OCTET_THREAD_SANITIZER
constexpr bool kSerial = true;
#else
constexpr bool kSerial = false;
#endif

std::atomic<int> configured_threads{0};

// Rethrows the exception of the lowest part, independent of timing.
class FirstException {
 public:
  template <typename Call>
  void guard(int64_t part, const Call& call) noexcept {
    try {
      call();
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!exception_ || part < part_) exception_ = std::current_exception(), part_ = part;
    }
  }
  void rethrow() {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr exception_;
  int64_t part_ = 0;
};

}  // namespace

void set_thread_count(int count) {
  check(count >= 0 && count <= 4096, ErrorCode::kInvalidArgument, "threads: {} is outside 0 (all cores) .. 4096",
        count);
  configured_threads = count;
}

int thread_count() {
  static const int machine_threads = std::max(1, omp_get_max_threads());
  int count = configured_threads;
  return count > 0 ? count : machine_threads;
}

void parallel_for(int64_t count, int64_t grain, FunctionRef<void(int64_t begin, int64_t end)> body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t parts = std::clamp<int64_t>(count / grain, 1, thread_count());
  if (parts == 1) return body(0, count);
  const int64_t length = count / parts, longer = count % parts;  // the first `longer` parts take one element more
  FirstException first;
  auto run_part = [&](int64_t part) {
    int64_t begin = part * length + std::min(part, longer);
    first.guard(part, [&] { body(begin, begin + length + (part < longer)); });
  };
  if (kSerial || omp_in_parallel()) {
    for (int64_t part = 0; part < parts; ++part) run_part(part);
  } else {
#pragma omp parallel num_threads(static_cast <int>(parts))
    for (int64_t part = omp_get_thread_num(); part < parts; part += omp_get_num_threads()) run_part(part);
  }
  first.rethrow();
}

void release_threads() { omp_pause_resource(omp_pause_soft, omp_get_initial_device()); }

void parallel_threads(FunctionRef<void(int thread, int threads)> body) {
  const int threads = thread_count();
  if (kSerial || threads == 1 || omp_in_parallel()) return body(0, 1);
  FirstException first;
#pragma omp parallel num_threads(threads)
  {
    int thread = omp_get_thread_num();
    first.guard(thread, [&] { body(thread, omp_get_num_threads()); });
  }
  first.rethrow();
}

}  // namespace octet
