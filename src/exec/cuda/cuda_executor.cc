// The cuda executor: one arena, one state block, staging for inputs and outputs; a GraphRunner per graph.
//
// run() only enqueues: graphs run one after the other on one stream, and the caller waits when it reads an output or a
// state, or writes an input that the last run has not read yet. The calling thread's device is set at every entry.
#include <cstring>
#include <map>
#include <optional>

#include "base/dtype.h"
#include "base/error.h"
#include "base/log.h"
#include "exec/cuda/device_memory.h"
#include "exec/cuda/graph_runner.h"
#include "exec/cuda/upload.h"
#include "exec/executor.h"

namespace octet {
namespace {

using cuda::check_cuda;
using cuda::Memory;
using cuda::MemoryKind;
using cuda::StreamRole;

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(Plan plan, const CudaOptions& options)
      : plan_(std::move(plan)), context_({.device = options.device, .deterministic = options.deterministic}) {
    guard_.emplace(context_.device());
    alignment_ = std::max<int64_t>(plan_.target.buffer_alignment, 256);
    reject_what_cannot_fit();
    {
      const LoggedTime time("device memory");
      allocate_state();
      arena_ = Memory(MemoryKind::kDevice, plan_.arena_bytes, "the arena");
    }
    const LoggedTime time("kernels bound");
    bind_graphs(options);
    context_.save_libraries();
    guard_.reset();
  }
  ~CudaExecutor() override {
    guard_.emplace(context_.device());
    cudaStreamSynchronize(context_.stream());
  }

  const Program& program() const override { return plan_.program; }

  std::span<std::byte> input(const std::string& graph, const std::string& name) override {
    const cuda::DeviceGuard guard(context_.device());
    cuda::GraphRunner& runner = find(graph);
    runner.wait_for_inputs();
    return runner.input(name);
  }
  void run(const std::string& graph) override {
    const cuda::DeviceGuard guard(context_.device());
    cuda::GraphRunner& runner = find(graph);
    runner.wait_for_inputs();
    runner.enqueue();
  }
  std::span<const std::byte> output(const std::string& graph, const std::string& name) override {
    const cuda::DeviceGuard guard(context_.device());
    cuda::GraphRunner& runner = find(graph);
    runner.finish();
    return runner.output(name);
  }

  void read_state(const std::string& name, std::span<std::byte> bytes) override {
    state(name, 0, bytes.size(), true);
    read_state_part(name, 0, bytes);
  }
  void read_state_part(const std::string& name, int64_t offset, std::span<std::byte> part) override {
    const cuda::DeviceGuard guard(context_.device());
    std::byte* from = state(name, offset, part.size(), false);
    check_cuda(cudaMemcpyAsync(part.data(), from, part.size(), cudaMemcpyDeviceToHost, context_.stream()),
               "reading a state");
    check_cuda(cudaStreamSynchronize(context_.stream()), "reading a state");
  }
  void write_state(const std::string& name, std::span<const std::byte> bytes) override {
    state(name, 0, bytes.size(), true);
    write_state_part(name, 0, bytes);
  }
  void write_state_part(const std::string& name, int64_t offset, std::span<const std::byte> part) override {
    const cuda::DeviceGuard guard(context_.device());
    constexpr size_t kSmall = 1 << 20;  // less is copied before threads have begun
    if (part.size() > kSmall) {
      fill_state_part(name, offset, static_cast<int64_t>(part.size()), 1, [&](int64_t at, std::span<std::byte> to) {
        parallel_for(static_cast<int64_t>(to.size()), 1 << 18, [&](int64_t begin, int64_t end) {
          std::memcpy(to.data() + begin, part.data() + at + begin, static_cast<size_t>(end - begin));
        });
      });
      return;
    }
    std::byte* to = state(name, offset, part.size(), false);
    check_cuda(cudaMemcpyAsync(to, part.data(), part.size(), cudaMemcpyHostToDevice, context_.stream()),
               "writing a state");
    check_cuda(cudaStreamSynchronize(context_.stream()), "writing a state");
  }
  void fill_state_part(const std::string& name, int64_t offset, int64_t bytes, int64_t grain, MakeBytes make) override {
    const cuda::DeviceGuard guard(context_.device());
    std::byte* to = state(name, offset, static_cast<size_t>(bytes), false);
    context_.order(StreamRole::kCompute, StreamRole::kCopy);
    upload_.copy(to, bytes, grain, context_.stream(StreamRole::kCopy), make);
    context_.order(StreamRole::kCopy, StreamRole::kCompute);
  }

