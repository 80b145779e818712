// The cpu executor: one arena, one state block and the inputs of a plan; a GraphRunner per graph.
//
// All memory is taken and all kernels are bound in the constructor. run() must not allocate, look names up inside the
// loop, or do anything a kernel does not.
#include <cstring>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "exec/cpu/graph_runner.h"
#include "exec/cpu/memory.h"
#include "exec/cpu/tiles.h"
#include "exec/executor.h"
#include "kernels/cpu/matmul/gemm_engine.h"

namespace octet {
namespace {

class CpuExecutor final : public Executor {
 public:
  explicit CpuExecutor(Plan plan) : plan_(std::move(plan)) {
    alignment_ = std::max<int64_t>(plan_.target.buffer_alignment, 64);
    reject_what_cannot_fit();
    {
      const LoggedTime time("memory");
      allocate_state();
      arena_ = cpu::MappedMemory(plan_.arena_bytes, "the arena");
    }
    const LoggedTime time("kernels bound");
    bind_graphs();
  }

  const Program& program() const override { return plan_.program; }
  std::span<std::byte> input(const std::string& graph, const std::string& name) override {
    return runner(graph).input(name);
  }
  void run(const std::string& graph) override { runner(graph).run(); }
  std::span<const std::byte> output(const std::string& graph, const std::string& name) override {
    return runner(graph).output(name);
  }

  void read_state(const std::string& name, std::span<std::byte> bytes) override {
    auto [data, size] = state(name, bytes.size());
    std::memcpy(bytes.data(), data, size);
  }
  void read_state_part(const std::string& name, int64_t offset, std::span<std::byte> part) override {
    auto [data, size] = state(name, {});
    check(offset >= 0 && static_cast<size_t>(offset) + part.size() <= size, ErrorCode::kInvalidArgument,
          "state '{}' has {} bytes, {} at {} are wanted", name, size, part.size(), offset);
    std::memcpy(part.data(), data + offset, part.size());
  }
  void write_state(const std::string& name, std::span<const std::byte> bytes) override {
    auto [data, size] = state(name, bytes.size());
    std::memcpy(data, bytes.data(), size);
  }
  void write_state_part(const std::string& name, int64_t offset, std::span<const std::byte> part) override {
    auto [data, size] = state(name, {});
    check(offset >= 0 && static_cast<size_t>(offset) + part.size() <= size, ErrorCode::kInvalidArgument,
          "state '{}' has {} bytes, {} at {} are given", name, size, part.size(), offset);
    std::memcpy(data + offset, part.data(), part.size());
  }
  void fill_state_part(const std::string& name, int64_t offset, int64_t bytes, int64_t, MakeBytes make) override {
    auto [data, size] = state(name, {});
    check(offset >= 0 && bytes >= 0 && offset + bytes <= static_cast<int64_t>(size), ErrorCode::kInvalidArgument,
          "state '{}' has {} bytes, {} at {} are given", name, size, bytes, offset);
    if (bytes > 0) make(0, {data + offset, static_cast<size_t>(bytes)});
  }

  int64_t allocated_bytes() const override { return state_memory_.bytes() + arena_.bytes() + input_memory_.bytes(); }

  void set_profiling(bool on) override {
    for (auto& [name, graph_runner] : runners_) graph_runner->set_profiling(on);
  }
  std::vector<NodeTime> profile() const override {
    std::vector<NodeTime> times;
    for (const auto& [name, graph_runner] : runners_) graph_runner->append_profile(times);
    return times;
  }

 private:
  void reject_what_cannot_fit() const {
    const int64_t available = cpu::available_memory_bytes(), wanted = plan_.total_bytes();
    check(available == 0 || wanted <= available, ErrorCode::kOutOfMemory,
          "the plan needs {} bytes ({} arena, {} state, {} inputs) and {} are available: {} bytes are missing; use "
          "fewer tokens a batch, recompute, or a smaller model",
          wanted, plan_.arena_bytes, plan_.state_bytes, plan_.input_bytes, available, wanted - available);
  }

