// What the executors of compiled plans share, whatever the device: the state table, the places of inputs, a runner a
// graph. `Runner` binds one graph to kernels and runs it (a BoundGraph).
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "exec/executor.h"
#include "exec/graph_binding.h"

namespace octet {

template <typename Runner>
class PlanExecutor : public Executor {
 public:
  const Program& program() const override { return plan_.program; }
  Communicator* ranks() const override { return ranks_; }

  void read_state(const std::string& name, std::span<std::byte> bytes) override {
    state(name, 0, bytes.size(), true);
    read_state_part(name, 0, bytes);
  }
  void write_state(const std::string& name, std::span<const std::byte> bytes) override {
    state(name, 0, bytes.size(), true);
    write_state_part(name, 0, bytes);
  }

  void set_profiling(bool on) override {
    for (auto& [name, runner] : runners_) runner->set_profiling(on);
  }
  std::vector<NodeTime> profile() const override {
    std::vector<NodeTime> times;
    for (const auto& [name, runner] : runners_) runner->append_profile(times);
    return times;
  }

 protected:
  // ranks: this rank of the program's mesh, null where it has one rank.
  PlanExecutor(Plan plan, int64_t least_alignment, Communicator* ranks = nullptr)
      : plan_(std::move(plan)), alignment_(std::max(plan_.target.buffer_alignment, least_alignment)), ranks_(ranks) {}

  // `where` names the device; available 0: unknown.
  void reject_what_cannot_fit(int64_t available, const std::string& where) const {
    const int64_t wanted = plan_.total_bytes();
    check(available == 0 || wanted <= available, ErrorCode::kOutOfMemory,
          "the plan needs {} bytes ({} arena, {} state, {} inputs) and {} has {} free: {} bytes are missing; use a "
          "smaller micro_batch, recompute=selective or full, or a smaller model",
          wanted, plan_.arena_bytes, plan_.state_bytes, plan_.input_bytes, where, available, wanted - available);
  }

  // All states in one block of memory that is zero: `allocate(bytes)` gives its address. Initial values are written.
  template <typename Allocate>
  void place_states(const Allocate& allocate) {
    int64_t bytes = 0;
    const std::vector<int64_t> offsets = state_offsets(plan_.program, alignment_, bytes);
    std::byte* const base = allocate(bytes);
    for (size_t i = 0; i < offsets.size(); ++i) {
      states_.push_back(base + offsets[i]);
      state_index_[plan_.program.states()[i].name] = i;
    }
    for (const StateEntry& entry : plan_.program.states()) {
      if (entry.initial == 0 || entry.slots == 0) continue;
      std::vector<std::byte> values(static_cast<size_t>(entry.type.bytes()));
      for (int64_t i = 0; i < entry.type.shape.elements(); ++i)
        store_element(entry.type.dtype, values.data(), i, entry.initial);
      write_state(entry.name, values);
    }
  }

  int64_t input_bytes(const GraphPlan& graph_plan, const Graph& graph) const {
    int64_t bytes = 0;
    for (NodeId id : graph_plan.inputs) bytes += round_up(graph.node(id).results[0].bytes(), alignment_);
    return bytes;
  }
  int64_t input_bytes() const {  // of all graphs
    int64_t bytes = 0;
    for (const auto& [name, graph_plan] : plan_.graphs) bytes += input_bytes(graph_plan, plan_.program.graph(name));
    return bytes;
  }
  // With the graph's inputs at `inputs`, and the states' copies of this slot.
  PlanMemory memory_of(const GraphPlan& graph_plan, const Graph& graph, std::byte* arena, std::byte* inputs,
                       int32_t slot) const {
    PlanMemory memory{.arena = arena, .states = states_, .inputs = {}};
    for (size_t i = 0; i < states_.size(); ++i)
      if (const StateEntry& entry = plan_.program.states()[i]; entry.slots > slot)
        memory.states[i] += slot * round_up(entry.type.bytes(), alignment_);
    for (NodeId id : graph_plan.inputs) {
      memory.inputs.push_back(inputs);
      inputs += round_up(graph.node(id).results[0].bytes(), alignment_);
    }
    return memory;
  }

  Runner& runner(const std::string& graph, int32_t slot = 0) {
    auto it = runners_.find({graph, slot});
    if (it != runners_.end()) return *it->second;
    check(slot == 0, ErrorCode::kNotFound, "graph '{}' has no slot {}", graph, slot);
    std::vector<std::string> names;
    for (const auto& [known, unused] : runners_)
      if (known.second == 0) names.push_back(known.first);
    fail(ErrorCode::kNotFound, "no graph '{}' in program '{}'; it has: {}", graph, plan_.program.name,
         fmt::join(names, ", "));
  }

  // Address of `size` bytes at `offset` of a state; `whole`: they must be all of it.
  std::byte* state(const std::string& name, int64_t offset, size_t size, bool whole = false) const {
    auto it = state_index_.find(name);
    check(it != state_index_.end(), ErrorCode::kNotFound, "no state '{}' in program '{}'", name, plan_.program.name);
    const TensorType& type = plan_.program.states()[it->second].type;
    const int64_t bytes = held_bytes(plan_.program.states()[it->second]), end = offset + static_cast<int64_t>(size);
    check(offset >= 0 && offset <= end && end <= bytes && (!whole || end == bytes), ErrorCode::kInvalidArgument,
          "state '{}' is {} = {} bytes, {} at {} were given", name, to_string(type), bytes, size, offset);
    return states_[it->second] + offset;
  }

  Plan plan_;
  int64_t alignment_;
  Communicator* ranks_;
  std::vector<std::byte*> states_;
  std::map<std::string, size_t> state_index_;
  std::map<std::pair<std::string, int32_t>, std::unique_ptr<Runner>> runners_;  // by graph and slot
};

}  // namespace octet