  int64_t allocated_bytes() const override {
    return state_memory_.bytes() + arena_.bytes() + device_inputs_.bytes() + workspace_.bytes();
  }
  void set_profiling(bool on) override {
    const cuda::DeviceGuard guard(context_.device());
    for (auto& [name, runner] : runners_) runner->set_profiling(on);
  }
  std::vector<NodeTime> profile() const override {
    std::vector<NodeTime> times;
    for (const auto& [name, runner] : runners_) runner->append_profile(times);
    return times;
  }

 private:
  void reject_what_cannot_fit() const {
    const int64_t available = cuda::free_device_bytes(), wanted = plan_.total_bytes();
    check(wanted <= available, ErrorCode::kOutOfMemory,
          "the plan needs {} bytes ({} arena, {} state, {} inputs) and {} has {} free: {} bytes are missing; use a "
          "smaller micro_batch, recompute=selective or full, or a smaller model",
          wanted, plan_.arena_bytes, plan_.state_bytes, plan_.input_bytes, context_.device_name(), available,
          wanted - available);
  }

  void allocate_state() {
    int64_t bytes = 0;
    const std::vector<int64_t> offsets = state_offsets(plan_.program, alignment_, bytes);
    state_memory_ = Memory(MemoryKind::kDevice, bytes, "the state");
    if (bytes > 0) {  // on the stream of the writes below: another stream's could come after them
      check_cuda(cudaMemsetAsync(state_memory_.data(), 0, static_cast<size_t>(bytes), context_.stream()),
                 "clearing the state");
    }
    for (size_t i = 0; i < offsets.size(); ++i) {
      const StateEntry& entry = plan_.program.states()[i];
      states_.push_back(state_memory_.data() + offsets[i]);
      state_index_[entry.name] = i;
      if (entry.initial == 0) continue;
      std::vector<std::byte> host(static_cast<size_t>(entry.type.bytes()));
      for (int64_t j = 0; j < entry.type.shape.elements(); ++j)
        store_element(entry.type.dtype, host.data(), j, entry.initial);
      write_state(entry.name, host);
    }
  }

