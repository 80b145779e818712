#include "passes/storage.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "ir/facts.h"

namespace octet {
namespace {

using Kind = BufferRef::Kind;

class StorageAssigner {
 public:
  StorageAssigner(const Program& program, const Graph& graph)
      : program_(program), graph_(graph), uses_(last_uses(graph)), reads_(graph.count_uses()) {
    for (const Node& node : graph.nodes()) out_.of.emplace_back(node.results.size(), -1);
    for (size_t i = 0; i < program.states().size(); ++i) {
      state_index_[program.states()[i].name] = static_cast<int32_t>(i);
    }
    for (const NamedValue& update : graph.updates()) {
      auto found = state_index_.find(update.name);
      check(found != state_index_.end(), ErrorCode::kInternal,
            "plan_memory: graph {} updates state {}, which is not in "
            "the state table",
            graph.name(), update.name);
      Value value = update.value;
      while (op_facts(graph.node(value).op).view) value = graph.node(value).inputs[0];
      while (value.exists() && destination_.try_emplace(value, found->second).second) value = only_addend(value);
    }
  }

  GraphStorage run() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (is_state_leaf(graph_.node(NodeId{i}).op)) join({NodeId{i}, 0}, state_storage(state_of(NodeId{i})));
    }
    for (int32_t i = 0; i < graph_.size(); ++i) visit(NodeId{i});
    mark_saved();
    check_states();
    return std::move(out_);
  }

 private:
  static bool is_state_leaf(Op op) { return op == Op::kParam || op == Op::kState; }
  int32_t use(Value v) const { return uses_[v]; }
  int32_t& of(Value v) { return out_.of[slot(v.node)][static_cast<size_t>(v.result)]; }
  Storage& storage(int32_t s) { return out_.storages[static_cast<size_t>(s)]; }

  int32_t state_of(NodeId id) const {
    auto found = state_index_.find(graph_.node(id).name);
    check(found != state_index_.end(), ErrorCode::kInternal, "plan_memory: {} is not in the program's state table",
          describe(graph_, id));
    return found->second;
  }

