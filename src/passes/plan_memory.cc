#include "passes/plan_memory.h"

#include <algorithm>

#include "base/error.h"
#include "passes/arena.h"
#include "passes/storage.h"

namespace octet {
namespace {

int64_t alignment_of(const Target& target) { return std::max<int64_t>(target.buffer_alignment, 64); }

int64_t align_up(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

// The most that is kept for backward at one node.
int64_t max_saved(const GraphStorage& storage, int32_t times, int64_t alignment) {
  std::vector<int64_t> change(static_cast<size_t>(times) + 1, 0);
  for (const Storage& s : storage.storages) {
    if (s.saved_last < 0) continue;
    change[static_cast<size_t>(s.saved_first)] += align_up(s.bytes, alignment);
    change[static_cast<size_t>(s.saved_last) + 1] -= align_up(s.bytes, alignment);
  }
  int64_t live = 0, most = 0;
  for (int64_t delta : change) most = std::max(most, live += delta);
  return most;
}

GraphPlan plan_graph(const Program& program, const Graph& graph, const Target& target) {
  GraphStorage storage = assign_storage(program, graph);
  const int32_t times = graph.size() + 1;  // one more for what outlives the nodes
  std::vector<ArenaItem> items;
  std::vector<size_t> item_of(storage.storages.size());
  for (size_t s = 0; s < storage.storages.size(); ++s) {
    const Storage& piece = storage.storages[s];
    if (piece.kind != BufferRef::Kind::kArena) continue;
    item_of[s] = items.size();
    items.push_back({.bytes = arena_bytes_of(piece.bytes, target),
                     .first = piece.first,
                     .last = std::max(piece.first, piece.last)});
  }
  ArenaSize size = place_in_arena(items, times);
  GraphPlan plan{.inputs = std::move(storage.inputs),
                 .arena_bytes = size.bytes,
                 .live_bytes = size.live_bytes,
                 .saved_bytes = max_saved(storage, times, alignment_of(target)),
                 .peak_node = size.peak >= 0 ? NodeId{std::min(size.peak, graph.size() - 1)} : NodeId::kNone};
  for (const auto& results : storage.of) {
    std::vector<BufferRef>& refs = plan.buffers.emplace_back();
    for (int32_t s : results) {
      if (s < 0) {
        refs.emplace_back();
        continue;
      }
      const Storage& piece = storage.storages[static_cast<size_t>(s)];
      bool arena = piece.kind == BufferRef::Kind::kArena;
      refs.push_back({.kind = piece.kind,
                      .index = arena ? -1 : piece.index,
                      .offset = arena ? items[item_of[static_cast<size_t>(s)]].offset : 0});
    }
  }
  return plan;
}

}  // namespace

int64_t arena_bytes_of(int64_t bytes, const Target& target) {
  return std::max(align_up(bytes, alignment_of(target)), alignment_of(target));
}

Plan plan_memory(Program program, const Target& target) {
  collect_state(program);
  const int64_t alignment = alignment_of(target);
  Plan plan;
  for (const Graph& graph : program.graphs()) {
    GraphPlan graph_plan = plan_graph(program, graph, target);
    plan.arena_bytes = std::max(plan.arena_bytes, graph_plan.arena_bytes);
    for (NodeId id : graph_plan.inputs) plan.input_bytes += align_up(graph.node(id).results[0].bytes(), alignment);
    plan.graphs.emplace(graph.name(), std::move(graph_plan));
  }
  for (const StateEntry& entry : program.states()) plan.state_bytes += align_up(entry.type.bytes(), alignment);
  plan.workspace_offset = plan.arena_bytes;
  plan.workspace_bytes = target.workspace_bytes;
  plan.arena_bytes += target.workspace_bytes;
  plan.program = std::move(program);
  plan.target = target;
  return plan;
}

}  // namespace octet
