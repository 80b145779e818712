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

const Graph& peak_graph(const Plan& plan) {
  const auto& graphs = plan.program.graphs();
  return *std::max_element(graphs.begin(), graphs.end(), [&](const Graph& a, const Graph& b) {
    return plan.graphs.at(a.name()).arena_bytes < plan.graphs.at(b.name()).arena_bytes;
  });
}

std::vector<LivePiece> live_at_peak(const Plan& plan, const Graph& graph) {
  const NodeId peak = plan.graphs.at(graph.name()).peak_node;
  const GraphStorage storage = assign_storage(plan.program, graph);
  std::vector<Value> makers(storage.storages.size(), Value::none());
  for (int32_t i = 0; i < graph.size(); ++i) {
    const auto& results = storage.of[static_cast<size_t>(i)];
    for (size_t r = 0; r < results.size(); ++r) {
      if (results[r] < 0) continue;
      Value& maker = makers[static_cast<size_t>(results[r])];
      if (!maker.exists()) maker = {NodeId{i}, static_cast<int32_t>(r)};
    }
  }
  std::vector<LivePiece> live;
  for (size_t s = 0; s < makers.size(); ++s) {
    const Storage& piece = storage.storages[s];
    if (piece.kind != BufferRef::Kind::kArena || !makers[s].exists()) continue;
    const int32_t at = index(peak), last = std::max(piece.first, piece.last);
    if (at < piece.first || at > last) continue;
    const Node& node = graph.node(makers[s]);
    live.push_back({.name = node.name,
                    .op = node_label(node),
                    .layer = node.layer,
                    .type = graph.type(makers[s]),
                    .bytes = arena_bytes_of(piece.bytes, plan.target),
                    .first = piece.first,
                    .last = last,
                    .kept = piece.saved_first <= at && at <= piece.saved_last});
  }
  std::stable_sort(live.begin(), live.end(), [](const LivePiece& a, const LivePiece& b) { return a.bytes > b.bytes; });
  return live;
}

}  // namespace octet
