// The graph: SSA nodes in topological order, leaves, named outputs and state updates.
//
// A Graph is a value: passes read one and build another (see rewrite.h). It knows shapes, types and names; it knows
// nothing of devices or memory. Node order is execution order. docs/ir.md is the specification.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/shape.h"
#include "ir/layout.h"
#include "ir/signature.h"

namespace octet {

enum class NodeId : int32_t { kNone = -1 };
inline int32_t index(NodeId id) { return static_cast<int32_t>(id); }
inline size_t slot(NodeId id) { return static_cast<size_t>(id); }  // of a vector with an element for every node

// One result of one node.
struct Value {
  NodeId node = NodeId::kNone;
  int32_t result = 0;
  static Value none() { return {}; }
  bool exists() const { return node != NodeId::kNone; }
  bool operator==(const Value&) const = default;
};
struct ValueHash {
  size_t operator()(Value v) const { return slot(v.node) * 8 + static_cast<size_t>(v.result); }
};

// Leaves with a name and contents of their own: not constants.
inline bool is_named_leaf(Op op) { return op == Op::kInput || op == Op::kParam || op == Op::kState; }

bool can_be_stored(const Shape& shape);  // dims are positive, and elements at most 2^56

// Where a node comes from: what recompute, the memory plan and reports ask.
enum class Phase : uint8_t { kForward, kBackward, kRecompute, kOptimizer };
const char* phase_name(Phase phase);

class Graph;

struct Node {
  Op op = Op::kConstant;
  std::vector<Value> inputs;
  std::vector<TensorType> results;  // of one rank's parts
  std::vector<Layout> layouts;      // of the results; empty: copies on all ranks
  Attrs attrs;
  std::string name;  // dotted path, "layers.3.mlp.up"; for leaves the leaf's name. Not unique except for leaves
  int32_t layer = -1;
  Phase phase = Phase::kForward;
  std::shared_ptr<const Graph> body;  // fusion only

  // An attribute, else its default of ops.def.
  template <typename T>
  const T& attr(std::string_view key) const {
    const Attr& value = attr_or_default(op, attrs, key);
    if (!std::holds_alternative<T>(value)) throw_bad_attr(key, true);
    return std::get<T>(value);
  }
  // An operand by its name in ops.def; none when it is absent.
  Value operand(std::string_view name) const {
    const auto i = static_cast<size_t>(operand_index(op, name));
    return i < inputs.size() ? inputs[i] : Value::none();
  }
};

// What a graph is for: what passes, steppers and runners ask. Its name is a handle and is printed.
enum class GraphRole : uint8_t {
  kNone,        // a graph by itself
  kTrain,       // forward and backward of a step's first micro-batch: writes gradients
  kAccumulate,  // of its other micro-batches: adds to them
  kTrainStats,  // kTrain with statistics of every GEMM's operands
  kApply,       // clip, optimiser, scales, compute copies
  kPrepare,     // compute copies from masters: after loading
  kEval,        // loss of one micro-batch
  kForward,     // serving: tokens to hidden rows, one for each bucket
  kSample,      // hidden rows to ids, one for each bucket
  kCopyBlocks,  // of a cache group
};
// Graphs that run once a micro-batch and add what they make to states: a data rank runs them for micro-batches of its
// own.
inline bool runs_per_micro_batch(GraphRole role) {
  return role == GraphRole::kTrain || role == GraphRole::kAccumulate || role == GraphRole::kTrainStats;
}
const char* graph_role_name(GraphRole role);  // "train_stats"; of kNone ""
GraphRole graph_role(std::string_view name);  // by its name; kNone for other names

struct NamedValue {
  std::string name;
  Value value;
};

class Graph {
 public:
  explicit Graph(std::string name = "main", GraphRole role = GraphRole::kNone) : name_(std::move(name)), role_(role) {}
  explicit Graph(GraphRole role) : Graph(graph_role_name(role), role) {}  // the one of its role in a program

