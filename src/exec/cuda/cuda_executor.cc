// The cuda executor: one arena, one state block, staging for inputs and outputs; a GraphRunner per graph.
//
// run() only enqueues: graphs run one after the other on one stream, and the caller waits when it reads an output or a
// state, or writes an input that the last run has not read yet. The calling thread's device is set at every entry.
#include <cstring>
#include <exception>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "dist/cuda/nccl.h"
#include "exec/cuda/device_memory.h"
#include "exec/cuda/graph_runner.h"
#include "exec/cuda/host_wait.h"
#include "exec/cuda/state_travels.h"
#include "exec/plan_executor.h"
#include "exec/rank_devices.h"
#include "ir/localize.h"

namespace octet {
namespace {

using cuda::check_cuda;
using cuda::Memory;
using cuda::MemoryKind;
using cuda::StreamRole;

// What runners use until they are gone: a base in front of theirs.
struct DeviceResources {
  explicit DeviceResources(const CudaOptions& options)
      : context_({.device = options.device, .deterministic = options.deterministic, .ranks = options.ranks}) {
    guard_.emplace(context_.device());
  }

  std::optional<cuda::DeviceGuard> guard_;  // while an executor is made and, destroyed last, while it ends
  cuda::DeviceContext context_;
  Memory state_memory_, arena_, workspace_, ranks_workspace_, device_inputs_, host_inputs_, host_outputs_;
  cuda::Upload upload_;
  cuda::HostWait wait_;
};

class CudaExecutor final : private DeviceResources, public PlanExecutor<cuda::GraphRunner> {
 public:
  CudaExecutor(Plan plan, const CudaOptions& options, Communicator* ranks)
      : DeviceResources(options), PlanExecutor(std::move(plan), 256, ranks) {
    if (plan_.program.mesh().ranks() > 1) join_ranks();
    reject_what_cannot_fit(cuda::free_device_bytes(), context_.device_name());
    {
      const LoggedTime time("device memory");
      place_states([&](int64_t bytes) { return allocate_state(bytes); });
      arena_ = allocate(plan_.arena_bytes, "the arena");
    }
    const LoggedTime time("kernels bound");
    bind_graphs(options);
    context_.save_libraries();
    guard_.reset();
  }
  ~CudaExecutor() override {
    guard_.emplace(context_.device());
    if (wait_.asks() && std::uncaught_exceptions() > exceptions_) {  // others may never come to what is under way
      for (auto& [name, runner] : runners_) runner->drop_capture();
      context_.ranks().abort();
    }
    try {
      static_cast<void>(wait_.stream(context_.stream()));
      travels_.wait(wait_);
    } catch (...) {  // a rank is lost: nothing is under way any more
    }
  }

  Coordinate coordinate() const override { return at_; }

  std::span<std::byte> input(const std::string& graph, const std::string& name) override {
    const cuda::DeviceGuard guard(context_.device());
    cuda::GraphRunner& bound = runner(graph);
    for (int32_t slot = 0; slot < slots_of(plan_.program, plan_.program.graph(graph)); ++slot)
      runner(graph, slot).wait_for_inputs();  // they read the same staging
    return bound.input(name);
  }
  void run(const std::string& graph, int32_t slot) override {
    const cuda::DeviceGuard guard(context_.device());
    cuda::GraphRunner& bound = runner(graph, slot);
    bound.wait_for_inputs();
    if (!bound.replays()) travels_.wait(wait_);  // here it asks
    travels_.settle(plan_.program.graph(graph), context_.stream());
    bound.enqueue();
  }
  std::span<const std::byte> output(const std::string& graph, const std::string& name) override {
    const cuda::DeviceGuard guard(context_.device());
    for (int32_t slot = 0; slot < slots_of(plan_.program, plan_.program.graph(graph)); ++slot)
      runner(graph, slot).finish();
    return runner(graph).output(name);
  }

