// Launches that overlap with the kernel before (programmatic dependent launch): the next kernel's blocks take their
// places while this one still runs, and start the moment it has ended.
//
// What a kernel launched by launch_overlapped owes the others:
//   - Every thread that touches memory calls griddep_wait() first, on every path: before it, the kernel in front
//     may be running, may not have written what is read here, and may still read what is written here (buffers of the
//     arena and the workspace are shared by many values). Only what no kernel of a step writes, the weights and the
//     graph's inputs, may be read ahead.
//   - It returns when everything before it has ended, because each of its threads waited. So waiting for one kernel
//     waits for all, however many have begun ahead of their time.
//   - griddep_launch_dependents() is called right after the wait, so that at most one kernel waits behind a running
//   one: each that
//     waits holds places on the multiprocessors, and a row of them would starve the one that works. gemv alone calls
//     it first, because what follows it is small. A gemv itself must not begin beside a working kernel: its blocks
//     would take what places are left, unevenly, and the fullest multiprocessor sets its time. Without
//     griddep_launch_dependents() the next kernel begins when this one's blocks have returned.
//   - What is read after the wait must not be declared constant (const __restrict__, __ldg, ld.global.nc): the compiler
//     may move such loads up.
// What goes wrong with a launch is found where that of any launch is: the runtime keeps the error, and the executor
// asks for it (cudaGetLastError) after each node and names the node. Kernels launched otherwise, copies and memsets
// depend on everything before them and everything waits for them, as ever. Launches captured into a graph keep these
// dependencies among its kernels; between graphs there is no overlap.
#pragma once

#include <cuda_runtime.h>

#include <mutex>
#include <utility>

namespace octet::cuda {

__device__ __forceinline__ void griddep_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void griddep_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Brings the line of `address` into level 2, whatever is written there meanwhile.
__device__ __forceinline__ void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

struct Grid {
  dim3 blocks, threads;
  size_t shared = 0;   // bytes of dynamic shared memory
  dim3 cluster = {1};  // blocks of one
};

// Beyond 48 KiB, with what the kernel declares itself, shared memory must be asked for.
template <typename Kernel>
void allow_shared(Kernel kernel, size_t bytes) {
  // Plans of one kernel need different sizes, threads at once: never take back what another was given.
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

}  // namespace octet::cuda