  // Appends a node, infers its result types and layouts from the op's facts (leaves: taken from node.results and
  // node.layouts) and checks inputs; absent optional inputs at the end are dropped. Throws kInvalidArgument: "matmul:
  // inner dims differ: 64 vs 48 in node layer3.mlp.up".
  NodeId add(Node node);

  // The leaf of this op and name, or none. Leaf names are unique per op kind within a graph.
  Value find_leaf(Op op, std::string_view name) const;
  Value find_leaf(std::string_view name) const;                  // any leaf kind
  const std::vector<NodeId>& inputs() const { return inputs_; }  // the input leaves, in node order

  const std::string& name() const { return name_; }
  GraphRole role() const { return role_; }
  void set_role(GraphRole role) { set_role(role, graph_role_name(role)); }
  void set_role(GraphRole role, std::string name) { role_ = role, name_ = std::move(name); }
  Stage stage() const { return stage_; }
  void set_stage(Stage stage) { stage_ = stage; }

  const Mesh& mesh() const { return mesh_; }  // one rank: the graph has no layouts
  void set_mesh(const Mesh& mesh) { mesh_ = mesh; }

  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }
  const Node& node(NodeId id) const { return nodes_[slot(id)]; }
  const Node& node(Value value) const { return node(value.node); }
  // Names, attrs, layer and phase may change; an input only for a value of the same type that comes before the node.
  Node& mutable_node(NodeId id) { return nodes_[slot(id)]; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const TensorType& type(Value value) const { return node(value).results[static_cast<size_t>(value.result)]; }
  const Shape& shape(Value value) const { return type(value).shape; }
  DType dtype(Value value) const { return type(value).dtype; }
  const Layout& layout(Value value) const;

  // Named results for the caller, and new contents of state entries (at most one update per entry).
  std::vector<NamedValue>& outputs() { return outputs_; }
  const std::vector<NamedValue>& outputs() const { return outputs_; }
  std::vector<NamedValue>& updates() { return updates_; }
  const std::vector<NamedValue>& updates() const { return updates_; }
  Value output(std::string_view name) const;  // throws kNotFound listing what there is

  // Drops the nodes not in `keep` (one flag per node) and renumbers the rest. Throws kInternal when a kept node, an
  // output or an update reads a dropped one.
  void keep_nodes(const std::vector<bool>& keep);

  // uses[node][result] = number of uses by nodes, outputs and updates.
  std::vector<std::vector<int32_t>> count_uses() const;

 private:
  std::string name_;
  GraphRole role_ = GraphRole::kNone;
  Stage stage_ = Stage::kModel;
  Mesh mesh_;
  std::vector<Node> nodes_;
  std::vector<NamedValue> outputs_, updates_;
  std::unordered_map<std::string, NodeId> leaves_;  // "<op>:<name>"
  std::vector<NodeId> inputs_;
};

// A T for every result of a graph's nodes.
template <typename T>
class ValueTable {
 public:
  ValueTable() = default;
  explicit ValueTable(const Graph& graph, const T& initial = {}) {
    begin_.reserve(graph.nodes().size());
    for (const Node& node : graph.nodes()) {
      begin_.push_back(values_.size());
      values_.resize(values_.size() + node.results.size(), initial);
    }
  }
  decltype(auto) operator[](Value v) { return values_[begin_[slot(v.node)] + static_cast<size_t>(v.result)]; }
  decltype(auto) operator[](Value v) const { return values_[begin_[slot(v.node)] + static_cast<size_t>(v.result)]; }

 private:
  std::vector<size_t> begin_;  // by node
  std::vector<T> values_;
};

// fn(value, its node) for every result, in node order.
template <typename Fn>
void for_each_result(const Graph& graph, const Fn& fn) {
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) fn(Value{NodeId{i}, r}, node);
  }
}

// "node layers.0.attn (attention, #12)": for messages.
std::string describe(const Graph& graph, NodeId id);

}  // namespace octet