  void read_state_part(const std::string& name, int64_t offset, std::span<std::byte> part) override {
    const cuda::DeviceGuard guard(context_.device());
    const std::byte* from = state(name, offset, part.size());
    check_cuda(cudaMemcpyAsync(part.data(), from, part.size(), cudaMemcpyDeviceToHost, context_.stream()),
               "reading a state");
    check_cuda(wait_.stream(context_.stream()), "reading a state");
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
    std::byte* to = state(name, offset, part.size());
    check_cuda(cudaMemcpyAsync(to, part.data(), part.size(), cudaMemcpyHostToDevice, context_.stream()),
               "writing a state");
    check_cuda(wait_.stream(context_.stream()), "writing a state");
  }
  void fill_state_part(const std::string& name, int64_t offset, int64_t bytes, int64_t grain, MakeBytes make) override {
    const cuda::DeviceGuard guard(context_.device());
    std::byte* to = state(name, offset, static_cast<size_t>(bytes));
    if (wait_.asks()) check_cuda(wait_.stream(context_.stream()), "filling a state");  // the upload does not ask
    context_.order(StreamRole::kCompute, StreamRole::kCopy);
    upload_.copy(to, bytes, grain, context_.stream(StreamRole::kCopy), make);
    context_.order(StreamRole::kCopy, StreamRole::kCompute);
  }

  void send_state(const std::string& name, int32_t to) override {
    if (!travel(name, to, true)) Executor::send_state(name, to);
  }
  void receive_state(const std::string& name, int32_t from) override {
    if (!travel(name, from, false)) Executor::receive_state(name, from);
  }

  int64_t allocated_bytes() const override {
    return state_memory_.bytes() + arena_.bytes() + device_inputs_.bytes() + workspace_.bytes() +
           ranks_workspace_.bytes();
  }
  void set_profiling(bool on) override {
    const cuda::DeviceGuard guard(context_.device());
    PlanExecutor::set_profiling(on);
  }

 private:
  bool travel(const std::string& name, int32_t other, bool sends) {
    const cuda::DeviceGuard guard(context_.device());
    const StateEntry* entry = plan_.program.find_state(name);
    check(entry != nullptr && wait_.asks(), ErrorCode::kNotFound, "no state '{}' of several ranks", name);
    const int64_t bytes = entry->type.bytes();
    return travels_.move(context_, name, state(name, 0, static_cast<size_t>(bytes)), bytes, other, sends);
  }

  // The rank's place in the nodes, and its groups: before memory is taken, in the program's order on all ranks.
  void join_ranks() {
    const Mesh& mesh = plan_.program.mesh();
    cuda::DeviceRanks& ranks = context_.ranks();
    check(ranks.mesh() == mesh, ErrorCode::kInvalidArgument,
          "program '{}' is for a mesh of {} ranks (pp {}, dp {}, cp {}, tp {}), the executor's ranks are another of {}",
          plan_.program.name, mesh.ranks(), mesh.size[0], mesh.size[1], mesh.size[2], mesh.size[3],
          ranks.mesh().ranks());
    at_ = ranks.coordinate();
    localize(plan_.program, at_);
    for (const Graph& graph : plan_.program.graphs())
      for (const Node& node : graph.nodes())
        if (const Node* exchange = exchange_of(node)) ranks.group(parse_axes(exchange->attr<std::string>("over")));
    wait_ = cuda::HostWait(ranks, [this] {
      for (auto& [name, runner] : runners_) runner->drop_capture();
    });
  }

  // Where operands of collectives lie: other ranks' devices may read it.
  Memory allocate(int64_t bytes, const std::string& purpose) {
    if (wait_.asks())
      if (std::shared_ptr<std::byte> shared = context_.ranks().allocate(bytes, purpose)) return {shared, bytes};
    return {MemoryKind::kDevice, bytes, purpose};
  }

  std::byte* allocate_state(int64_t bytes) {
    state_memory_ = allocate(bytes, "the state");
    if (bytes > 0) {  // on the stream of the writes that follow: another stream's could come after them
      check_cuda(cudaMemsetAsync(state_memory_.data(), 0, static_cast<size_t>(bytes), context_.stream()),
                 "clearing the state");
    }
    return state_memory_.data();
  }

