// The Plan: what plan_memory makes of a Program and an executor runs. Plain data; exact bytes.
//
// An executor runs the nodes in order, except leaves (input, param, state) and views whose buffer is their input's; a
// constant writes its buffer at its place like any node. Results may lie in an input's buffer where the op's facts
// allow. A value that is a state's update lies in that state's buffer where nothing reads the old contents afterwards;
// an update whose value lies elsewhere is copied into the state after the last node. Outputs stay until the next run.
//
// An async collective may run beside the nodes behind it, until its join: the first node that reads a result, the next
// collective that is not async, the second next that is, or the graph's end. Until then its operands keep their
// buffers. Collectives of a graph run one after the other. Executors that have one thing at a time to run may run it in
// its place.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/program.h"
#include "ir/target.h"

namespace octet {

struct BufferRef {
  enum class Kind : uint8_t {
    kNone,   // nobody uses this result: kernels get a null pointer
    kArena,  // offset into the arena
    kState,  // the whole of state entry `index`
    kInput,  // staging buffer `index` of the graph's inputs (order of the input nodes)
  };
  Kind kind = Kind::kNone;
  int32_t index = -1;
  int64_t offset = 0;  // bytes into the arena, state or input buffer (views)
};

struct GraphPlan {
  std::vector<std::vector<BufferRef>> buffers;  // [node][result]
  std::vector<NodeId> inputs;                   // the input nodes, in order
  int64_t arena_bytes = 0;                      // peak, without workspace
  int64_t live_bytes = 0;                       // the most that is live at one node: the arena's lower bound
  int64_t saved_bytes = 0;           // of it: made in the forward phase and read in the backward phase, at its maximum
  NodeId peak_node = NodeId::kNone;  // where the peak is reached
};

struct Plan {
  Program program;
  Target target;
  std::map<std::string, GraphPlan> graphs;
  int64_t arena_bytes = 0;  // the largest graph's arena plus workspace: shared by all graphs
  int64_t workspace_offset = 0, workspace_bytes = 0;
  int64_t state_bytes = 0;
  int64_t input_bytes = 0;
  int64_t total_bytes() const { return arena_bytes + state_bytes + input_bytes; }
};

// The node, or the member of a fusion, that needs the other ranks: any collective but take_part; null: none.
const Node* exchange_of(const Node& node);
inline bool exchanges(const Node& node) { return exchange_of(node) != nullptr; }
double exchanged_bytes(const Graph& graph, const Node& node);  // by the cost of the collective; a node that exchanges
bool is_async(const Node& node);
// By node: the join of an async collective, graph.size() at the graph's end; -1 for other nodes.
std::vector<int32_t> joins_of(const Graph& graph);

// What forward keeps for backward: results of forward nodes that backward (or recomputation) reads, views resolved to
// what they show. Leaves are not among them: they are there anyway.
struct SavedValue {
  std::string name;
  std::string op;
  int32_t layer;
  TensorType type;
  int64_t bytes;
};
std::vector<SavedValue> saved_for_backward(const Graph& graph);

}  // namespace octet
