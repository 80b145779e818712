#include "passes/plan_memory.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/integers.h"
#include "ir/facts.h"
#include "passes/arena.h"
#include "passes/storage.h"

namespace octet {

namespace {

int64_t alignment_of(const Target& target) { return std::max<int64_t>(target.buffer_alignment, 64); }

// The most that is kept for backward at one node.
int64_t max_saved(const GraphStorage& storage, int32_t times, int64_t alignment) {
  std::vector<int64_t> change(static_cast<size_t>(times) + 1, 0);
  for (const Storage& s : storage.storages) {
    if (s.saved_last < 0) continue;
    change[static_cast<size_t>(s.saved_first)] += round_up(s.bytes, alignment);
    change[static_cast<size_t>(s.saved_last) + 1] -= round_up(s.bytes, alignment);
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

using Kind = BufferRef::Kind;

class PlanWalk {
 public:
  PlanWalk(const Plan& plan, const Graph& graph, const GraphPlan& graph_plan)
      : plan_(plan), graph_(graph), buffers_(graph_plan), uses_(last_uses(graph)) {
    check(graph_plan.buffers.size() == static_cast<size_t>(graph.size()), ErrorCode::kInternal,
          "plan of graph {}: {} nodes, the graph has {}", graph.name(), graph_plan.buffers.size(), graph.size());
    dying_.resize(static_cast<size_t>(graph.size()) + 1);
  }

  void run() {
    for (int32_t i = 0; i < graph_.size(); ++i) {  // what is there before the first node
      if (is_named_leaf(graph_.node(NodeId{i}).op)) enter({NodeId{i}, 0});
    }
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(NodeId{i});
      if (is_named_leaf(node.op)) continue;
      for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) write({NodeId{i}, r});
      for (Value value : dying_[static_cast<size_t>(i)]) leave(value);
      for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) {
        if (use({NodeId{i}, r}) >= 0) enter({NodeId{i}, r});
      }
    }
    check_updates();
  }

 private:
  struct Place {  // sorts by address space, then address
    Kind kind;
    int32_t index;
    int64_t offset;
    auto operator<=>(const Place&) const = default;
  };
  struct Piece {
    int64_t end = 0;
    std::vector<Value> values;  // all of which are alive and show the same bytes
  };

  const BufferRef& ref(Value v) const { return buffers_.buffers[slot(v.node)][static_cast<size_t>(v.result)]; }
  int32_t use(Value v) const { return uses_[v]; }
  Place place(Value v) const { return {ref(v).kind, ref(v).index, ref(v).offset}; }

  int64_t capacity(const BufferRef& r) const {
    switch (r.kind) {
      case Kind::kNone: return 0;
      case Kind::kArena: return buffers_.arena_bytes;
      case Kind::kState: return plan_.program.states().at(static_cast<size_t>(r.index)).type.bytes();
      case Kind::kInput: return graph_.type({buffers_.inputs.at(static_cast<size_t>(r.index)), 0}).bytes();
    }
    return 0;
  }

  void write(Value value) {
    const BufferRef& r = ref(value);
    int64_t bytes = graph_.type(value).bytes();
    check((use(value) >= 0) <= (r.kind != Kind::kNone), ErrorCode::kInternal, "plan of graph {}: {} has no buffer",
          graph_.name(), describe(graph_, value.node));
    if (r.kind == Kind::kNone) return;
    check(r.offset >= 0 && r.offset + bytes <= capacity(r), ErrorCode::kInternal,
          "plan of graph {}: {} lies at {} + {} of {} bytes", graph_.name(), describe(graph_, value.node), r.offset,
          bytes, capacity(r));
    for (auto it = first_overlap(place(value), bytes); it != alive_.end() && overlaps(it, place(value), bytes); ++it) {
      for (Value other : it->second.values) {
        check(may_overwrite(value, other), ErrorCode::kInternal,
              "plan of graph {}: result {} of {} overwrites {}, which is read until node {}", graph_.name(),
              value.result, describe(graph_, value.node), describe(graph_, other.node), use(other));
      }
    }
  }

