// Programmatic dependent launches (PDL): the next kernel's blocks become resident while this one still runs, and go on
// the moment it has ended.
//
// Rules for a kernel launched by launch_overlapped:
//   - Every thread that touches memory calls griddep_wait() first, on every path: before it, the previous kernel may
//     still run, may not have written what is read here, and may still read what is written here (buffers of the
//     arena and the workspace are shared by many values). Only what no kernel of a step writes, the weights and the
//     graph's inputs, may be read ahead.
//   - It returns when everything before it has ended, because each of its threads waited. So waiting for one kernel
//     waits for all, however many have started early.
//   - griddep_launch_dependents() is called right after the wait, so that at most one kernel waits behind a running
//     one: a waiting kernel occupies SMs, and several would starve the running one. Only gemv calls it first, because
//     what follows it is small. A gemv itself must not become resident next to a running kernel: its blocks would be
//     spread over the SMs unevenly, and the SM with the most blocks sets its time. Without
//     griddep_launch_dependents() the next kernel begins when this one's blocks have returned.
//   - griddep_begin(next_reads_ahead) is both, for a kernel of few blocks before an int4 product: the product becomes
//     resident while the one before these blocks still runs, and fills its shared memory with weights. A product calls
//     griddep_launch_dependents() after its own wait, or the kernels of a whole step would pile up.
//   - What is read after the wait must not be declared constant (const __restrict__, __ldg, ld.global.nc): the compiler
//     may move such loads up.
// A failed launch is found as any other: the executor calls cudaGetLastError after each node and names the node.
// Kernels launched otherwise, copies and memsets keep the full order of the stream. Launches captured into a graph keep
// these dependencies among its kernels; between graphs there is no overlap.
#pragma once

#include <cuda_runtime.h>

#include <mutex>
#include <utility>

namespace octet::cuda {

__device__ __forceinline__ void griddep_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void griddep_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void griddep_begin(bool next_reads_ahead) {
  constexpr unsigned kFewBlocks = 16;
  const bool early = next_reads_ahead && gridDim.x <= kFewBlocks;
  if (early) griddep_launch_dependents();
  griddep_wait();
  if (!early) griddep_launch_dependents();
}
// Prefetches the line of `address` into L2, where later writes keep it coherent.
__device__ __forceinline__ void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

struct Grid {
  dim3 blocks, threads;
  size_t shared = 0;   // bytes of dynamic shared memory
  dim3 cluster = {1};  // blocks of one
};

// Beyond 48 KiB, with what the kernel declares itself (at most 16 KiB), shared memory must be asked for. The launchers
// below do so.
template <typename Kernel>
void allow_shared(Kernel kernel, size_t bytes) {
  if (bytes <= 32 << 10) return;
  // Plans of one kernel need different sizes, from several threads: the limit is only raised.
  static std::mutex asking;
  const std::lock_guard lock(asking);
  cudaFuncAttributes allowed;
  if (cudaFuncGetAttributes(&allowed, kernel) == cudaSuccess &&
      allowed.maxDynamicSharedSizeBytes >= static_cast<int>(bytes)) {
    return;
  }
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

template <typename... Parameters, typename... Arguments>
void launch_overlapped(void (*kernel)(Parameters...), const Grid& grid, cudaStream_t stream, Arguments&&... arguments) {
  allow_shared(kernel, grid.shared);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {grid.cluster.x, grid.cluster.y, grid.cluster.z};
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks, config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared, config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = grid.cluster.x * grid.cluster.y * grid.cluster.z > 1 ? 2 : 1;
  cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

// In the full order of the stream.
template <typename... Parameters, typename... Arguments>
void launch_ordered(void (*kernel)(Parameters...), const Grid& grid, cudaStream_t stream, Arguments&&... arguments) {
  allow_shared(kernel, grid.shared);
  kernel<<<grid.blocks, grid.threads, grid.shared, stream>>>(std::forward<Arguments>(arguments)...);
}

}  // namespace octet::cuda