  void allocate_state() {
    int64_t bytes = 0;
    const std::vector<int64_t> offsets = state_offsets(plan_.program, alignment_, bytes);
    state_memory_ = cpu::MappedMemory(bytes, "the state");
    for (size_t i = 0; i < offsets.size(); ++i) {
      const StateEntry& entry = plan_.program.states()[i];
      states_.push_back(state_memory_.data() + offsets[i]);
      state_index_[entry.name] = i;
      if (entry.initial == 0) continue;  // fresh memory is zero
      parallel_for(entry.type.shape.elements(), 1 << 16, [&](int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j) store_element(entry.type.dtype, states_[i], j, entry.initial);
      });
    }
  }

  void bind_graphs() {
    int64_t bytes = 0;
    for (const auto& [name, graph_plan] : plan_.graphs) {
      const Graph& graph = plan_.program.graph(name);
      for (NodeId id : graph_plan.inputs) bytes += align_up(graph.node(id).results[0].bytes(), alignment_);
    }
    input_memory_ = cpu::MappedMemory(bytes, "the inputs");
    std::byte* next_input = input_memory_.data();
    check(plan_.workspace_bytes >= cpu::workspace_bytes(), ErrorCode::kInvalidArgument,
          "the plan has {} bytes of workspace and the CPU kernels need {}: plan with cpu_target()",
          plan_.workspace_bytes, cpu::workspace_bytes());
    for (const auto& [name, graph_plan] : plan_.graphs) {
      const Graph& graph = plan_.program.graph(name);
      PlanMemory memory{.arena = arena_.data(), .states = states_, .inputs = {}};
      const std::span<std::byte> workspace = {arena_.data() + plan_.workspace_offset,
                                              static_cast<size_t>(plan_.workspace_bytes)};
      for (NodeId id : graph_plan.inputs) {
        memory.inputs.push_back(next_input);
        next_input += align_up(graph.node(id).results[0].bytes(), alignment_);
      }
      runners_[name] =
          std::make_unique<cpu::GraphRunner>(plan_.program, graph, graph_plan, std::move(memory), workspace);
    }
  }

  cpu::GraphRunner& runner(const std::string& graph) {
    auto it = runners_.find(graph);
    if (it != runners_.end()) return *it->second;
    std::vector<std::string> names;
    for (const auto& [name, unused] : runners_) names.push_back(name);
    fail(ErrorCode::kNotFound, "no graph '{}' in program '{}'; it has: {}", graph, plan_.program.name,
         fmt::join(names, ", "));
  }

  // Where a state lies; its size must be the given one when there is one.
  std::pair<std::byte*, size_t> state(const std::string& name, std::optional<size_t> given) {
    auto it = state_index_.find(name);
    check(it != state_index_.end(), ErrorCode::kNotFound, "no state '{}' in program '{}'", name, plan_.program.name);
    const TensorType& type = plan_.program.states()[it->second].type;
    const auto size = static_cast<size_t>(type.bytes());
    check(!given || *given == size, ErrorCode::kInvalidArgument, "state '{}' is {} = {} bytes, {} were given", name,
          to_string(type), size, given.value_or(0));
    return {states_[it->second], size};
  }

  Plan plan_;
  int64_t alignment_ = 64;
  cpu::MappedMemory state_memory_, arena_, input_memory_;
  std::vector<std::byte*> states_;
  std::map<std::string, size_t> state_index_;
  std::map<std::string, std::unique_ptr<cpu::GraphRunner>> runners_;
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(Plan plan) { return std::make_unique<CpuExecutor>(std::move(plan)); }

bool cpu::has_bf16_tiles() { return amx_engine() != nullptr; }

Target cpu_target() {
  Target target{.name = "cpu", .int8_products = true, .workspace_bytes = cpu::workspace_bytes()};
  using enum FusionPart;
  target.allow(Producer::kNorm, {kResidual, kAmax, kQuantize});
  target.allow(Producer::kNormGrad, {kResidual});
  target.allow(Producer::kActivation, {kCore, kBias, kAmax, kQuantize});
  target.allow(Producer::kActivationGrad, {kCore, kColumnSum});
  target.allow(Producer::kGated, {kCore, kAmax, kQuantize});
  target.allow(Producer::kGatedGrad, {kCore});
  return target;
}

}  // namespace octet
