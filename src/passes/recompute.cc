#include "passes/passes.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "ir/facts.h"
#include "ir/rewrite.h"

namespace octet {
namespace {

// Elementwise functions, norms and quantization cost below 32 FLOPs per byte of their result, in one-byte codes too; a
// product costs 2 K / 2 per bf16 result with K in the hundreds or more, flash attention as much per key.
constexpr double kMaxFlopsPerByte = 64;

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

bool contains(const std::vector<NodeId>& nodes, NodeId id) { return std::ranges::find(nodes, id) != nodes.end(); }

// Which forward values backward and clones read from forward; the others they read from clones.
class Availability {
 public:
  explicit Availability(const Graph& graph) : graph_(graph), kept_(graph), remade_(graph.nodes().size(), false) {
    for_each_result(graph, [&](Value value, const Node& node) {
      kept_[value] = op_info(node.op).max_inputs == 0 || is_scalar(graph.type(value));
    });
    for (const Node& node : graph.nodes()) {
      if (!is_backward(node)) continue;
      for (Value input : node.inputs) {
        if (input.exists() && graph.node(input).phase == Phase::kForward) kept_[input] = true;
      }
    }
  }

  bool is_kept(Value v) const { return kept_[v] || graph_.node(v).phase != Phase::kForward; }

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
    for_each_result(graph_, [&](Value value, const Node&) {
      if (is_made_forward(value) && kept_[value] && !is_scalar(graph_.type(value))) try_to_drop(value);
    });
    // A node that is cloned anyway gives all its results.
    for (int32_t i = 0; i < graph_.size(); ++i) {
      if (remade_[static_cast<size_t>(i)]) drop_results(NodeId{i});
    }
  }

  void choose_full() {
    ValueTable<bool> leaves_layer(graph_);
    for (const Node& node : graph_.nodes()) {
      if (node.phase != Phase::kForward) continue;
      for (Value v : node.inputs) {
        if (v.exists() && graph_.node(v).layer != node.layer) leaves_layer[v] = true;
      }
    }
    for_each_result(graph_, [&](Value value, const Node& node) {
      if (!is_made_forward(value)) return;
      if (leaves_layer[value]) {
        kept_[value] = true;
      } else if (node.layer >= 0) {
        kept_[value] = is_scalar(graph_.type(value));
      }
    });
  }

 private:
  bool is_made_forward(Value value) const {
    const Node& node = graph_.node(value);
    return node.phase == Phase::kForward && op_info(node.op).max_inputs > 0;
  }
  void drop_results(NodeId id) {
    for (int32_t r = 0; r < static_cast<int32_t>(graph_.node(id).results.size()); ++r) {
      if (!is_scalar(graph_.type({id, r}))) kept_[{id, r}] = false;
    }
  }
  // Backward reads the value as a factor only: the gradient of the product makes it on the way.
  bool only_products_read(const UseGraph& uses, Value value) const {
    return std::ranges::all_of(uses.users(value), [&](NodeId user) { return graph_.node(user).op == Op::kMul; });
  }

  // Codes of x come from kept values in one pass: from x itself, or with the activation before it.
  bool made_in_one_pass(const Target& target, Value x) const {
    if (is_kept(x)) return true;
    const std::vector<NodeId> chain = activation_before_quantize(graph_, target, x);
    return !chain.empty() && std::ranges::all_of(chain, [&](NodeId id) {
      const auto& inputs = graph_.node(id).inputs;
      return std::ranges::all_of(inputs, [&](Value input) { return contains(chain, input.node) || is_kept(input); });
    });
  }

  void try_to_drop(Value value) {
    std::vector<NodeId> chain;
    double flops = 0;
    bool cheap = extend(value.node, graph_.node(value).layer, chain, flops);
    double bytes = static_cast<double>(graph_.type(value).bytes());
    if (cheap && flops <= kMaxFlopsPerByte * bytes) {
      kept_[value] = false;
      for (NodeId id : chain) remade_[slot(id)] = true;
    }
  }

  // Adds what must run again to make `id`; false when a node on the way is not cheap or belongs to another layer.
  bool extend(NodeId id, int32_t layer, std::vector<NodeId>& chain, double& flops) {
    if (remade_[slot(id)] || contains(chain, id)) return true;
    const Node& node = graph_.node(id);
    if (!op_facts(node.op).cheap_to_recompute || node.layer != layer) return false;
    chain.push_back(id);
    flops += node_cost(graph_, id).flops;
    return std::ranges::all_of(node.inputs, [&](Value input) {
      return !input.exists() || is_kept(input) || extend(input.node, layer, chain, flops);
    });
  }