  std::map<Place, Piece>::iterator first_overlap(const Place& at, int64_t bytes) {
    auto it = alive_.lower_bound(at);
    if (it != alive_.begin() && overlaps(std::prev(it), at, bytes)) --it;
    return it;
  }
  static bool overlaps(std::map<Place, Piece>::iterator it, const Place& at, int64_t bytes) {
    return it->first.kind == at.kind && it->first.index == at.index && it->first.offset < at.offset + bytes &&
           at.offset < it->second.end;
  }

  bool may_overwrite(Value value, Value other) const {
    const Node& node = graph_.node(value);
    const OpFacts& facts = op_facts(node.op);
    if (other.node == value.node) return false;
    if (facts.view) return place(value) == place(node.inputs[0]) && place(other) == place(value);
    if (use(other) > index(value.node)) return false;
    bool allowed = false;
    for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i) {
      Value input = node.inputs[static_cast<size_t>(i)];
      if (!input.exists() || place(input) != place(other)) continue;
      if (!may_take_over(node, value.result, i) && !facts.elementwise) return false;
      allowed |= may_take_over(node, value.result, i);
    }
    return allowed && place(value) == place(other);
  }

  void enter(Value value) {
    if (ref(value).kind == Kind::kNone) return;
    Piece& piece = alive_[place(value)];
    piece.end = ref(value).offset + graph_.type(value).bytes();
    piece.values.push_back(value);
    if (use(value) >= 0) dying_[static_cast<size_t>(use(value))].push_back(value);
    if (use(value) < 0 || use(value) <= index(value.node)) leave(value);
  }

  void leave(Value value) {
    auto it = alive_.find(place(value));
    if (it == alive_.end()) return;
    std::erase(it->second.values, value);
    if (it->second.values.empty()) alive_.erase(it);
  }

  // After the last node every state holds its update or is copied from a buffer that still holds it.
  void check_updates() const {
    for (const NamedValue& update : graph_.updates()) {
      auto it = alive_.find(place(update.value));
      bool there = it != alive_.end() && std::ranges::find(it->second.values, update.value) != it->second.values.end();
      check(there, ErrorCode::kInternal, "plan of graph {}: the update of state {} is gone at the end", graph_.name(),
            update.name);
    }
  }

  const Plan& plan_;
  const Graph& graph_;
  const GraphPlan& buffers_;
  ValueTable<int32_t> uses_;
  std::vector<std::vector<Value>> dying_;  // by node: what it uses last
  std::map<Place, Piece> alive_;
};

}  // namespace

int64_t arena_bytes_of(int64_t bytes, const Target& target) {
  return std::max(round_up(bytes, alignment_of(target)), alignment_of(target));
}

Plan plan_memory(Program program, const Target& target) {
  collect_state(program);
  const int64_t alignment = alignment_of(target);
  Plan plan;
  for (const Graph& graph : program.graphs()) {
    GraphPlan graph_plan = plan_graph(program, graph, target);
    plan.arena_bytes = std::max(plan.arena_bytes, graph_plan.arena_bytes);
    for (NodeId id : graph_plan.inputs) plan.input_bytes += round_up(graph.node(id).results[0].bytes(), alignment);
    plan.graphs.emplace(graph.name(), std::move(graph_plan));
  }
  for (const StateEntry& entry : program.states()) plan.state_bytes += slot_bytes(entry, alignment);
  plan.workspace_offset = plan.arena_bytes;
  plan.workspace_bytes = target.workspace_bytes;
  plan.arena_bytes += target.workspace_bytes;
  plan.program = std::move(program);
  plan.target = target;
  return plan;
}

const Graph& peak_graph(const Plan& plan) {
  const auto& graphs = plan.program.graphs();
  return *std::ranges::max_element(graphs, [&](const Graph& a, const Graph& b) {
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
  std::ranges::stable_sort(live, [](const LivePiece& a, const LivePiece& b) { return a.bytes > b.bytes; });
  return live;
}

void check_plan(const Plan& plan) {
  for (const auto& [name, graph_plan] : plan.graphs) PlanWalk(plan, plan.program.graph(name), graph_plan).run();
  check(plan.workspace_offset + plan.workspace_bytes <= plan.arena_bytes, ErrorCode::kInternal,
        "plan: workspace ends at {}, the arena at {}", plan.workspace_offset + plan.workspace_bytes, plan.arena_bytes);
}

}  // namespace octet
