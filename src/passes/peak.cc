#include "passes/peak.h"

#include <algorithm>

#include "passes/plan_memory.h"
#include "passes/storage.h"

namespace octet {

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
