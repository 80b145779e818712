#include "ir/verify.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "ir/facts.h"

namespace octet {
namespace {

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph) {}

  void run() {
    std::set<std::pair<Op, std::string_view>> leaves;
    for (int32_t i = 0; i < graph_.size(); ++i) {
      NodeId id{i};
      const Node& node = graph_.node(id);
      check_node(id, node);
      if (is_named_leaf(node.op)) {
        require(!node.name.empty() && leaves.emplace(node.op, node.name).second, id,
                "leaf names must be there and unique");
        require(graph_.find_leaf(node.op, node.name) == Value{id, 0}, id, "the leaf is not found by its name");
      }
    }
    check_named(graph_.outputs(), "output");
    check_named(graph_.updates(), "update");
    for (const NamedValue& update : graph_.updates()) check_update(update);
    check_aliases();
  }

 private:
  template <typename... Args>
  void require(bool condition, NodeId id, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) [[likely]]
      return;
    fail(ErrorCode::kInternal, "graph {}: {}: {}", graph_.name(), describe(graph_, id),
         fmt::format(format, std::forward<Args>(args)...));
  }

  bool exists(Value value) const {
    return index(value.node) >= 0 && index(value.node) < graph_.size() && value.result >= 0 &&
           static_cast<size_t>(value.result) < graph_.node(value).results.size();
  }

  void check_node(NodeId id, const Node& node) const {
    const OpInfo& info = op_info(node.op);
    require(op_is_legal(node.op, graph_.stage()), id, "{} may not stand in a graph of stage {}", info.name,
            stage_name(graph_.stage()));
    auto count = static_cast<int>(node.inputs.size());
    require(count >= info.min_inputs && (info.max_inputs < 0 || count <= info.max_inputs), id, "{} inputs", count);
    require(info.results < 0 || node.results.size() == static_cast<size_t>(info.results), id, "{} results (want {})",
            node.results.size(), info.results);
    for (int i = 0; i < count; ++i) {
      Value input = node.inputs[static_cast<size_t>(i)];
      if (!input.exists() && i >= info.min_inputs && info.max_inputs >= 0) continue;
      require(exists(input), id, "input {} is #{}.{}, which does not exist", i, index(input.node), input.result);
      require(index(input.node) < index(id), id, "input {} is #{}, which comes later", i, index(input.node));
      const Node& maker = graph_.node(input);
      bool leaf = op_info(maker.op).max_inputs == 0;
      require(node.phase != Phase::kForward || maker.phase == Phase::kForward || leaf, id,
              "a forward node reads #{} of phase {}", index(input.node), phase_name(maker.phase));
    }
    std::vector<TensorType> types;
    try {
      types = infer_types(graph_, node);
    } catch (const Error& error) {
      require(false, id, "{}", error.message());
    }
    require(types.size() == node.results.size(), id, "{} results, {} inferred", node.results.size(), types.size());
    for (size_t r = 0; r < types.size(); ++r) {
      require(types[r] == node.results[r], id, "result {} is declared {} and inferred {}", r,
              to_string(node.results[r]), to_string(types[r]));
    }
    check_layouts(id, node);
    require((node.body != nullptr) == (node.op == Op::kFusion), id, "only a fusion has a body, and must");
    if (node.body != nullptr) check_body(id, *node.body);
  }

  // Leaves have what they are given; other results what the op's rule gives.
  void check_layouts(NodeId id, const Node& node) const {
    std::vector<Layout> layouts;
    try {
      layouts = infer_layouts(graph_, node);
    } catch (const Error& error) {
      require(false, id, "{}", error.message());
    }
    for (size_t r = 0; r < node.results.size() && layouts != node.layouts; ++r) {
      const Layout inferred = layouts.empty() ? Layout() : layouts[r];
      const Layout& declared = graph_.layout({id, static_cast<int32_t>(r)});
      require(declared == inferred, id, "result {} is declared {} and inferred {}", r,
              octet::print(node.results[r], declared), octet::print(node.results[r], inferred));
    }
  }

  void check_body(NodeId id, const Graph& body) const {
    try {
      verify(body);
    } catch (const Error& error) {
      require(false, id, "body: {}", error.message());
    }
  }

  void check_named(const std::vector<NamedValue>& list, const char* what) const {
    std::set<std::string_view> names;
    for (const NamedValue& entry : list) {
      check(exists(entry.value), ErrorCode::kInternal, "graph {}: {} {} is #{}.{}, which does not exist", graph_.name(),
            what, entry.name, index(entry.value.node), entry.value.result);
      check(names.insert(entry.name).second, ErrorCode::kInternal, "graph {}: {} {} is given twice", graph_.name(),
            what, entry.name);
    }
  }

  void check_update(const NamedValue& update) const {
    Value leaf = graph_.find_leaf(Op::kState, update.name);
    if (!leaf.exists()) leaf = graph_.find_leaf(Op::kParam, update.name);
    if (!leaf.exists()) return;
    require(graph_.type(leaf) == graph_.type(update.value), update.value.node, "updates {}, which is {}, with {}",
            update.name, to_string(graph_.type(leaf)), to_string(graph_.type(update.value)));
  }

  // What a node writes over is read by nobody else at its time or after it, and is given out again.
  void check_aliases() const {
    std::unordered_map<Value, NodeId, ValueHash> overwritten_by;
    auto check_read = [&](Value value, NodeId reader) {
      auto found = overwritten_by.find(value);
      if (found == overwritten_by.end()) return;
      require(false, reader, "reads {}, which {} has overwritten", describe(graph_, value.node),
              describe(graph_, found->second));
    };
    for (int32_t i = 0; i < graph_.size(); ++i) {
      NodeId id{i};
      const Node& node = graph_.node(id);
      for (Value input : node.inputs) check_read(input, id);
      for (int input : overwritten_inputs(node)) {
        check_overwrite(id, node, input);
        overwritten_by[node.inputs[static_cast<size_t>(input)]] = id;
      }
    }
    for (const NamedValue& output : graph_.outputs()) check_read(output.value, output.value.node);
    for (const NamedValue& update : graph_.updates()) check_read(update.value, update.value.node);
  }

  void check_overwrite(NodeId id, const Node& node, int input) const {
    int results = 0;
    for (int r = 0; r < static_cast<int>(node.results.size()); ++r) results += must_alias(node, r) == input;
    require(results == 1, id, "overwrites input {}, and {} results stand in its place (want 1)", input, results);
    auto reads = std::ranges::count(node.inputs, node.inputs[static_cast<size_t>(input)]);
    require(reads == 1, id, "reads input {}, which it overwrites, {} times", input, reads);
  }

  const Graph& graph_;
};

