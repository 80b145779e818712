// CPU parallelism: one pool (OpenMP's, shared with oneDNN) behind two functions. Nested calls run serially.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace octet {

// A callable by reference, for parameters only: unlike std::function it never allocates.
template <typename Signature>
class FunctionRef;
template <typename Result, typename... Args>
class FunctionRef<Result(Args...)> {
 public:
  template <typename Callable>
  requires(!std::same_as<std::remove_cvref_t<Callable>, FunctionRef> &&
           std::is_invocable_r_v<Result, Callable&, Args...>) FunctionRef(Callable&& callable)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Args... args) -> Result {
          return std::invoke(*static_cast<std::remove_reference_t<Callable>*>(object), std::forward<Args>(args)...);
        }) {}
  Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  Result (*call_)(void*, Args...);
};

// Threads used by parallel_for; 0 sets it to the machine's cores. Default: the machine's cores (OMP_NUM_THREADS wins).
void set_thread_count(int count);
int thread_count();

// Calls body(begin, end) on disjoint ranges that cover [0, count), each at least `grain` long where possible. The split
// depends only on (count, grain, thread_count). Exceptions thrown by a body are rethrown here after all finished.
void parallel_for(int64_t count, int64_t grain, FunctionRef<void(int64_t begin, int64_t end)> body);

// Ends the idle threads of the calling thread's pool; its next parallel_for starts others. For a thread that leaves
// computing to another one, which gets a pool of its own: with more threads than cores libgomp stops spinning, and
// every parallel_for waits for threads to wake up.
void release_threads();

// Calls body(thread, threads) once on each of `threads` = thread_count() threads.
void parallel_threads(FunctionRef<void(int thread, int threads)> body);

}  // namespace octet
