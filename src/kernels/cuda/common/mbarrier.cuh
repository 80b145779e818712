// Shared memory as instructions take it: addresses, Hopper's barriers (mbarrier), bulk copies from global to shared
// memory (TMA) that arrive on them, and back.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace octet::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// A phase completes when `arrivals` threads have arrived and all announced bytes have been copied.
struct Mbarrier {
  uint64_t state;

  __device__ __forceinline__ uint32_t address() const { return shared_address(&state); }
  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  // An arrival that announces bytes of bulk copies.
  __device__ __forceinline__ void arrive_expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  // An arrival when this thread's cp.async copies so far have completed.
  __device__ __forceinline__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address()) : "memory");
  }
  __device__ __forceinline__ void wait(uint32_t phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(address()),
        "r"(phase)
        : "memory");
  }
};
// After init, before any copy arrives on the barriers.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// `bytes` is a multiple of 16; both addresses are 16-byte aligned.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, uint32_t bytes, Mbarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(barrier.address())
               : "memory");
}

// The tile of a tensor map (tensor_map.h) from (row, column) on, in elements; what does not exist becomes zeros.
__device__ __forceinline__ void load_tile(uint32_t to, const CUtensorMap& map, int row, int column, Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier.address())
      : "memory");
}

// An arrival at the barrier of another CTA of the cluster.
__device__ __forceinline__ void arrive_at(const Mbarrier& barrier, unsigned rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier.address()),
      "r"(rank)
      : "memory");
}
// As load_tile, to the same place of every CTA of the mask, whose barriers it arrives at.
__device__ __forceinline__ void load_tile_to(uint16_t ctas, uint32_t to, const CUtensorMap& map, int row, int column,
                                             const Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier.address()), "h"(ctas)
      : "memory");
}
// As load_tile, of one of group_tiles' matrices.
__device__ __forceinline__ void load_tile(uint32_t to, const CUtensorMap& map, int group, int row, int column,
                                          Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(group), "r"(barrier.address())
      : "memory");
}

// The way back; what does not exist is not written. Writes to the tile are fenced (wgmma::fence_shared) first.
__device__ __forceinline__ void store_tile(uint32_t from, const CUtensorMap& map, int row, int column) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column),
               "r"(row), "r"(from)
               : "memory");
}
__device__ __forceinline__ void store_tile(uint32_t from, const CUtensorMap& map, int group, int row, int column) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(column), "r"(row), "r"(group), "r"(from)
               : "memory");
}
// Added to what is there, of float32; subnormal numbers become zeros.
__device__ __forceinline__ void add_tile(uint32_t from, const CUtensorMap& map, int group, int row, int column) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(column), "r"(row), "r"(group), "r"(from)
               : "memory");
}
// Stores of this thread so far, none too, are a group; all but its last kPending groups have read shared memory.
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace octet::cuda
