// The table of facts, one entry per row of ops.def.
#include "ir/facts.h"

#include <array>

#include "base/error.h"

namespace octet {

const OpFacts& op_facts(Op op) {
  static const std::array table = {
#define OCTET_OP(suffix, name, min_inputs, max_inputs, results) &facts::name,
#include "ir/ops.def"
#undef OCTET_OP
  };
  auto position = static_cast<size_t>(op);
  check(position < table.size(), ErrorCode::kInternal, "op: no such enumerator {}", position);
  return *table[position];
}

Cost node_cost(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  return op_facts(node.op).cost(graph, node);
}

}  // namespace octet