  const Graph& graph_;
  ValueTable<bool> kept_;
  std::vector<bool> remade_;  // by node: it has a clone
};

// Adds copies of `chain`, old nodes in order, and of `node` behind them, in this phase. They read each other, and of
// the rest what `input_of` gives for the old value.
template <typename InputOf>
NodeId add_chain(Rewriter& rewriter, const std::vector<NodeId>& chain, const Node& node, Phase phase,
                 const InputOf& input_of) {
  std::unordered_map<int32_t, NodeId> made;  // by node of the chain
  const auto add = [&](Node copy) {
    copy.phase = phase;
    for (Value& input : copy.inputs) {
      const auto found = input.exists() ? made.find(index(input.node)) : made.end();
      input = found != made.end() ? Value{found->second, input.result} : input_of(input);
    }
    return rewriter.graph().add(std::move(copy));
  };
  for (NodeId id : chain) made[index(id)] = add(rewriter.old_graph().node(id));
  return add(node);
}

// Copies the graph; a backward node's dropped inputs are cloned right before it, once each. An activation that is
// quantized where it is cloned is cloned for that alone, so that the two fuse.
class Cloner {
 public:
  Cloner(const Graph& graph, const Availability& availability, const Target& target)
      : old_(graph),
        availability_(availability),
        target_(target),
        rewriter_(graph),
        clones_(static_cast<size_t>(graph.size()), NodeId::kNone) {}

  Graph run() {
    for (int32_t i = 0; i < old_.size(); ++i) {
      const Node& node = old_.node(NodeId{i});
      if (!is_backward(node)) {
        rewriter_.copy(NodeId{i});
        continue;
      }
      rewriter_.set_results(NodeId{i}, clone(node, Phase::kBackward));
    }
    return rewriter_.finish();
  }
  bool cloned() const { return cloned_; }

 private:
  // `node` with inputs that backward may read; a quantize with an activation of its own where that is not stored.
  NodeId clone(const Node& node, Phase phase) {
    std::vector<NodeId> chain;
    if (node.op == Op::kQuantize && !availability_.is_kept(node.inputs[0])) {
      chain = activation_before_quantize(old_, target_, node.inputs[0]);
    }
    cloned_ |= phase == Phase::kRecompute || !chain.empty();
    return add_chain(rewriter_, chain, node, phase, [&](Value v) { return for_backward(v); });
  }

  Value for_backward(Value v) {
    if (!v.exists() || availability_.is_kept(v)) return rewriter_.map(v);
    NodeId& made = clones_[slot(v.node)];
    if (made == NodeId::kNone) made = clone(old_.node(v), Phase::kRecompute);
    return {made, v.result};
  }

  const Graph& old_;
  const Availability& availability_;
  const Target& target_;
  Rewriter rewriter_;
  std::vector<NodeId> clones_;  // by forward node
  bool cloned_ = false;
};

bool wants_recompute(const Graph& graph, const CompileOptions& options) {
  return options.recompute != Recompute::kNone && std::ranges::any_of(graph.nodes(), is_backward);
}

bool recompute_backward(Graph& graph, const CompileOptions& options) {
  if (!wants_recompute(graph, options)) return false;
  Availability availability(graph);
  switch (options.recompute) {
    case Recompute::kNone: break;
    case Recompute::kLight: availability.choose_light(options.target); break;
    case Recompute::kSelective: availability.choose_selective(); break;
    case Recompute::kFull: availability.choose_full(); break;
  }
  Cloner cloner(graph, availability, options.target);
  Graph made = cloner.run();
  // Forward nodes that only backward read go where their clones come: there may be as many nodes as before.
  if (!cloner.cloned() && made.size() == graph.size()) return false;
  graph = std::move(made);
  return true;
}

// Current scaling reads its tensor twice, for the amax and for the codes. An activation that nothing else reads is
// computed in both passes instead of being stored between them, where that is faster.
bool is_stored_for_codes(const UseGraph& uses, const Node& node, const Target& target) {
  if (!target.prefer_recompute || node.op != Op::kQuantize || node.phase != Phase::kForward) return false;
  const Graph& graph = uses.graph();
  const Value x = node.inputs[0];
  const std::vector<NodeId>& users = uses.users(x);
  const bool amax_and_codes = users.size() == 2 && !uses.is_output(x) && graph.node(users[0]).op == Op::kReduce;
  if (!amax_and_codes || activation_before_quantize(graph, target, x).empty()) return false;
  const Node& maker = graph.node(x);
  const bool gated = maker.op == Op::kMul && maker.inputs[0] != maker.inputs[1];
  return target.fuses(gated ? Producer::kGated : Producer::kActivation, FusionPart::kAmax);
}

bool recompute_for_codes(Graph& graph, const CompileOptions& options) {
  if (!wants_recompute(graph, options)) return false;
  const UseGraph uses(graph);
  return rewrite(graph, [&](Rewriter& rewriter, NodeId id) {
    const Node& node = graph.node(id);
    if (!is_stored_for_codes(uses, node, options.target)) return false;
    const std::vector<NodeId> chain = activation_before_quantize(graph, options.target, node.inputs[0]);
    rewriter.set_results(id,
                         add_chain(rewriter, chain, node, Phase::kForward, [&](Value v) { return rewriter.map(v); }));
    return true;
  });
}

}  // namespace

std::span<const Step> recompute_steps() {
  static constexpr Step kSteps[] = {{"recompute_backward", on_graphs<recompute_backward>},
                                    {"recompute_for_codes", on_graphs<recompute_for_codes>}};
  return kSteps;
}

bool recompute(Program& program, const CompileOptions& options) {
  return run_steps(recompute_steps(), program, options);
}

}  // namespace octet
