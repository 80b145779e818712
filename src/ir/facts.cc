// The table of facts, one entry per row of ops.def.
#include "ir/facts.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace octet {

const OpFacts& op_facts(Op op) {
  static const std::array table = {
#define OCTET_OP(suffix, name, ...) &facts::name,
#include "ir/ops.def"
  };
  auto position = static_cast<size_t>(op);
  check(position < table.size(), ErrorCode::kInternal, "op: no such enumerator {}", position);
  return *table[position];
}

std::vector<size_t> addends(const Graph& graph, const Node& node) {
  std::vector<size_t> inputs;
  for (const int input : op_facts(node.op).addends) {
    const auto i = static_cast<size_t>(input);
    if (i < node.inputs.size() && node.inputs[i].exists() && graph.type(node.inputs[i]) == node.results[0])
      inputs.push_back(i);
  }
  return inputs;
}

ValueTable<char> batch_rows(const Graph& graph) {
  ValueTable<char> is_rows(graph);
  for_each_result(graph, [&](Value value, const Node& node) {
    if (node.op == Op::kInput || node.op == Op::kState) is_rows[value] = node.attr<std::string>("rows") == "batch";
    const auto follows = op_facts(node.op).layouts.rows;
    for (size_t i = 0; i < node.inputs.size() && follows != nullptr && !is_rows[value]; ++i)
      is_rows[value] = node.inputs[i].exists() && is_rows[node.inputs[i]] &&
                       follows(graph, node, static_cast<size_t>(value.result), i);
  });
  return is_rows;
}

std::vector<TensorType> infer_types(const Graph& graph, const Node& node) {
  check_attrs(node.op, node.attrs, node.name);
  return op_facts(node.op).infer(graph, node);
}

std::vector<Layout> infer_layouts(const Graph& graph, const Node& node) {
  if (graph.mesh().ranks() == 1) return {};
  std::vector<Layout> layouts =
      op_info(node.op).max_inputs == 0 ? node.layouts : op_facts(node.op).layouts.place(graph, node);
  if (std::all_of(layouts.begin(), layouts.end(), [](const Layout& layout) { return layout.copies(); })) return {};
  check(layouts.size() == node.results.size(), ErrorCode::kInternal, "{}: {} layouts of {} results in node {}",
        op_name(node.op), layouts.size(), node.results.size(), node.name);
  for (size_t r = 0; r < layouts.size(); ++r) check_layout(layouts[r], node.results[r].shape);
  return layouts;
}

namespace {

bool works_in_place_on(const Node& node, int input) {
  const OpFacts& facts = op_facts(node.op);
  if (facts.float32_in_place && node.results[0].dtype != DType::kF32) return false;
  return std::ranges::find(facts.in_place, input) != facts.in_place.end();
}

bool goes_by_rows(const Node& node) { return op_facts(node.op).elementwise || op_facts(node.op).row_wise; }

// Which input of the body `value` lies in when at least one member on the way must alias; -1: none. A value that is
// only views of an input is not in its place: the fusion may copy it.
int aliased_leaf(const Graph& body, Value value, bool overwrites = false) {
  for (;;) {
    const Node& maker = body.node(value);
    if (maker.op == Op::kInput) break;
    const int aliased = must_alias(maker, value.result);
    if (aliased < 0 && !(op_facts(maker.op).view && value.result == 0)) return -1;
    overwrites |= aliased >= 0;
    value = maker.inputs[static_cast<size_t>(std::max(aliased, 0))];
  }
  if (!overwrites) return -1;
  return static_cast<int>(std::ranges::find(body.inputs(), value.node) - body.inputs().begin());
}

bool fusion_may_take_over(const Graph& body, int result, int input) {
  const Value made = body.outputs().at(static_cast<size_t>(result)).value;
  const Node& maker = body.node(made);
  const bool own_only = op_facts(maker.op).members_independent;
  if (!own_only && (made.result != 0 || !goes_by_rows(maker))) return false;
  if (input < 0 || input >= std::ssize(body.inputs())) return false;
  const NodeId leaf = body.inputs()[static_cast<size_t>(input)];
  if (!(body.shape({leaf, 0}) == maker.results[0].shape)) return false;
  for (int32_t i = 0; i < body.size(); ++i) {
    const Node& reader = body.node(NodeId{i});
    int reads = 0;
    for (int slot = 0; slot < static_cast<int>(reader.inputs.size()); ++slot) {
      if (!(reader.inputs[static_cast<size_t>(slot)] == Value{leaf, 0})) continue;
      if (own_only) {
        if (i != index(made.node) || !may_take_over(maker, made.result, slot)) return false;
        continue;
      }
      // A broadcast operand has another shape and is read again for later rows.
      if (!goes_by_rows(reader) || !works_in_place_on(reader, slot)) return false;
      if (!(reader.results[0].shape == body.shape({leaf, 0}))) return false;
      ++reads;
    }
    if (reads > 0 && i > index(made.node)) return false;
    if (reads > 1 && i == index(made.node) && !op_facts(reader.op).elementwise) return false;
  }
  return std::ranges::none_of(body.outputs(), [&](const NamedValue& output) { return output.value == Value{leaf, 0}; });
}

}  // namespace

bool may_take_over(const Node& node, int result, int input) {
  if (must_alias(node, result) == input) return true;
  if (node.op == Op::kFusion) return fusion_may_take_over(*node.body, result, input);
  const OpFacts& facts = op_facts(node.op);
  if (result == 0) return works_in_place_on(node, input);
  return std::ranges::find(facts.in_place_others, std::pair{result, input}) != facts.in_place_others.end();
}

int must_alias(const Node& node, int result) {
  if (node.op == Op::kFusion)
    return aliased_leaf(*node.body, node.body->outputs().at(static_cast<size_t>(result)).value);
  const std::vector<int>& inputs = op_facts(node.op).must_alias;
  return static_cast<size_t>(result) < inputs.size() ? inputs[static_cast<size_t>(result)] : -1;
}

std::vector<int> overwritten_inputs(const Node& node) {
  if (node.op != Op::kFusion) return op_facts(node.op).must_alias;
  std::vector<int> inputs;
  for (const Node& member : node.body->nodes()) {
    for (int input : overwritten_inputs(member)) {
      const int leaf = aliased_leaf(*node.body, member.inputs[static_cast<size_t>(input)], true);
      if (leaf >= 0 && std::ranges::find(inputs, leaf) == inputs.end()) inputs.push_back(leaf);
    }
  }
  return inputs;
}

Cost node_cost(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  return op_facts(node.op).cost(graph, node);
}

}  // namespace octet
