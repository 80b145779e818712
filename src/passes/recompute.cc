#include "passes/recompute.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "ir/facts.h"
#include "ir/rewrite.h"
#include "passes/use_graph.h"

namespace octet {
namespace {

// Elementwise functions, norms and quantization cost below 32 FLOPs per byte of their result, in one-byte codes too; a
// product costs 2 K / 2 per bf16 result with K in the hundreds or more, flash attention as much per key.
constexpr double kMaxFlopsPerByte = 64;

bool is_leaf(const Node& node) { return op_info(node.op).max_inputs == 0; }
bool is_backward(const Node& node) { return node.phase == Phase::kBackward; }
// Scales and other scalars are never made again: clones read the forward's.
bool is_scalar(const TensorType& type) { return type.shape.elements() <= 1; }

// The nodes between a quantize and what it could read instead of x, in order: the activation that the Target makes and
// quantizes in one pass; none where x is nothing of the kind.
std::vector<NodeId> activation_before_quantize(const Graph& graph, const Target& target, Value x) {
  const Node& maker = graph.node(x);
  const bool fuses = target.fuses(Producer::kActivation, FusionPart::kQuantize);
  if (is_activation(maker.op)) return fuses ? std::vector{x.node} : std::vector<NodeId>{};
  if (maker.op != Op::kMul) return {};
  const bool squared = maker.inputs[0] == maker.inputs[1];
  if (squared ? !fuses : !target.fuses(Producer::kGated, FusionPart::kQuantize)) return {};
  for (Value factor : maker.inputs) {
    if (is_activation(graph.node(factor).op)) return {factor.node, x.node};
  }
  return {};
}

bool contains(const std::vector<NodeId>& nodes, NodeId id) {
  return std::find(nodes.begin(), nodes.end(), id) != nodes.end();
}

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
  void choose_light(const Target& target) {
    const UseGraph uses(graph_);
    for (int32_t i = 0; i < graph_.size(); ++i) {
      const Node& node = graph_.node(NodeId{i});
      if (node.phase != Phase::kForward) continue;
      bool drop = false;
      if (is_activation(node.op)) {
        drop =
            target.fuses(Producer::kGatedGrad) && is_kept(node.inputs[0]) && only_products_read(uses, {NodeId{i}, 0});
      } else if (node.op == Op::kQuantize) {
        drop = made_in_one_pass(target, node.inputs[0]);
      }
      if (drop) drop_results(NodeId{i});
    }
  }

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
      if (remade_[static_cast<size_t>(i)]) drop_results(NodeId{i});
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

  void drop_results(NodeId id) {
    for (int32_t r = 0; r < static_cast<int32_t>(graph_.node(id).results.size()); ++r) {
      if (!is_scalar(graph_.type({id, r}))) kept({id, r}) = false;
    }
  }

  // Backward reads the value as a factor only: the gradient of the product makes it on the way.
  bool only_products_read(const UseGraph& uses, Value value) const {
    return std::all_of(uses.users(value).begin(), uses.users(value).end(),
                       [&](NodeId user) { return graph_.node(user).op == Op::kMul; });
  }

