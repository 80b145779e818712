// One graph of a plan, bound: a flat array of steps whose kernels are chosen and whose pointers are resolved.
//
// Binding is the only place that looks at the graph; run() walks the array. Memory belongs to the executor and must
// outlive the runner, as must the plan (tensor types are referred to, not copied).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/executor.h"
#include "exec/graph_binding.h"
#include "kernels/cpu/kernel.h"

namespace octet::cpu {

class GraphRunner {
 public:
  GraphRunner(const Program& program, const Graph& graph, const GraphPlan& plan, PlanMemory memory,
              std::span<std::byte> workspace);

  void run();
  std::span<std::byte> input(const std::string& name) const;
  std::span<const std::byte> output(const std::string& name) const;

  void set_profiling(bool on);
  void append_profile(std::vector<NodeTime>& times) const;

 private:
  struct Step {
    BoundKernel kernel;
    KernelArgs args;
    NodeId node;
    const char* row;  // name of the kernel row
  };
  struct StepTime {
    int64_t calls = 0;
    double seconds = 0;
  };

  void bind_node(NodeId id);
  void run_profiled();
  [[noreturn]] void rethrow_with_node(size_t step) const;

  const Graph& graph_;
  const GraphPlan& plan_;
  PlanMemory memory_;
  std::span<std::byte> workspace_;
  std::vector<Step> steps_;
  std::vector<std::unique_ptr<Tensor[]>> tensors_;  // what steps' spans point into
  std::vector<StateCopy> copies_;
  bool profiling_ = false;
  std::vector<StepTime> times_;  // per step
  StepTime copy_time_, total_time_;
};

}  // namespace octet::cpu
