// Graph. Types come from the facts of each op; this file knows no op by name but leaves
// and the fusion node.
#include "ir/graph.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "ir/facts.h"

namespace octet {
namespace {

std::string leaf_key(Op op, std::string_view name) { return fmt::format("{}:{}", static_cast<int>(op), name); }

std::string input_range(const OpInfo& info) {
  if (info.max_inputs < 0) return fmt::format("at least {}", info.min_inputs);
  if (info.max_inputs == info.min_inputs) return std::to_string(info.min_inputs);
  return fmt::format("{} to {}", info.min_inputs, info.max_inputs);
}

void check_result(const Node& node, const TensorType& type) {
  check(type.shape.rank() >= 1 && can_be_stored(type.shape), ErrorCode::kInvalidArgument,
        "{}: result type {} in node {}: dims must be positive and elements at most 2^56", op_name(node.op),
        to_string(type), node.name);
}

}  // namespace

bool can_be_stored(const Shape& shape) {
  constexpr int64_t kMaxElements = int64_t{1} << 56;  // so that bytes and products of two dims stay within int64
  int64_t elements = 1;
  return std::ranges::all_of(shape.dims, [&](int64_t dim) {
    return dim > 0 && !__builtin_mul_overflow(elements, dim, &elements) && elements <= kMaxElements;
  });
}

const char* phase_name(Phase phase) {
  constexpr const char* kNames[] = {"forward", "backward", "recompute", "optimizer"};
  return kNames[static_cast<size_t>(phase)];
}

namespace {
constexpr const char* kRoleNames[] = {"",        "train", "accumulate", "train_stats", "apply",
                                      "prepare", "eval",  "forward",    "sample",      "copy_blocks"};
}  // namespace

const char* graph_role_name(GraphRole role) { return kRoleNames[static_cast<size_t>(role)]; }

GraphRole graph_role(std::string_view name) {
  const auto found = std::ranges::find(kRoleNames, name);
  return found == std::end(kRoleNames) ? GraphRole::kNone : static_cast<GraphRole>(found - std::begin(kRoleNames));
}

NodeId Graph::add(Node node) {
  const OpInfo& info = op_info(node.op);
  auto min_inputs = static_cast<size_t>(info.min_inputs);
  while (node.inputs.size() > min_inputs && !node.inputs.back().exists()) node.inputs.pop_back();
  check(node.inputs.size() >= min_inputs &&
            (info.max_inputs < 0 || node.inputs.size() <= static_cast<size_t>(info.max_inputs)),
        ErrorCode::kInvalidArgument, "{}: {} inputs (want {}) in node {}", info.name, node.inputs.size(),
        input_range(info), node.name);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    Value input = node.inputs[i];
    bool optional = i >= min_inputs && info.max_inputs >= 0;
    if (!input.exists() && optional) continue;
    bool known = index(input.node) >= 0 && index(input.node) < size() && input.result >= 0 &&
                 static_cast<size_t>(input.result) < this->node(input.node).results.size();
    check(known, ErrorCode::kInvalidArgument,
          "{}: input {} is #{}.{}, which graph {} of {} nodes does not have, in node {}", info.name, i,
          index(input.node), input.result, name_, size(), node.name);
  }
  node.results = infer_types(*this, node);
  for (const TensorType& type : node.results) check_result(node, type);
  node.layouts = infer_layouts(*this, node);
  NodeId id{size()};
  if (is_named_leaf(node.op)) {
    check(!node.name.empty(), ErrorCode::kInvalidArgument, "{}: a leaf needs a name", info.name);
    bool added = leaves_.emplace(leaf_key(node.op, node.name), id).second;
    check(added, ErrorCode::kInvalidArgument, "{}: graph {} already has one named {}", info.name, name_, node.name);
    if (node.op == Op::kInput) inputs_.push_back(id);
  }
  nodes_.push_back(std::move(node));
  return id;
}

Value Graph::find_leaf(Op op, std::string_view name) const {
  auto found = leaves_.find(leaf_key(op, name));
  return found == leaves_.end() ? Value::none() : Value{found->second, 0};
}

Value Graph::find_leaf(std::string_view name) const {
  for (Op op : {Op::kInput, Op::kParam, Op::kState}) {
    if (Value found = find_leaf(op, name); found.exists()) return found;
  }
  return Value::none();
}

const Layout& Graph::layout(Value value) const {
  static const Layout copies;
  const std::vector<Layout>& layouts = node(value).layouts;
  return layouts.empty() ? copies : layouts[static_cast<size_t>(value.result)];
}

Value Graph::output(std::string_view name) const {
  std::vector<std::string> names;
  for (const NamedValue& output : outputs_) {
    if (output.name == name) return output.value;
    names.push_back(output.name);
  }
  fail(ErrorCode::kNotFound, "graph {} has no output '{}'; it has: {}", name_, name, fmt::join(names, ", "));
}

std::vector<std::vector<int32_t>> Graph::count_uses() const {
  std::vector<std::vector<int32_t>> uses(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) uses[i].resize(nodes_[i].results.size());
  auto count = [&](Value value) {
    if (value.exists()) ++uses[slot(value.node)][static_cast<size_t>(value.result)];
  };
  for (const Node& node : nodes_) {
    for (Value input : node.inputs) count(input);
  }
  for (const NamedValue& output : outputs_) count(output.value);
  for (const NamedValue& update : updates_) count(update.value);
  return uses;
}

void Graph::keep_nodes(const std::vector<bool>& keep) {
  std::vector<NodeId> moved(nodes_.size(), NodeId::kNone);
  auto remap = [&](Value& value) {
    if (!value.exists()) return;
    NodeId to = moved[slot(value.node)];
    check(to != NodeId::kNone, ErrorCode::kInternal, "graph {}: #{} is dropped but still used", name_,
          index(value.node));
    value.node = to;
  };
  size_t next = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!keep[i]) continue;
    for (Value& input : nodes_[i].inputs) remap(input);
    moved[i] = NodeId{static_cast<int32_t>(next)};
    if (next != i) nodes_[next] = std::move(nodes_[i]);
    ++next;
  }
  nodes_.resize(next);
  for (NamedValue& output : outputs_) remap(output.value);
  for (NamedValue& update : updates_) remap(update.value);
  std::erase_if(leaves_, [&](const auto& leaf) { return !keep[slot(leaf.second)]; });
  for (auto& [key, id] : leaves_) id = moved[slot(id)];
  std::erase_if(inputs_, [&](NodeId id) { return !keep[slot(id)]; });
  for (NodeId& id : inputs_) id = moved[slot(id)];
}

std::string describe(const Graph& graph, NodeId id) {
  if (index(id) < 0 || index(id) >= graph.size()) return fmt::format("node #{} (not in {})", index(id), graph.name());
  const Node& node = graph.node(id);
  return fmt::format("node {} ({}, #{})", node.name, op_name(node.op), index(id));
}

}  // namespace octet