  void bind_graphs(const CudaOptions& options) {
    int64_t output_bytes = 0;
    for (const auto& [name, graph_plan] : plan_.graphs)
      output_bytes += round_up(cuda::GraphRunner::output_bytes(plan_.program.graph(name)), alignment_);
    device_inputs_ = Memory(MemoryKind::kDevice, input_bytes(), "the inputs");
    host_inputs_ = Memory(MemoryKind::kPinned, input_bytes(), "staging of inputs");
    host_outputs_ = Memory(MemoryKind::kPinned, output_bytes, "staging of outputs");
    if (input_bytes() > 0) std::memset(host_inputs_.data(), 0, static_cast<size_t>(input_bytes()));
    int64_t next_input = 0, next_output = 0;
    for (const auto& [name, graph_plan] : plan_.graphs) {
      const Graph& graph = plan_.program.graph(name);
      const cuda::GraphRunner::Staging staging{.host_inputs = host_inputs_.data() + next_input,
                                               .device_inputs = device_inputs_.data() + next_input,
                                               .input_bytes = input_bytes(graph_plan, graph),
                                               .host_outputs = host_outputs_.data() + next_output};
      next_input += staging.input_bytes;
      next_output += round_up(cuda::GraphRunner::output_bytes(graph), alignment_);
      for (int32_t slot = 0; slot < slots_of(plan_.program, graph); ++slot)
        runners_[{name, slot}] = std::make_unique<cuda::GraphRunner>(
            context_, wait_, plan_.program, graph, graph_plan,
            memory_of(graph_plan, graph, arena_.data(), staging.device_inputs, slot), staging, options);
    }
    int64_t workspace = 0, ranks_workspace = 0;
    for (auto& [name, runner] : runners_) {
      workspace = std::max(workspace, runner->workspace_bytes());
      ranks_workspace = std::max(ranks_workspace, runner->ranks_workspace_bytes());
    }
    std::span<std::byte> planned = {arena_.data() + plan_.workspace_offset, static_cast<size_t>(plan_.workspace_bytes)};
    if (workspace > plan_.workspace_bytes) {
      workspace_ = Memory(MemoryKind::kDevice, workspace, "the workspace");
      planned = {workspace_.data(), static_cast<size_t>(workspace)};
    }
    ranks_workspace_ = allocate(ranks_workspace, "the collectives' workspace");
    const std::span<std::byte> ranks = {ranks_workspace_.data(), static_cast<size_t>(ranks_workspace)};
    for (auto& [name, runner] : runners_) runner->set_workspaces(planned, ranks);
  }

  Coordinate at_;
  cuda::StateTravels travels_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

std::unique_ptr<Executor> make_cuda_executor(Plan plan, const CudaOptions& options, Communicator* ranks) {
  return std::make_unique<CudaExecutor>(std::move(plan), options, ranks);
}

Target cuda_target(const CudaOptions& options) {
  const cuda::DeviceFacts facts = cuda::device_facts(options.device);
  Target target = h200_target();  // the measured rates; H100s share the arithmetic, not the memory
  target.name = facts.name;
  target.memory_bytes = facts.memory_bytes;
  return target;
}

RankDevices rank_devices(Device device, bool peer_memory) {
  if (device != Device::kCuda) return {};
  try {
    nccl_version();         // opened here: it sets a variable of the environment, which the ranks' libraries read
  } catch (const Error&) {  // make() throws it, where a rank that fails is known to the others
  }
  return {.usable = cuda_device_count(),
          .make = [peer_memory](Communicator& ranks, int index, std::function<void()> check) {
            return make_nccl_ranks(ranks, {.device = index, .peer_memory = peer_memory, .check = std::move(check)});
          }};
}

void make_group(cuda::DeviceRanks& ranks, const AxisList& over) { ranks.group(over); }

int64_t free_cuda_memory(const CudaOptions& options) {
  const cuda::DeviceGuard guard(cuda::device_facts(options.device).index);
  return cuda::free_device_bytes();
}

std::string cuda_bus_id(const CudaOptions& options) { return cuda::device_facts(options.device).pci_bus_id; }

bool cuda_available(std::string* why) { return cuda_device_count(why) > 0; }

int cuda_device_count(std::string* why) { return cuda::device_count(why); }

}  // namespace octet