void check_state(const Program& program, const Graph& graph, const std::string& name, Value value) {
  const TensorType& type = graph.type(value);
  const StateEntry* entry = program.find_state(name);
  check(entry != nullptr, ErrorCode::kInternal,
        "program {}: graph {} uses {}, which the state table lacks (collect_state adds it)", program.name, graph.name(),
        name);
  check(entry->type == type, ErrorCode::kInternal, "program {}: graph {} has {} as {}, the state table as {}",
        program.name, graph.name(), name, to_string(type), to_string(entry->type));
  const Layout layout = layout_in(graph.role(), *entry);
  check(graph.mesh().ranks() == 1 || graph.layout(value) == layout, ErrorCode::kInternal,
        "program {}: graph {} has {} as {}, the state table as {}", program.name, graph.name(), name,
        print(type, graph.layout(value)), print(type, layout));
}

}  // namespace

bool op_is_legal(Op op, Stage stage) { return op_info(op).stage <= stage; }

void verify(const Graph& graph) { Verifier(graph).run(); }

void verify(const Program& program) {
  for (const StateEntry& entry : program.states()) {
    for (const Placement& placement : entry.placements)
      check_placement(placement, whole_shape(entry.type.shape, entry.layout, program.mesh()));
  }
  std::set<std::string_view> names;
  for (const Graph& graph : program.graphs()) {
    check(names.insert(graph.name()).second, ErrorCode::kInternal, "program {}: two graphs are named {}", program.name,
          graph.name());
    verify(graph);
    for (int32_t i = 0; i < graph.size(); ++i) {
      const Node& node = graph.node(NodeId{i});
      if (node.op == Op::kParam || node.op == Op::kState) check_state(program, graph, node.name, {NodeId{i}, 0});
    }
    for (const NamedValue& update : graph.updates()) check_state(program, graph, update.name, update.value);
  }
}

}  // namespace octet
