// The table of reference kernels (from ops.def) and the evaluation of whole graphs with them: shared by the
// interpreter, by fusion bodies and by the conformance tests.
#include <unordered_map>

#include "ir/facts.h"
#include "kernels/cpu/reference.h"

namespace octet::cpu {
namespace {

[[noreturn]] void not_a_kernel(const Node& node) {
  fail(ErrorCode::kInternal, "{} \"{}\" is evaluated by the graph's evaluator, not by a kernel", op_name(node.op),
       node.name);
}

}  // namespace

namespace reference {
void input(const Node& node, RefInputs, RefResults) { not_a_kernel(node); }
void param(const Node& node, RefInputs, RefResults) { not_a_kernel(node); }
void state(const Node& node, RefInputs, RefResults) { not_a_kernel(node); }
void fusion(const Node& node, RefInputs, RefResults) { not_a_kernel(node); }
void all_reduce(const Node& node, RefInputs, RefResults) { not_a_kernel(node); }
void reduce_scatter(const Node& node, RefInputs, RefResults) { not_a_kernel(node); }
void all_gather(const Node& node, RefInputs, RefResults) { not_a_kernel(node); }
void all_to_all(const Node& node, RefInputs, RefResults) { not_a_kernel(node); }
void take_part(const Node& node, RefInputs, RefResults) { not_a_kernel(node); }
void constant(const Node& node, RefInputs, RefResults out) {
  std::fill(out[0].values.begin(), out[0].values.end(), node.attr<double>("value"));
}
}  // namespace reference

ReferenceFn reference_kernel(Op op) {
#define OCTET_OP(suffix, name, ...) &reference::name,
  static constexpr ReferenceFn kTable[] = {
#include "ir/ops.def"
  };
  return kTable[static_cast<size_t>(op)];
}

void round_values(RefTensor& tensor, bool round_f32) {
  switch (tensor.type.dtype) {
    case DType::kF64: return;
    case DType::kF32:
      if (!round_f32) return;
      for (double& value : tensor.values) value = static_cast<double>(static_cast<float>(value));
      return;
    default:
      for (double& value : tensor.values) value = round_to(tensor.type.dtype, value);
  }
}

RefTensor zeros(const TensorType& type) {
  return {type, std::vector<double>(static_cast<size_t>(type.shape.elements()))};
}

RefTensor load_tensor(const TensorType& type, const void* data) {
  RefTensor tensor = zeros(type);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor[i] = load_element(type.dtype, data, i);
  return tensor;
}

void store_tensor(const RefTensor& tensor, void* data) {
  for (int64_t i = 0; i < tensor.size(); ++i) store_element(tensor.type.dtype, data, i, tensor[i]);
}

std::vector<RefTensor> evaluate_node(const Graph& graph, const Node& node, RefInputs in, bool round_f32,
                                     const CollectiveFn& collective) {
  if (node.op == Op::kFusion) {
    check(node.body != nullptr, ErrorCode::kInternal, "fusion \"{}\" of graph {} has no body", node.name, graph.name());
    // The body's input nodes are this node's inputs, in order.
    std::unordered_map<std::string, const RefTensor*> by_name;
    const std::vector<NodeId>& inputs = node.body->inputs();
    for (size_t i = 0; i < inputs.size(); ++i) by_name[node.body->node(inputs[i]).name] = in[i];
    return evaluate(
               *node.body, [&](const Node& inner) -> const RefTensor& { return *by_name.at(inner.name); }, round_f32,
               {}, collective)
        .outputs;
  }
  if (op_facts(node.op).collective) {
    check(static_cast<bool>(collective), ErrorCode::kInvalidArgument, "{} \"{}\" of graph {} needs the ranks of a mesh",
          op_name(node.op), node.name, graph.name());
    return collective(graph, node, in);
  }
  std::vector<RefTensor> results;
  for (const TensorType& type : node.results) results.push_back(zeros(type));
  reference_kernel(node.op)(node, in, results);
  for (RefTensor& result : results) round_values(result, round_f32);
  return results;
}

Evaluated evaluate(const Graph& graph, const LeafFn& leaf, bool round_f32, const NodeObserver& observe,
                   const CollectiveFn& collective) {
  const auto uses = graph.count_uses();
  std::vector<int64_t> remaining(uses.size(), 0);  // per node: uses of its results not yet evaluated
  for (size_t i = 0; i < uses.size(); ++i) {
    for (int32_t count : uses[i]) remaining[i] += count;
  }
  std::vector<std::vector<RefTensor>> made(uses.size());
  std::vector<const RefTensor*> leaves(uses.size(), nullptr);
  const auto find = [&](Value value) -> const RefTensor* {
    if (!value.exists()) return nullptr;
    const auto id = static_cast<size_t>(index(value.node));
    return leaves[id] != nullptr ? leaves[id] : &made[id][static_cast<size_t>(value.result)];
  };
  std::vector<const RefTensor*> in;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    const auto id = static_cast<size_t>(i);
    if (node.op == Op::kInput || node.op == Op::kParam || node.op == Op::kState) {
      if (remaining[id] > 0) leaves[id] = &leaf(node);
      continue;
    }
    if (remaining[id] == 0) continue;
    in.clear();
    for (Value value : node.inputs) in.push_back(find(value));
    made[id] = evaluate_node(graph, node, in, round_f32, collective);
    if (observe) observe(node, in, made[id]);
    for (Value value : node.inputs) {
      if (value.exists() && --remaining[static_cast<size_t>(index(value.node))] == 0) {
        made[static_cast<size_t>(index(value.node))].clear();
      }
    }
  }
  Evaluated result;
  for (const NamedValue& output : graph.outputs()) result.outputs.push_back(*find(output.value));
  for (const NamedValue& update : graph.updates()) result.updates.push_back(*find(update.value));
  return result;
}

}  // namespace octet::cpu
