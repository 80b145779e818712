// The one mechanism behind graph-to-graph passes: walk the old graph in order, copy or replace each node into a new
// one.
#pragma once

#include <functional>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"

namespace octet {

class Rewriter {
 public:
  explicit Rewriter(const Graph& old_graph);

  const Graph& old_graph() const { return old_; }
  Graph& graph() { return new_; }
  Builder& builder() { return builder_; }

  Value map(Value old_value) const;            // the new value standing for an old one; none maps to none
  void set(Value old_value, Value new_value);  // replace: later uses of old_value read new_value
  NodeId copy(NodeId old_id);                  // copies a node with mapped inputs and sets its results
  bool is_mapped(Value old_value) const;

  // Copies outputs and updates (those not yet re-made), removes dead nodes, and returns the new graph.
  Graph finish();

 private:
  const Graph& old_;
  Graph new_;
  Builder builder_;
  std::vector<std::vector<Value>> map_;
};

// Drops nodes no output or update depends on (inputs stay). Returns whether anything went.
bool remove_dead_nodes(Graph& graph);

// Merges nodes that compute the same value: same op, inputs, attrs, types and phase (a recomputed value stays apart
// from the saved one; dropouts differ in their key). Returns "changed".
bool merge_common_nodes(Graph& graph);

}  // namespace octet
