// One graph of a plan bound on a device: kernels chosen, pointers resolved, replayed as a CUDA graph.
//
// enqueue() puts a whole run on the stream: inputs from pinned memory, nodes, copies into states, outputs to pinned
// memory. The first run is eager (it loads modules and picks algorithms); the second is captured, and later ones replay
// it: the same kernels in the same order, so the same bits. Collectives have a workspace of their own; async ones run
// on a stream of their own, for which the kernels' stream waits at their joins (profiled or checked node by node: at
// once), and no other collective begins before. finish() waits for the outputs of the last run. The executor has set
// the device before it calls.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "exec/cuda/host_wait.h"
#include "exec/graph_binding.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/kernel.h"

namespace octet::cuda {

class GraphRunner : private BoundGraph<Tensor, KernelArgs, BoundKernel> {
 public:
  struct Staging {  // pinned host memory, laid out as the device's
    std::byte* host_inputs = nullptr;
    std::byte* device_inputs = nullptr;
    int64_t input_bytes = 0;
    std::byte* host_outputs = nullptr;
  };

  GraphRunner(DeviceContext& context, const HostWait& wait, const Program& program, const Graph& graph,
              const GraphPlan& plan, PlanMemory memory, Staging staging, const CudaOptions& options);
  ~GraphRunner();
  GraphRunner(const GraphRunner&) = delete;

  int64_t workspace_bytes() const { return workspace_needed_; }
  int64_t ranks_workspace_bytes() const { return ranks_workspace_needed_; }
  void set_workspaces(std::span<std::byte> kernels, std::span<std::byte> ranks);

  bool replays() const { return replay_ != nullptr; }  // else launches may make the host wait for other streams
  void enqueue();
  void drop_capture();     // under way or not; the next run captures again
  void finish();           // until outputs and states of the last run are there
  void wait_for_inputs();  // until the last run has read the staged inputs

  std::span<std::byte> input(const std::string& name) const;                                                // host
  std::span<const std::byte> output(const std::string& name) const { return staged(graph_.output(name)); }  // host

  void set_profiling(bool on);
  void append_profile(std::vector<NodeTime>& times) const;

  static int64_t output_bytes(const Graph& graph);  // of the staging buffer

 private:
  void launch_inputs();
  void launch_all(bool capturing);
  void launch_copies();
  void launch_step(size_t step);
  void make_joins();
  void join(size_t before_step);
  void mark(size_t i);
  void read_marks();
  std::span<std::byte> staged(Value output) const;  // host
  void capture();

  DeviceContext& context_;
  const HostWait& wait_;
  Staging staging_;
  CudaOptions options_;
  int64_t workspace_needed_ = 0, ranks_workspace_needed_ = 0;
  cudaGraphExec_t replay_ = nullptr;
  cudaEvent_t inputs_read_ = nullptr, done_ = nullptr;
  int64_t runs_ = 0;
  std::vector<cudaEvent_t> marks_;
  std::vector<cudaEvent_t> arrived_;        // by step: when an async collective has ended; null for others
  std::vector<std::vector<size_t>> joins_;  // by step, and behind the last one: the async ones it waits for
};

}  // namespace octet::cuda
