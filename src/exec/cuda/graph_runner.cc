// Binding of a planned graph to CUDA kernels, its eager run, capture and replay.
#include "exec/cuda/graph_runner.h"

#include <algorithm>

#include "base/error.h"
#include "ir/plan.h"

namespace octet::cuda {

GraphRunner::GraphRunner(DeviceContext& context, const HostWait& wait, const Program& program, const Graph& graph,
                         const GraphPlan& plan, PlanMemory memory, Staging staging, const CudaOptions& options)
    : BoundGraph(program, graph, plan, std::move(memory)),
      context_(context),
      wait_(wait),
      staging_(staging),
      options_(options) {
  bind_nodes([&](const Node& node, Step& step) {
    SelectedKernel selected = select_kernel(context, graph, node);
    int64_t& workspace = exchanges(node) ? ranks_workspace_needed_ : workspace_needed_;
    workspace = std::max(workspace, selected.kernel.workspace);
    step.kernel = std::move(selected.kernel);
    step.row = step.kernel.label(selected.entry->name, step.args);
    step.args.stream = context.stream(is_async(node) ? StreamRole::kRanks : StreamRole::kCompute);
  });
  for (size_t i = 1; i < steps_.size(); ++i) steps_[i - 1].args.next_reads_ahead = steps_[i].kernel.reads_ahead;
  make_joins();
  check_cuda(cudaEventCreateWithFlags(&inputs_read_, cudaEventDisableTiming), "making an event");
  check_cuda(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "making an event");
}

GraphRunner::~GraphRunner() {
  drop_capture();
  for (cudaEvent_t event : marks_) cudaEventDestroy(event);
  for (cudaEvent_t event : arrived_)
    if (event != nullptr) cudaEventDestroy(event);
  for (cudaEvent_t event : {inputs_read_, done_})
    if (event != nullptr) cudaEventDestroy(event);
}

void GraphRunner::drop_capture() {
  if (replay_ != nullptr) cudaGraphExecDestroy(std::exchange(replay_, nullptr));
}

void GraphRunner::set_workspaces(std::span<std::byte> kernels, std::span<std::byte> ranks) {
  for (Step& step : steps_) step.args.workspace = exchanges(graph_.node(step.node)) ? ranks : kernels;
}

void GraphRunner::make_joins() {
  arrived_.resize(steps_.size());
  joins_.resize(steps_.size() + 1);
  const std::vector<int32_t> joins = joins_of(graph_);
  for (size_t i = 0; i < steps_.size(); ++i) {
    const int32_t at = joins[slot(steps_[i].node)];
    if (at < 0) continue;
    check_cuda(cudaEventCreateWithFlags(&arrived_[i], cudaEventDisableTiming), "making an event");
    const auto before = std::ranges::lower_bound(steps_, at, {}, [](const Step& step) { return index(step.node); });
    joins_[static_cast<size_t>(before - steps_.begin())].push_back(i);
  }
}

// The kernels' stream waits for the collectives whose results come next.
void GraphRunner::join(size_t before_step) {
  for (const size_t step : joins_[before_step])
    check_cuda(cudaStreamWaitEvent(context_.stream(), arrived_[step], 0), "waiting for a collective");
}

void GraphRunner::launch_inputs() {
  if (staging_.input_bytes == 0) return;
  check_cuda(cudaMemcpyAsync(staging_.device_inputs, staging_.host_inputs, static_cast<size_t>(staging_.input_bytes),
                             cudaMemcpyHostToDevice, context_.stream()),
             "copying inputs to the device");
}

void GraphRunner::launch_step(size_t step) {
  const cudaStream_t stream = steps_[step].args.stream;
  const bool beside = stream != context_.stream(), in_turn = profiling_ || options_.check_every_node;
  join(step);
  if (beside) context_.order(StreamRole::kCompute, StreamRole::kRanks);
  steps_[step].kernel(steps_[step].args);
  check_cuda(cudaGetLastError(), "launching a kernel");
  if (arrived_[step] != nullptr) check_cuda(cudaEventRecord(arrived_[step], stream), "recording an event");
  if (beside && in_turn) context_.order(StreamRole::kRanks, StreamRole::kCompute);
  if (options_.check_every_node) check_cuda(wait_.stream(context_.stream()), "running a kernel");
}

// Profiled, with an event after each node; the spaces between kernels of an eager run count as the node's own time.
void GraphRunner::launch_all(bool capturing) {
  size_t i = 0;
  try {
    if (profiling_) mark(0);
    for (; i < steps_.size(); ++i) {
      launch_step(i);
      if (profiling_) mark(i + 1);
      // Launches behind a collective may make the host wait for it, unasked: they load modules, or the queue is full.
      if (wait_.asks() && !capturing && !profiling_ && exchanges(graph_.node(steps_[i].node)))
        check_cuda(wait_.stream(steps_[i].args.stream), "running a collective");
    }
    join(steps_.size());
  } catch (...) {
    rethrow_with_node(i);
  }
  launch_copies();
}

void GraphRunner::launch_copies() {
  cudaStream_t stream = context_.stream();
  for (const StateCopy& copy : copies_) {
    check_cuda(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDeviceToDevice, stream), "updating a state");
  }
  for (const NamedValue& out : graph_.outputs()) {
    const std::span<std::byte> to = staged(out.value);
    check_cuda(cudaMemcpyAsync(to.data(), address(out.value), to.size(), cudaMemcpyDeviceToHost, stream),
               "copying outputs from the device");
  }
}