  // What `value` is made from in place, when nothing else reads that: a sum on its way into a state is built up in the
  // state (the gradient of a tied table: head first, embedding last).
  Value only_addend(Value value) const {
    const Node& node = graph_.node(value);
    for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i) {
      const Value input = node.inputs[static_cast<size_t>(i)];
      if (!input.exists() || !may_take_over(node, value.result, i) || graph_.type(input) != graph_.type(value))
        continue;
      const Op made_by = graph_.node(input).op;
      const bool leaf = op_info(made_by).max_inputs == 0 && made_by != Op::kConstant;
      if (leaf || op_facts(made_by).view) continue;
      if (reads_[slot(input.node)][static_cast<size_t>(input.result)] == 1) return input;
    }
    return Value::none();
  }

  int32_t add(Storage storage) {
    out_.storages.push_back(storage);
    return static_cast<int32_t>(out_.storages.size()) - 1;
  }

  int32_t state_storage(int32_t state) {
    auto [it, added] = state_storages_.try_emplace(state);
    if (added) {
      const TensorType& type = program_.states()[static_cast<size_t>(state)].type;
      it->second = add({.kind = Kind::kState, .index = state, .bytes = type.bytes(), .first = -1});
    }
    return it->second;
  }

  void join(Value value, int32_t s) {
    of(value) = s;
    storage(s).last = std::max(storage(s).last, use(value));
  }

  // The storage may be overwritten by the results of `id`: nothing reads it later, and `id` itself only as `input`.
  bool dies_at(int32_t s, NodeId id, int input) {
    const Node& node = graph_.node(id);
    if (storage(s).last > index(id)) return false;
    if (storage(s).last < index(id)) return true;
    bool elementwise = op_facts(node.op).elementwise;
    for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i) {
      Value other = node.inputs[static_cast<size_t>(i)];
      if (i == input || !other.exists() || of(other) != s) continue;
      if (!elementwise || input < 0 || !(graph_.shape(other) == node.results[0].shape)) return false;
    }
    return input >= 0 || std::ranges::none_of(node.inputs, [&](Value v) { return v.exists() && of(v) == s; });
  }

  bool taken_by_sibling(int32_t s, NodeId id) {
    const auto& siblings = out_.of[slot(id)];
    return std::ranges::find(siblings, s) != siblings.end();
  }

  // The storage of an input that result `r` may take over, among those of this kind; -1 for none.
  int32_t takeover(NodeId id, int r, Kind kind, int32_t state) {
    const Node& node = graph_.node(id);
    for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i) {
      Value input = node.inputs[static_cast<size_t>(i)];
      if (!input.exists() || !may_take_over(node, r, i)) continue;
      int32_t s = of(input);
      bool right = storage(s).kind == kind && (kind != Kind::kState || storage(s).index == state);
      const TensorType &from = graph_.type(input), &to = node.results[static_cast<size_t>(r)];
      // Element for element: a broadcast operand of as many bytes (f32 [C] under bf16 [2, C]) is not such an input.
      right = right && from.shape == to.shape && dtype_bytes(from.dtype) == dtype_bytes(to.dtype);
      if (right && storage(s).bytes == to.bytes() && !taken_by_sibling(s, id) && dies_at(s, id, i)) return s;
    }
    return -1;
  }

  void visit(NodeId id) {
    const Node& node = graph_.node(id);
    if (is_state_leaf(node.op)) return;
    if (node.op == Op::kInput) {
      auto number = static_cast<int32_t>(out_.inputs.size());
      out_.inputs.push_back(id);
      join({id, 0}, add({.kind = Kind::kInput, .index = number, .bytes = node.results[0].bytes(), .first = -1}));
      return;
    }
    const OpFacts& facts = op_facts(node.op);
    for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) {
      if (use({id, r}) < 0) continue;
      if (facts.view && r == 0) {
        join({id, r}, of(node.inputs[0]));
      } else if (const int input = must_alias(node, r); input >= 0) {
        join({id, r}, aliased(id, input));
      } else {
        join({id, r}, place(id, r));
      }
    }
  }

  int32_t aliased(NodeId id, int input) {
    int32_t s = of(graph_.node(id).inputs[static_cast<size_t>(input)]);
    check(storage(s).kind != Kind::kInput && dies_at(s, id, input) && !taken_by_sibling(s, id), ErrorCode::kUnsupported,
          "plan_memory: {} of graph {} overwrites its input {}, which is still read afterwards; let later nodes read "
          "the result instead",
          describe(graph_, id), graph_.name(), input);
    return s;
  }

  // In the state it becomes, in an input that dies here, or in memory of its own.
  int32_t place(NodeId id, int32_t r) {
    const Node& node = graph_.node(id);
    if (auto found = destination_.find({id, r}); found != destination_.end()) {
      int32_t s = state_storage(found->second);
      bool fits = storage(s).bytes == node.results[static_cast<size_t>(r)].bytes();
      bool over_input = takeover(id, r, Kind::kState, found->second) == s;
      if (fits && (over_input || (!taken_by_sibling(s, id) && dies_at(s, id, -1)))) return s;
    }
    int32_t s = takeover(id, r, Kind::kArena, -1);
    return s >= 0 ? s : add({.bytes = node.results[static_cast<size_t>(r)].bytes(), .first = index(id)});
  }

  void mark_saved() {
    for (const Node& node : graph_.nodes()) {
      if (node.phase != Phase::kBackward && node.phase != Phase::kRecompute) continue;
      auto reader = static_cast<int32_t>(&node - graph_.nodes().data());
      for (Value input : node.inputs) {
        if (!input.exists() || graph_.node(input).phase != Phase::kForward) continue;
        Storage& s = storage(of(input));
        if (s.kind != Kind::kArena) continue;
        s.saved_first = s.saved_last < 0 ? index(input.node) : std::min(s.saved_first, index(input.node));
        s.saved_last = std::max(s.saved_last, reader);
      }
    }
  }

  // Whatever is written into a state must be its update, and no output may show contents that are overwritten.
  void check_states() {
    std::unordered_map<int32_t, Value> updated;
    for (const NamedValue& update : graph_.updates()) updated[state_index_.at(update.name)] = update.value;
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(NodeId{i});
      if (is_state_leaf(node.op)) continue;
      for (int32_t s : out_.of[static_cast<size_t>(i)]) {
        if (s < 0 || storage(s).kind != Kind::kState || op_facts(node.op).view) continue;
        auto update = updated.find(storage(s).index);
        check(update != updated.end() && of(update->second) == s, ErrorCode::kUnsupported,
              "plan_memory: {} of graph {} overwrites state {}, which the graph does not update",
              describe(graph_, NodeId{i}), graph_.name(),
              program_.states()[static_cast<size_t>(storage(s).index)].name);
      }
    }
    for (const NamedValue& output : graph_.outputs()) {
      const Storage& s = storage(of(output.value));
      if (s.kind != Kind::kState) continue;
      auto update = updated.find(s.index);
      check(update == updated.end() || of(update->second) == of(output.value), ErrorCode::kUnsupported,
            "plan_memory: output {} of graph {} is the old value of state {}, which the graph updates; give out a copy "
            "(scale by 1)",
            output.name, graph_.name(), program_.states()[static_cast<size_t>(s.index)].name);
    }
  }

  const Program& program_;
  const Graph& graph_;
  GraphStorage out_;
  ValueTable<int32_t> uses_;                 // the last
  std::vector<std::vector<int32_t>> reads_;  // how many
  std::unordered_map<std::string_view, int32_t> state_index_;
  std::unordered_map<Value, int32_t, ValueHash> destination_;  // the state a value becomes
  std::unordered_map<int32_t, int32_t> state_storages_;
};

}  // namespace

ValueTable<int32_t> last_uses(const Graph& graph) {
  ValueTable<int32_t> uses(graph, -1);
  for (int32_t i = 0; i < graph.size(); ++i) {
    for (Value input : graph.node(NodeId{i}).inputs) {
      if (input.exists()) uses[input] = i;
    }
  }
  const std::vector<int32_t> joins = joins_of(graph);
  for (int32_t i = 0; i < graph.size(); ++i)
    for (Value input : graph.node(NodeId{i}).inputs)
      if (input.exists()) uses[input] = std::max(uses[input], joins[static_cast<size_t>(i)]);
  for (const auto* named : {&graph.outputs(), &graph.updates()}) {
    for (const NamedValue& entry : *named) uses[entry.value] = graph.size();
  }
  return uses;
}

GraphStorage assign_storage(const Program& program, const Graph& graph) {
  return StorageAssigner(program, graph).run();
}

}  // namespace octet
