#include "passes/recompute.h"

#include <algorithm>

#include "base/error.h"
#include "ir/facts.h"
#include "ir/rewrite.h"

namespace octet {
namespace {

// Elementwise functions, norms and quantization cost below 32 FLOPs per byte of their result, in one-byte codes too; a
// product costs 2 K / 2 per bf16 result with K in the hundreds or more, flash attention as much per key.
constexpr double kMaxFlopsPerByte = 64;

bool is_leaf(const Node& node) { return op_info(node.op).max_inputs == 0; }
bool is_backward(const Node& node) { return node.phase == Phase::kBackward; }
// Scales and other scalars are never made again: clones read the forward's.
bool is_scalar(const TensorType& type) { return type.shape.elements() <= 1; }

// Which forward values backward and clones read from forward; the others they read from clones.
class Availability {
 public:
  explicit Availability(const Graph& graph) : graph_(graph) {
    for (const Node& node : graph.nodes()) {
      std::vector<bool>& kept = kept_.emplace_back();
      for (const TensorType& type : node.results) kept.push_back(is_leaf(node) || is_scalar(type));
      remade_.push_back(false);
    }
    for (const Node& node : graph.nodes()) {
      if (!is_backward(node)) continue;
      for (Value input : node.inputs) {
        if (input.exists() && graph.node(input).phase == Phase::kForward) kept(input) = true;
      }
    }
  }

  bool is_kept(Value v) const {
    return kept_[static_cast<size_t>(index(v.node))][static_cast<size_t>(v.result)] ||
           graph_.node(v).phase != Phase::kForward;
  }

  // In node order, so that what a value is made from has been decided before it.
  void choose_selective() {
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(NodeId{i});
      if (node.phase != Phase::kForward || is_leaf(node)) continue;
      for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) {
        Value value{NodeId{i}, r};
        if (kept(value) && !is_scalar(graph_.type(value))) try_to_drop(value);
      }
    }
    // A node that is cloned anyway gives all its results.
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(NodeId{i});
      if (!remade_[static_cast<size_t>(i)]) continue;
      for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) {
        if (!is_scalar(graph_.type({NodeId{i}, r}))) kept({NodeId{i}, r}) = false;
      }
    }
  }

  void choose_full() {
    std::vector<std::vector<bool>> leaves_layer;
    for (const Node& node : graph_.nodes()) leaves_layer.emplace_back(node.results.size(), false);
    for (const Node& node : graph_.nodes()) {
      if (node.phase != Phase::kForward) continue;
      for (Value v : node.inputs) {
        if (v.exists() && graph_.node(v).layer != node.layer) {
          leaves_layer[static_cast<size_t>(index(v.node))][static_cast<size_t>(v.result)] = true;
        }
      }
    }
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(NodeId{i});
      if (node.phase != Phase::kForward || is_leaf(node)) continue;
      for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) {
        Value value{NodeId{i}, r};
        if (leaves_layer[static_cast<size_t>(i)][static_cast<size_t>(r)]) {
          kept(value) = true;
        } else if (node.layer >= 0) {
          kept(value) = is_scalar(graph_.type(value));
        }
      }
    }
  }

 private:
  std::vector<bool>::reference kept(Value v) {
    return kept_[static_cast<size_t>(index(v.node))][static_cast<size_t>(v.result)];
  }

  void try_to_drop(Value value) {
    std::vector<NodeId> chain;
    double flops = 0;
    bool cheap = extend(value.node, graph_.node(value).layer, chain, flops);
    double bytes = static_cast<double>(graph_.type(value).bytes());
    if (cheap && flops <= kMaxFlopsPerByte * bytes) {
      kept(value) = false;
      for (NodeId id : chain) remade_[static_cast<size_t>(index(id))] = true;
    }
  }

  // Adds what must run again to make `id`; false when a node on the way is not cheap or belongs to another layer.
  bool extend(NodeId id, int32_t layer, std::vector<NodeId>& chain, double& flops) {
    if (remade_[static_cast<size_t>(index(id))] || std::find(chain.begin(), chain.end(), id) != chain.end()) {
      return true;
    }
    const Node& node = graph_.node(id);
    if (!op_facts(node.op).cheap_to_recompute || node.layer != layer) return false;
    chain.push_back(id);
    flops += node_cost(graph_, id).flops;
    return std::all_of(node.inputs.begin(), node.inputs.end(), [&](Value input) {
      return !input.exists() || is_kept(input) || extend(input.node, layer, chain, flops);
    });
  }

  const Graph& graph_;
  std::vector<std::vector<bool>> kept_;
  std::vector<bool> remade_;  // by node: it has a clone
};

// Copies the graph; a backward node's dropped inputs are cloned right before it, once each.
class Cloner {
 public:
  Cloner(const Graph& graph, const Availability& availability)
      : old_(graph),
        availability_(availability),
        rewriter_(graph),
        clones_(static_cast<size_t>(graph.size()), NodeId::kNone) {}

  Graph run() {
    for (int32_t i = 0; i < old_.size(); ++i) {
      const Node& node = old_.node(NodeId{i});
      if (!is_backward(node)) {
        rewriter_.copy(NodeId{i});
        continue;
      }
      Node copy = node;
      for (Value& input : copy.inputs) input = for_backward(input);
      NodeId made = rewriter_.graph().add(std::move(copy));
      for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) rewriter_.set({NodeId{i}, r}, {made, r});
    }
    return rewriter_.finish();
  }

 private:
  Value for_backward(Value v) {
    if (!v.exists() || availability_.is_kept(v)) return rewriter_.map(v);
    NodeId& clone = clones_[static_cast<size_t>(index(v.node))];
    if (clone == NodeId::kNone) {
      Node copy = old_.node(v);
      for (Value& input : copy.inputs) input = for_backward(input);
      copy.phase = Phase::kRecompute;
      clone = rewriter_.graph().add(std::move(copy));
    }
    return {clone, v.result};
  }

  const Graph& old_;
  const Availability& availability_;
  Rewriter rewriter_;
  std::vector<NodeId> clones_;  // by forward node
};

}  // namespace

Graph recompute_graph(const Graph& graph, Recompute kind) {
  if (kind == Recompute::kNone || std::none_of(graph.nodes().begin(), graph.nodes().end(), is_backward)) return graph;
  Availability availability(graph);
  if (kind == Recompute::kSelective) {
    availability.choose_selective();
  } else {
    availability.choose_full();
  }
  return Cloner(graph, availability).run();
}

bool recompute(Program& program, const CompileOptions& options) {
  bool changed = false;
  for (Graph& graph : program.graphs()) {
    Graph made = recompute_graph(graph, options.recompute);
    bool cloned = std::any_of(made.nodes().begin(), made.nodes().end(),
                              [](const Node& node) { return node.phase == Phase::kRecompute; });
    if (!cloned) continue;
    graph = std::move(made);
    changed = true;
  }
  return changed;
}

}  // namespace octet
