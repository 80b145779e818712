// Which values of a graph share memory, and from when to when each piece of memory is needed. No offsets yet.
//
// Views lie in what they show; results take over the buffer of an input that dies where the op's facts allow; the value
// that becomes a state's new contents is made in the state itself when nothing reads the old contents afterwards.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/plan.h"

namespace octet {

struct Storage {
  BufferRef::Kind kind = BufferRef::Kind::kArena;
  int32_t index = -1;            // of the state entry or input
  int64_t bytes = 0;             // as the type says, not aligned
  int32_t first = 0, last = -1;  // nodes; what outlives the graph has last = graph.size()
  // Kept for backward between these nodes; none when saved_last < 0.
  int32_t saved_first = 0, saved_last = -1;
};

struct GraphStorage {
  std::vector<std::vector<int32_t>> of;  // [node][result]: index of its storage, -1 when nobody uses the result
  std::vector<Storage> storages;
  std::vector<NodeId> inputs;
};

GraphStorage assign_storage(const Program& program, const Graph& graph);

// The node, or graph.size() for outputs and updates, that uses each result last, an async collective until its join;
// -1 for none.
ValueTable<int32_t> last_uses(const Graph& graph);

}  // namespace octet