void GraphRunner::capture() {
  cudaStream_t stream = context_.stream();
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning to capture a graph");
  try {
    launch_all(true);
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &graph), "capturing a graph");
  const cudaError_t status = cudaGraphInstantiate(&replay_, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(status, "instantiating a graph");
}

void GraphRunner::enqueue() {
  cudaStream_t stream = context_.stream();
  launch_inputs();
  check_cuda(cudaEventRecord(inputs_read_, stream), "recording an event");
  const bool eager = options_.eager || options_.check_every_node || profiling_ || runs_ == 0;
  // Kernels launched one by one read weights ahead of what is before them (common/overlap.cuh), which must not be the
  // graph that writes the weights; replayed graphs begin when all before them has ended.
  if (eager) {
    check_cuda(wait_.stream(stream), "waiting for the graph before");
    launch_all(false);
    if (profiling_) read_marks();
  } else {
    if (replay_ == nullptr) {
      if (wait_.asks()) check_cuda(wait_.stream(stream), "waiting for the graph before");  // as launches do, above
      capture();
    }
    check_cuda(cudaGraphLaunch(replay_, stream), "launching a graph");
  }
  check_cuda(cudaEventRecord(done_, stream), "recording an event");
  ++runs_;
}

void GraphRunner::finish() {
  const cudaError_t status = wait_.event(done_);
  if (status == cudaSuccess) [[likely]]
    return;
  fail(ErrorCode::kInternal,
       "CUDA: graph '{}' failed on {} in run {}: {} ({}); the device's state is lost, files are not: go on from the "
       "last "
       "checkpoint (octet train with train.check_nodes=true tells which node it is)",
       graph_.name(), context_.device_name(), runs_, cudaGetErrorName(status), cudaGetErrorString(status));
}

void GraphRunner::wait_for_inputs() { check_cuda(wait_.event(inputs_read_), "waiting for staged inputs"); }

std::span<std::byte> GraphRunner::input(const std::string& name) const {
  const size_t i = find_input(graph_, plan_, name);
  return {staging_.host_inputs + (memory_.inputs[i] - staging_.device_inputs),
          static_cast<size_t>(graph_.node(plan_.inputs[i]).results[0].bytes())};
}

std::span<std::byte> GraphRunner::staged(Value output) const {
  int64_t offset = 0;
  for (const NamedValue& out : graph_.outputs()) {
    const auto bytes = graph_.type(out.value).bytes();
    if (out.value == output) return {staging_.host_outputs + offset, static_cast<size_t>(bytes)};
    offset += round_up(bytes, 64);
  }
  return {};
}

int64_t GraphRunner::output_bytes(const Graph& graph) {
  int64_t bytes = 0;
  for (const NamedValue& out : graph.outputs()) bytes += round_up(graph.type(out.value).bytes(), 64);
  return bytes;
}

void GraphRunner::set_profiling(bool on) {
  profiling_ = on;
  if (!on) return;
  std::fill(times_.begin(), times_.end(), StepTime{});
  total_time_ = {};
  while (marks_.size() < steps_.size() + 1) {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreate(&event), "making an event");
    marks_.push_back(event);
  }
}

void GraphRunner::mark(size_t i) { check_cuda(cudaEventRecord(marks_[i], context_.stream()), "recording an event"); }

void GraphRunner::read_marks() {
  check_cuda(wait_.stream(context_.stream()), "running a graph");
  const auto add = [&](StepTime& time, cudaEvent_t begin, cudaEvent_t end) {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "reading an event");
    time.seconds += 1e-3 * static_cast<double>(milliseconds);
    ++time.calls;
  };
  for (size_t i = 0; i < steps_.size(); ++i) add(times_[i], marks_[i], marks_[i + 1]);
  add(total_time_, marks_[0], marks_[steps_.size()]);
}

void GraphRunner::append_profile(std::vector<NodeTime>& times) const {
  if (total_time_.calls > 0) append_steps(times);
}

}  // namespace octet::cuda
