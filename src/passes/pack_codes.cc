// order_codes: integer weights whose products have kernels for a physical order of the codes (Target) lie in it. The
// order is an attribute of the codes' leaf, by which the loader arranges them, and of the product that reads them.
#include <algorithm>

#include "ir/rewrite.h"
#include "passes/passes.h"

namespace octet {
namespace {

// The order this product wants for b, or null. `b` is the leaf of its codes, of so many experts side by side.
const IntegerProduct* wanted_order(const Node& product, DType x, const Node& b, int64_t experts, const Target& target) {
  if (b.op != Op::kState || !b.attrs.has("scaling") || !product.attr<bool>("trans_b")) return nullptr;
  const TensorType& codes = b.results[0];
  const IntegerProduct* wanted = target.find_product(x, codes.dtype);
  const bool fits = wanted != nullptr && !wanted->order.empty() && codes.shape[0] / experts % wanted->rows == 0 &&
                    codes.shape[1] % wanted->cols == 0;
  return fits ? wanted : nullptr;
}

// A scaled product of a fusion's body, or kNone.
NodeId product_of(const Graph& body) {
  for (int32_t i = 0; i < body.size(); ++i)
    if (body.node(NodeId{i}).op == Op::kScaledMatmul) return NodeId{i};
  return NodeId::kNone;
}

}  // namespace

bool order_codes(Graph& graph, const Target& target) {
  bool changed = false;
  const auto order = [&](const Node& product, DType x, NodeId leaf, int64_t experts, const auto& set) {
    const IntegerProduct* wanted = wanted_order(product, x, graph.node(leaf), experts, target);
    if (wanted == nullptr) return;
    Attrs& attrs = graph.mutable_node(leaf).attrs;
    changed |= attrs.get_or<std::string>("order", "") != wanted->order;
    attrs.set("order", wanted->order);
    set(wanted->order);
  };
  for (int32_t i = 0; i < graph.size(); ++i) {
    Node& node = graph.mutable_node(NodeId{i});
    const bool grouped = node.op == Op::kScaledGroupedMatmul;
    if (node.op == Op::kScaledMatmul || grouped) {
      order(node, graph.dtype(node.inputs[0]), node.inputs[2].node,
            grouped ? graph.shape(node.operand("offsets"))[0] - 1 : 1,
            [&](const std::string& name) { node.attrs.set("order", name); });
    }
    if (node.op != Op::kFusion) continue;
    const NodeId inner = product_of(*node.body);
    if (inner == NodeId::kNone) continue;
    const Node& product = node.body->node(inner);
    const Node& b = node.body->node(product.inputs[2]);
    if (b.op != Op::kInput) continue;
    // Leaf n of a body stands for input n.
    order(product, node.body->dtype(product.inputs[0]), node.inputs[slot(product.inputs[2].node)].node, 1,
          [&](const std::string& name) {
            Graph body = *node.body;
            body.mutable_node(inner).attrs.set("order", name);
            node.body = std::make_shared<const Graph>(std::move(body));
          });
  }
  return changed;
}

}  // namespace octet
