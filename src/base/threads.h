// CPU parallelism: one pool (OpenMP's, shared with oneDNN) behind two functions. Nested calls run serially.
#pragma once

#include <cstdint>
#include <functional>

namespace octet {

// Threads used by parallel_for; 0 sets it to the machine's cores. Default: the machine's cores (OMP_NUM_THREADS wins).
void set_thread_count(int count);
int thread_count();

// Calls body(begin, end) on disjoint ranges that cover [0, count), each at least `grain` long where possible. The split
// depends only on (count, grain, thread_count). Exceptions thrown by a body are rethrown here after all finished.
void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

// Calls body(thread, threads) once on each of `threads` = thread_count() threads.
void parallel_threads(const std::function<void(int thread, int threads)>& body);

}  // namespace octet
