// One graph of a plan, bound: a flat array of steps (exec/graph_binding.h) that run() walks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "exec/graph_binding.h"
#include "kernels/cpu/kernel.h"

namespace octet::cpu {

class GraphRunner : private BoundGraph<Tensor, KernelArgs, BoundKernel> {
 public:
  GraphRunner(const Program& program, const Graph& graph, const GraphPlan& plan, PlanMemory memory,
              std::span<std::byte> workspace, Communicator* ranks);

  void run();
  std::span<std::byte> input(const std::string& name) const;
  std::span<const std::byte> output(const std::string& name) const;

  void set_profiling(bool on);
  void append_profile(std::vector<NodeTime>& times) const;

 private:
  template <bool kProfiling>
  void run_steps();

  StepTime copy_time_;
};

}  // namespace octet::cpu