  // Codes of x come from kept values in one pass: from x itself, or with the activation before it.
  bool made_in_one_pass(const Target& target, Value x) const {
    if (is_kept(x)) return true;
    const std::vector<NodeId> chain = activation_before_quantize(graph_, target, x);
    return !chain.empty() && std::all_of(chain.begin(), chain.end(), [&](NodeId id) {
      const auto& inputs = graph_.node(id).inputs;
      return std::all_of(inputs.begin(), inputs.end(),
                         [&](Value input) { return contains(chain, input.node) || is_kept(input); });
    });
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

// Copies the graph; a backward node's dropped inputs are cloned right before it, once each. An activation that is
// quantized where it is cloned is cloned for that alone, so that the two fuse.
class Cloner {
 public:
  Cloner(const Graph& graph, const Availability& availability, const Target& target)
      : old_(graph),
        availability_(availability),
        target_(target),
        uses_(graph),
        rewriter_(graph),
        clones_(static_cast<size_t>(graph.size()), NodeId::kNone) {}

  Graph run() {
    for (int32_t i = 0; i < old_.size(); ++i) {
      const Node& node = old_.node(NodeId{i});
      if (!is_backward(node) && !is_stored_for_codes(node)) {
        rewriter_.copy(NodeId{i});
        continue;
      }
      NodeId made = is_backward(node) ? clone(node, Phase::kBackward) : clone(node, Phase::kForward);
      for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) rewriter_.set({NodeId{i}, r}, {made, r});
    }
    return rewriter_.finish();
  }

 private:
  // Current scaling reads its tensor twice, for the amax and for the codes. An activation that nothing else reads is
  // computed in both passes instead of being stored between them, where that is faster.
  bool is_stored_for_codes(const Node& node) const {
    if (!target_.cheap_activations || node.op != Op::kQuantize || node.phase != Phase::kForward) return false;
    const Value x = node.inputs[0];
    const std::vector<NodeId>& users = uses_.users(x);
    const bool amax_and_codes = users.size() == 2 && !uses_.is_output(x) && old_.node(users[0]).op == Op::kReduce;
    if (!amax_and_codes || activation_before_quantize(old_, target_, x).empty()) return false;
    const Node& maker = old_.node(x);
    const bool gated = maker.op == Op::kMul && maker.inputs[0] != maker.inputs[1];
    return target_.fuses(gated ? Producer::kGated : Producer::kActivation, FusionPart::kAmax);
  }

  // `node` with inputs that the phase may read; a quantize with an activation of its own where that is not stored.
  NodeId clone(const Node& node, Phase phase) {
    Node copy = node;
    copy.phase = phase;
    std::vector<NodeId> chain;
    if (node.op == Op::kQuantize && (phase == Phase::kForward || !availability_.is_kept(node.inputs[0]))) {
      chain = activation_before_quantize(old_, target_, node.inputs[0]);
    }
    std::unordered_map<int32_t, NodeId> made;  // by node of the chain
    const auto connect = [&](Node& reader) {
      for (Value& input : reader.inputs) {
        const auto found = input.exists() ? made.find(index(input.node)) : made.end();
        if (found != made.end()) {
          input = {found->second, input.result};
        } else {
          input = phase == Phase::kForward ? rewriter_.map(input) : for_backward(input);
        }
      }
    };
    for (NodeId id : chain) {
      Node link = old_.node(id);
      link.phase = phase;
      connect(link);
      made[index(id)] = rewriter_.graph().add(std::move(link));
    }
    connect(copy);
    return rewriter_.graph().add(std::move(copy));
  }

  Value for_backward(Value v) {
    if (!v.exists() || availability_.is_kept(v)) return rewriter_.map(v);
    NodeId& made = clones_[static_cast<size_t>(index(v.node))];
    if (made == NodeId::kNone) made = clone(old_.node(v), Phase::kRecompute);
    return {made, v.result};
  }

  const Graph& old_;
  const Availability& availability_;
  const Target& target_;
  const UseGraph uses_;
  Rewriter rewriter_;
  std::vector<NodeId> clones_;  // by forward node
};

}  // namespace

Graph recompute_graph(const Graph& graph, Recompute kind, const Target& target) {
  if (kind == Recompute::kNone || std::none_of(graph.nodes().begin(), graph.nodes().end(), is_backward)) return graph;
  Availability availability(graph);
  switch (kind) {
    case Recompute::kNone: break;
    case Recompute::kLight: availability.choose_light(target); break;
    case Recompute::kSelective: availability.choose_selective(); break;
    case Recompute::kFull: availability.choose_full(); break;
  }
  return Cloner(graph, availability, target).run();
}

bool recompute(Program& program, const CompileOptions& options) {
  bool changed = false;
  for (Graph& graph : program.graphs()) {
    Graph made = recompute_graph(graph, options.recompute, options.target);
    if (made.size() == graph.size()) continue;
    graph = std::move(made);
    changed = true;
  }
  return changed;
}

}  // namespace octet
