// Bulk copies from global to shared memory (Hopper's TMA without a tensor map), one thread asks, and the barrier in
// shared memory that everybody waits on.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/shared_address.cuh"

namespace octet::cuda {

// Completes a phase when one arrival and all its announced bytes have come.
struct BulkBarrier {
  uint64_t state;

  __device__ __forceinline__ void init() {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&state)) : "memory");
  }
  // The arrival, and how many bytes will come.
  __device__ __forceinline__ void expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&state)), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void wait(uint32_t phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(shared_address(&state)),
        "r"(phase)
        : "memory");
  }
};
// After init, before anybody's copy arrives on the barriers.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// `bytes` is a multiple of 16; both addresses are 16-byte aligned.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, uint32_t bytes, BulkBarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(&barrier.state))
               : "memory");
}

}  // namespace octet::cuda