  void bind_graphs(const CudaOptions& options) {
    int64_t input_bytes = 0, output_bytes = 0;
    for (const auto& [name, graph_plan] : plan_.graphs) {
      const Graph& graph = plan_.program.graph(name);
      for (NodeId id : graph_plan.inputs) input_bytes += align_up(graph.node(id).results[0].bytes(), alignment_);
      output_bytes += align_up(cuda::GraphRunner::output_bytes(graph), alignment_);
    }
    device_inputs_ = Memory(MemoryKind::kDevice, input_bytes, "the inputs");
    host_inputs_ = Memory(MemoryKind::kPinned, input_bytes, "staging of inputs");
    host_outputs_ = Memory(MemoryKind::kPinned, output_bytes, "staging of outputs");
    if (input_bytes > 0) std::memset(host_inputs_.data(), 0, static_cast<size_t>(input_bytes));
    int64_t next_input = 0, next_output = 0;
    for (const auto& [name, graph_plan] : plan_.graphs) {
      const Graph& graph = plan_.program.graph(name);
      PlanMemory memory{.arena = arena_.data(), .states = states_, .inputs = {}};
      cuda::GraphRunner::Staging staging{.host_inputs = host_inputs_.data() + next_input,
                                         .device_inputs = device_inputs_.data() + next_input,
                                         .host_outputs = host_outputs_.data() + next_output};
      for (NodeId id : graph_plan.inputs) {
        memory.inputs.push_back(staging.device_inputs + staging.input_bytes);
        staging.input_bytes += align_up(graph.node(id).results[0].bytes(), alignment_);
      }
      next_input += staging.input_bytes;
      next_output += align_up(cuda::GraphRunner::output_bytes(graph), alignment_);
      runners_[name] = std::make_unique<cuda::GraphRunner>(context_, plan_.program, graph, graph_plan,
                                                           std::move(memory), staging, options);
    }
    int64_t workspace = 0;
    for (auto& [name, runner] : runners_) workspace = std::max(workspace, runner->workspace_bytes());
    std::span<std::byte> planned = {arena_.data() + plan_.workspace_offset, static_cast<size_t>(plan_.workspace_bytes)};
    if (workspace > plan_.workspace_bytes) {
      workspace_ = Memory(MemoryKind::kDevice, workspace, "the workspace");
      planned = {workspace_.data(), static_cast<size_t>(workspace)};
    }
    for (auto& [name, runner] : runners_) runner->set_workspace(planned);
  }

  cuda::GraphRunner& find(const std::string& graph) {
    auto it = runners_.find(graph);
    if (it != runners_.end()) return *it->second;
    std::vector<std::string> names;
    for (const auto& [name, unused] : runners_) names.push_back(name);
    fail(ErrorCode::kNotFound, "no graph '{}' in program '{}'; it has: {}", graph, plan_.program.name,
         fmt::join(names, ", "));
  }

  // Device address of `size` bytes at `offset` of a state; `whole`: they must be all of it.
  std::byte* state(const std::string& name, int64_t offset, size_t size, bool whole) {
    auto it = state_index_.find(name);
    check(it != state_index_.end(), ErrorCode::kNotFound, "no state '{}' in program '{}'", name, plan_.program.name);
    const TensorType& type = plan_.program.states()[it->second].type;
    const int64_t bytes = type.bytes(), end = offset + static_cast<int64_t>(size);
    check(offset >= 0 && end <= bytes && (!whole || end == bytes), ErrorCode::kInvalidArgument,
          "state '{}' is {} = {} bytes, {} at {} were given", name, to_string(type), bytes, size, offset);
    return states_[it->second] + offset;
  }

  std::optional<cuda::DeviceGuard> guard_;  // while members are made and, first of them, destroyed last
  Plan plan_;
  cuda::DeviceContext context_;
  int64_t alignment_ = 256;
  Memory state_memory_, arena_, workspace_, device_inputs_, host_inputs_, host_outputs_;
  cuda::Upload upload_;
  std::vector<std::byte*> states_;
  std::map<std::string, size_t> state_index_;
  std::map<std::string, std::unique_ptr<cuda::GraphRunner>> runners_;
};

}  // namespace

std::unique_ptr<Executor> make_cuda_executor(Plan plan, const CudaOptions& options) {
  return std::make_unique<CudaExecutor>(std::move(plan), options);
}

Target cuda_target(const CudaOptions& options) {
  const cuda::DeviceFacts facts = cuda::device_facts(options.device);
  Target target = h200_target();  // the measured rates; H100s share the arithmetic, not the memory
  target.name = facts.name;
  target.fusions = cuda::fusion_kinds();
  target.memory_bytes = facts.memory_bytes;
  return target;
}

int64_t free_cuda_memory(const CudaOptions& options) {
  const cuda::DeviceGuard guard(cuda::device_facts(options.device).index);
  return cuda::free_device_bytes();
}

std::string cuda_bus_id(const CudaOptions& options) { return cuda::device_facts(options.device).pci_bus_id; }

bool cuda_available(std::string* why) { return cuda::device_count(why) > 0; }

}  // namespace octet
