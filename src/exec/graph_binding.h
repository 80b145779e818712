// What executors share when they bind a planned graph to addresses: which nodes are work, and the copies into states.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/integers.h"
#include "exec/executor.h"
#include "ir/facts.h"
#include "ir/plan.h"

namespace octet {

// Where the three kinds of buffers live, host or device.
struct PlanMemory {
  std::byte* arena = nullptr;
  std::vector<std::byte*> states;  // by index in the state table
  std::vector<std::byte*> inputs;  // of this graph

  std::byte* address(const BufferRef& ref) const;
};

// Inputs, then results, of a node as a backend's Tensor {data, type}: data is null where an input is absent or a result
// unwanted. Null when there is nothing to run: no result is wanted, or a view shares its input's bytes.
template <typename Tensor>
std::unique_ptr<Tensor[]> bind_operands(const Graph& graph, NodeId id, const GraphPlan& plan,
                                        const PlanMemory& memory) {
  const Node& node = graph.node(id);
  const auto& refs = plan.buffers[slot(id)];
  auto tensors = std::make_unique<Tensor[]>(node.inputs.size() + node.results.size());
  bool used = false;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const Value value = node.inputs[i];
    if (!value.exists()) continue;
    const BufferRef& ref = plan.buffers[slot(value.node)][static_cast<size_t>(value.result)];
    tensors[i] = {memory.address(ref), &graph.type(value)};
    check(tensors[i].data != nullptr, ErrorCode::kInternal, "{}: input {} has no buffer in the plan",
          describe(graph, id), i);
  }
  Tensor* results = tensors.get() + node.inputs.size();
  for (size_t i = 0; i < node.results.size(); ++i) {
    results[i] = {i < refs.size() ? memory.address(refs[i]) : nullptr, &node.results[i]};
    used = used || results[i].data != nullptr;
  }
  if (!used || (op_facts(node.op).view && results[0].data == tensors[0].data)) return nullptr;
  return tensors;
}

// An update whose value was not computed in the state's own buffer.
struct StateCopy {
  std::byte* to;
  const std::byte* from;
  size_t bytes;
};
// The graph's copies, ordered so that one that reads a state runs before the one that overwrites it.
std::vector<StateCopy> state_copies(const Program& program, const Graph& graph, const GraphPlan& plan,
                                    const PlanMemory& memory);

// Index of the input node `name` in plan.inputs; throws kNotFound with the names there are.
size_t find_input(const Graph& graph, const GraphPlan& plan, const std::string& name);

// The profile's line of a node whose kernel took so long in so many calls.
NodeTime node_time(const Graph& graph, NodeId id, const std::string& kernel, int64_t calls, double seconds);

// Offsets of states and of a graph's inputs in one block each, every one aligned; `bytes` gets the block's size.
std::vector<int64_t> state_offsets(const Program& program, int64_t alignment, int64_t& bytes);

// What the runners of one graph share, whatever the device: an array of steps whose kernels are chosen and whose
// pointers are resolved, and what is known of each step afterwards. Binding is the only place that looks at the graph.

// Tensor, KernelArgs and BoundKernel are the device's (kernel.h). Memory and plan must outlive it.
template <typename Tensor, typename KernelArgs, typename BoundKernel>
class BoundGraph {
 protected:
  struct Step {
    BoundKernel kernel;
    KernelArgs args;
    NodeId node;
    std::string row;  // whose kernel it is, with the variant chosen
  };
  struct StepTime {
    int64_t calls = 0;
    double seconds = 0;
  };

  BoundGraph(const Program& program, const Graph& graph, const GraphPlan& plan, PlanMemory memory)
      : graph_(graph), plan_(plan), memory_(std::move(memory)) {
    check(plan.buffers.size() == static_cast<size_t>(graph.size()), ErrorCode::kInternal,
          "graph '{}' has {} nodes, its plan {}", graph.name(), graph.size(), plan.buffers.size());
    copies_ = state_copies(program, graph, plan, memory_);
  }

  // `bind(node, step)` sets the row, then the kernel and what its arguments have beside tensors.
  template <typename Bind>
  void bind_nodes(const Bind& bind) {
    steps_.reserve(static_cast<size_t>(graph_.size()));
    for (int32_t i = 0; i < graph_.size(); ++i) bind_node(NodeId{i}, bind);
    times_.resize(steps_.size());
  }

  // To be called while an exception is handled.
  [[noreturn]] void rethrow_with_node(size_t step) const {
    const std::string where = step < steps_.size()
                                  ? fmt::format("{} of graph '{}', kernel {}", describe(graph_, steps_[step].node),
                                                graph_.name(), steps_[step].row)
                                  : fmt::format("graph '{}'", graph_.name());
    try {
      throw;
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", where, error.message()));
    } catch (const std::exception& error) {
      throw Error(ErrorCode::kInternal, fmt::format("{}: {}", where, error.what()));
    }
  }

  void append_steps(std::vector<NodeTime>& times) const {
    for (size_t i = 0; i < steps_.size(); ++i)
      times.push_back(node_time(graph_, steps_[i].node, steps_[i].row, times_[i].calls, times_[i].seconds));
  }

  const std::byte* address(Value value) const {
    return memory_.address(plan_.buffers[slot(value.node)][static_cast<size_t>(value.result)]);
  }

  const Graph& graph_;
  const GraphPlan& plan_;
  PlanMemory memory_;
  std::vector<Step> steps_;
  std::vector<StateCopy> copies_;
  bool profiling_ = false;
  std::vector<StepTime> times_;  // per step
  StepTime total_time_;

 private:
  template <typename Bind>
  void bind_node(NodeId id, const Bind& bind) {
    const Node& node = graph_.node(id);
    if (is_named_leaf(node.op)) return;
    auto tensors = bind_operands<Tensor>(graph_, id, plan_, memory_);
    if (tensors == nullptr) return;
    Step step{.kernel = {}, .args = {}, .node = id};
    step.args.in = {tensors.get(), node.inputs.size()};
    step.args.out = {tensors.get() + node.inputs.size(), node.results.size()};
    try {
      bind(node, step);
    } catch (const Error& error) {
      if (step.row.empty()) throw;
      throw Error(error.code(), fmt::format("{}: {}: {}", describe(graph_, id), step.row, error.message()));
    }
    tensors_.push_back(std::move(tensors));
    steps_.push_back(std::move(step));
  }

  std::vector<std::unique_ptr<Tensor[]>> tensors_;  // what steps' spans point into
};

}  // namespace octet
