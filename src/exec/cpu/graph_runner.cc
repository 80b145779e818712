// Binding of a planned graph to kernels and addresses, and the loop that runs it.
#include "exec/cpu/graph_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "exec/cpu/collectives.h"
#include "ir/facts.h"

namespace octet::cpu {
namespace {

using Clock = std::chrono::steady_clock;
}  // namespace

GraphRunner::GraphRunner(const Program& program, const Graph& graph, const GraphPlan& plan, PlanMemory memory,
                         std::span<std::byte> workspace, Communicator* ranks)
    : BoundGraph(program, graph, plan, std::move(memory)) {
  bind_nodes([&](const Node& node, Step& step) {
    step.args.workspace = workspace;
    if (op_facts(node.op).collective) {
      step.row = "exchange";
      step.kernel = bind_collective(graph, node, *ranks);
      return;
    }
    SelectedKernel row = select_kernel(graph, node);
    step.row = row.name;
    step.kernel = std::move(row.run);
  });
}

void GraphRunner::run() { profiling_ ? run_steps<true>() : run_steps<false>(); }

template <bool kProfiling>
void GraphRunner::run_steps() {
  const auto now = [] { return kProfiling ? Clock::now() : Clock::time_point(); };
  const auto count_time = [](StepTime& time, Clock::time_point begin, Clock::time_point end) {
    time.seconds += std::chrono::duration<double>(end - begin).count();
    ++time.calls;
  };
  const auto begin = now();
  const size_t count = steps_.size();
  size_t i = 0;
  try {
    for (; i < count; ++i) {
      const auto before = now();
      steps_[i].kernel(steps_[i].args);
      if constexpr (kProfiling) count_time(times_[i], before, now());
    }
  } catch (...) {
    rethrow_with_node(i);
  }
  const auto before_copies = now();
  for (const StateCopy& copy : copies_) std::memcpy(copy.to, copy.from, copy.bytes);
  if constexpr (!kProfiling) return;
  const auto end = now();
  count_time(copy_time_, before_copies, end);
  count_time(total_time_, begin, end);
}

std::span<std::byte> GraphRunner::input(const std::string& name) const {
  const size_t i = find_input(graph_, plan_, name);
  return {memory_.inputs[i], static_cast<size_t>(graph_.node(plan_.inputs[i]).results[0].bytes())};
}

std::span<const std::byte> GraphRunner::output(const std::string& name) const {
  const Value value = graph_.output(name);
  return {address(value), static_cast<size_t>(graph_.type(value).bytes())};
}

void GraphRunner::set_profiling(bool on) {
  profiling_ = on;
  if (!on) return;
  std::ranges::fill(times_, StepTime{});
  copy_time_ = total_time_ = {};
}

void GraphRunner::append_profile(std::vector<NodeTime>& times) const {
  if (total_time_.calls == 0) return;
  double inside = copy_time_.seconds;
  append_steps(times);
  for (const StepTime& step : times_) inside += step.seconds;
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
