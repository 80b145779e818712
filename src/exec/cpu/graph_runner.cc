// Binding of a planned graph to kernels and addresses, and the loop that runs it.
#include "exec/cpu/graph_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "ir/facts.h"

namespace octet::cpu {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

GraphRunner::GraphRunner(const Program& program, const Graph& graph, const GraphPlan& plan, PlanMemory memory,
                         std::span<std::byte> workspace)
    : graph_(graph), plan_(plan), memory_(std::move(memory)), workspace_(workspace) {
  check(plan.buffers.size() == static_cast<size_t>(graph.size()), ErrorCode::kInternal,
        "graph '{}' has {} nodes, its plan {}", graph.name(), graph.size(), plan.buffers.size());
  steps_.reserve(static_cast<size_t>(graph.size()));
  for (int32_t i = 0; i < graph.size(); ++i) bind_node(NodeId{i});
  copies_ = state_copies(program, graph, plan, memory_);
  times_.resize(steps_.size());
}

void GraphRunner::bind_node(NodeId id) {
  const Node& node = graph_.node(id);
  if (is_buffer_leaf(node.op)) return;
  auto tensors = bind_operands<Tensor>(graph_, id, plan_, memory_);
  if (tensors == nullptr) return;
  const KernelRow& row = select_kernel(graph_, node);
  Step step{.kernel = {}, .args = {}, .node = id, .row = row.name};
  try {
    step.kernel = row.bind(graph_, node);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}: {}", describe(graph_, id), row.name, error.message()));
  }
  step.args.in = {tensors.get(), node.inputs.size()};
  step.args.out = {tensors.get() + node.inputs.size(), node.results.size()};
  step.args.workspace = workspace_;
  tensors_.push_back(std::move(tensors));
  steps_.push_back(std::move(step));
}

void GraphRunner::run() {
  if (profiling_) return run_profiled();
  const size_t count = steps_.size();
  size_t i = 0;
  try {
    for (; i < count; ++i) steps_[i].kernel(steps_[i].args);
  } catch (...) {
    rethrow_with_node(i);
  }
  for (const StateCopy& copy : copies_) std::memcpy(copy.to, copy.from, copy.bytes);
}

void GraphRunner::run_profiled() {
  const auto begin = Clock::now();
  const size_t count = steps_.size();
  size_t i = 0;
  try {
    for (; i < count; ++i) {
      const auto before = Clock::now();
      steps_[i].kernel(steps_[i].args);
      times_[i].seconds += seconds_between(before, Clock::now());
      ++times_[i].calls;
    }
  } catch (...) {
    rethrow_with_node(i);
  }
  const auto before_copies = Clock::now();
  for (const StateCopy& copy : copies_) std::memcpy(copy.to, copy.from, copy.bytes);
  const auto end = Clock::now();
  copy_time_.seconds += seconds_between(before_copies, end);
  ++copy_time_.calls;
  total_time_.seconds += seconds_between(begin, end);
  ++total_time_.calls;
}

void GraphRunner::rethrow_with_node(size_t step) const {
  const Step& failed = steps_[step];
  const std::string where =
      fmt::format("{} of graph '{}', kernel {}", describe(graph_, failed.node), graph_.name(), failed.row);
  try {
    throw;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", where, error.message()));
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kInternal, fmt::format("{}: {}", where, error.what()));
  }
}

std::span<std::byte> GraphRunner::input(const std::string& name) const {
  const size_t i = find_input(graph_, plan_, name);
  return {memory_.inputs[i], static_cast<size_t>(graph_.node(plan_.inputs[i]).results[0].bytes())};
}

std::span<const std::byte> GraphRunner::output(const std::string& name) const {
  const Value value = graph_.output(name);
  const std::byte* data =
      memory_.address(plan_.buffers[static_cast<size_t>(index(value.node))][static_cast<size_t>(value.result)]);
  return {data, static_cast<size_t>(graph_.type(value).bytes())};
}

void GraphRunner::set_profiling(bool on) {
  profiling_ = on;
  if (!on) return;
  std::fill(times_.begin(), times_.end(), StepTime{});
  copy_time_ = total_time_ = {};
}

void GraphRunner::append_profile(std::vector<NodeTime>& times) const {
  if (total_time_.calls == 0) return;
  double inside = copy_time_.seconds;
  for (size_t i = 0; i < steps_.size(); ++i) {
    times.push_back(node_time(graph_, steps_[i].node, steps_[i].row, times_[i].calls, times_[i].seconds));
    inside += times_[i].seconds;
  }
  if (!copies_.empty()) {
    double bytes = 0;
    for (const StateCopy& copy : copies_) bytes += 2.0 * static_cast<double>(copy.bytes);
    times.push_back({.graph = graph_.name(),
                     .name = "(state copies)",
                     .op = "copy",
                     .kernel = "memcpy",
                     .calls = copy_time_.calls,
                     .seconds = copy_time_.seconds,
                     .bytes = bytes * static_cast<double>(copy_time_.calls)});
  }
  times.push_back({.graph = graph_.name(),
                   .name = "(overhead)",
                   .op = "",
                   .kernel = "",
                   .calls = total_time_.calls,
                   .seconds = std::max(0.0, total_time_.seconds - inside)});
}

}  // namespace octet::cpu
