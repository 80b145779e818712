#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "ir/facts.h"
#include "ir/rewrite.h"
#include "passes/passes.h"
#include "passes/relayout.h"
#include "passes/shard_states.h"

namespace octet {
namespace {

// One graph on the mesh.
class ShardedGraph {
 public:
  ShardedGraph(const Graph& graph, Program& program, const StateLayouts& states, const Parallel& parallel)
      : old_(graph),
        rewriter_(graph),
        relayout_(rewriter_.graph()),
        program_(program),
        states_(states),
        parallel_(parallel),
        is_rows_(graph) {
    rewriter_.graph().set_mesh(parallel.mesh);
    rewriter_.graph().set_stage(Stage::kSharded);
    if (parallel.mesh[Axis::kContext] > 1) rows_.push_back(Axis::kContext);
    if (parallel.sequence && parallel.mesh[Axis::kTensor] > 1) rows_.push_back(Axis::kTensor);
    const Value ids = graph.find_leaf(Op::kInput, "ids");
    if (ids.exists()) tokens_ = graph.shape(ids)[0];
    for (int32_t i = 0; i < graph.size(); ++i)
      for (size_t r = 0; r < graph.node(NodeId{i}).results.size(); ++r)
        is_rows_[{NodeId{i}, static_cast<int32_t>(r)}] = makes_rows(graph.node(NodeId{i}), r);
    for (const NamedValue& update : graph.updates()) find_targets(update.value, update.name);
  }

  Graph run() {
    for (int32_t i = 0; i < old_.size(); ++i) place(NodeId{i});
    for (const NamedValue& output : old_.outputs()) rewriter_.set(output.value, bring(rewriter_.map(output.value), {}));
    for (const NamedValue& update : old_.updates()) place_update(update);
    return rewriter_.finish();
  }

 private:
  Graph& graph() { return rewriter_.graph(); }
  const Layout& layout(Value value) { return graph().layout(value); }
  bool is_row_value(Value old_value) const { return is_rows_[old_value]; }

  // Whether dim 0 of a result is the tokens of the micro-batch.
  bool makes_rows(const Node& node, size_t result) const {
    if (tokens_ < 0 || node.results[result].shape[0] != tokens_) return false;
    const auto reads_rows = [&](Value input) { return input.exists() && is_rows_[input]; };
    switch (node.op) {
      case Op::kInput: return true;
      case Op::kMatmul:
      case Op::kScaledMatmul: return reads_rows(node.inputs[0]) && !node.attr<bool>("trans_a");
      case Op::kTranspose:
      case Op::kReduce:
      case Op::kEmbeddingGrad: return false;
      case Op::kLayerNormGrad:
      case Op::kRmsNormGrad: return result == 0;
      case Op::kQuantize: return result < 2 && reads_rows(node.inputs[0]);
      default: return std::ranges::any_of(node.inputs, reads_rows);
    }
  }

  // The state that a value, or a sum it is an addend of, becomes.
  void find_targets(Value value, const std::string& state) {
    targets_[value] = state;
    const Node& node = old_.node(value);
    const bool product = node.op == Op::kMatmul || node.op == Op::kScaledMatmul;
    if (node.op == Op::kAdd || node.op == Op::kEmbeddingGrad || product)
      for (size_t i = node.op == Op::kAdd ? 0 : 2; i < node.inputs.size(); ++i)
        if (node.inputs[i].exists() && old_.type(node.inputs[i]) == old_.type(value))
          find_targets(node.inputs[i], state);
  }

  Value bring(Value x, const Layout& want) { return relayout_.bring(x, want); }

  // Sums become values of the residual stream: copies, or rows of this rank; cp cuts nothing but rows.
  Layout settled(Value x, Value old_value) {
    Layout want = layout(x).settled();
    if (!is_row_value(old_value)) return want;
    bool moved = false;
    for (int d = 1; d < graph().shape(x).rank(); ++d) {
      AxisList axes = want.cut_axes(d);
      if (std::erase(axes, Axis::kContext) == 0) continue;
      want = want.with(d, axes, want.outer(d));
      moved = true;
    }
    if (layout(x).is_pending()) {
      AxisList rows = rows_;
      std::erase_if(rows, [&](Axis axis) { return want.whole(0).cut_axes().has(axis); });
      return want.with(0, rows);
    }
    return moved ? want.with(0, {Axis::kContext}) : want;
  }
  // Data ranks run graphs of the model on batches of their own: what is cut over them is gathered first.
  Value gathered(Value x) {
    if (!x.exists() || !is_model_graph(old_)) return x;
    Layout want = layout(x);
    for (int d = 0; d < graph().shape(x).rank(); ++d) {
      AxisList axes = want.cut_axes(d);
      if (std::erase(axes, Axis::kData) > 0) want = want.with(d, axes, want.outer(d));
    }
    return bring(x, want);
  }
  Value settle(Value x, Value old_value) { return bring(x, settled(x, old_value)); }

  // --- nodes

  void place(NodeId id) {
    const Node& old_node = old_.node(id);
    relayout_.set_phase(old_node.phase);
    Node node = old_node;
    for (Value& input : node.inputs) input = gathered(rewriter_.map(input));
    if (op_info(node.op).max_inputs == 0) return place_leaf(id, std::move(node));
    switch (node.op) {
      case Op::kMatmul:
      case Op::kScaledMatmul: return finish(id, place_product(id, std::move(node)));
      case Op::kAttention:
      case Op::kAttentionGrad: place_heads(old_node, node); break;
      case Op::kLayerNorm:
      case Op::kRmsNorm:
      case Op::kLayerNormGrad:
      case Op::kRmsNormGrad: place_norm(old_node, node); break;
      case Op::kCrossEntropy: return finish(id, place_loss(id, std::move(node)));
      case Op::kCrossEntropyGrad:
        place_rows_of(old_node, node);
        set_classes(old_node, node);
        break;
      case Op::kEmbedding: place_embedding(old_node, node); break;
      case Op::kEmbeddingGrad: place_embedding_grad(id, old_node, node); break;
      case Op::kRope:
        node.inputs[0] = settle(node.inputs[0], old_node.inputs[0]);
        node.inputs[1] = bring(node.inputs[1], layout(node.inputs[0]).moved({0, -1}));
        node.attrs.set("heads", graph().shape(node.inputs[0])[1] / node.attr<int64_t>("head_dim"));
        break;
      case Op::kReshape: place_reshape(old_node, node); break;
      case Op::kSlice:
      case Op::kConcat:
        for (Value& input : node.inputs)
          input = bring(input, layout(input).whole(static_cast<int>(node.attr<int64_t>("axis"))));
        for (Value& input : node.inputs) input = bring(input, layout(node.inputs[0]));
        break;
      case Op::kTranspose: break;
      case Op::kReduce:
        if (node.attr<std::string>("reduction") != "sum") node.inputs[0] = settle(node.inputs[0], old_node.inputs[0]);
        break;
      case Op::kQuantize:
      case Op::kDequantize: place_codes(old_node, node); break;
      case Op::kSquareSum:
        for (size_t i = 0; i < node.inputs.size(); ++i) node.inputs[i] = bring_gradient(node.inputs[i]);
        break;
      default:
        if (is_optimizer_update(node.op) && node.op != Op::kLamb) {
          place_optimizer(node);
        } else if (op_facts(node.op).elementwise) {
          place_elementwise(old_node, node);
        } else {
          for (Value& input : node.inputs) input = bring(input, {});
        }
    }
    finish(id, graph().add(std::move(node)));
  }

  void finish(NodeId id, NodeId made) {
    for (int32_t r = 0; r < static_cast<int32_t>(old_.node(id).results.size()); ++r) {
      const Value value{made, r};
      const Shape whole = whole_shape(graph().shape(value), layout(value), parallel_.mesh);
      check(whole == old_.shape({id, r}) || !layout(value).due(Pending::kNever).empty(), ErrorCode::kInternal,
            "shard: result {} of {} is {}, of {}", r, describe(old_, id), print(graph().type(value), layout(value)),
            to_string(old_.type({id, r})));
      rewriter_.set({id, r}, value);
    }
  }

  void place_leaf(NodeId id, Node node) {
    Layout at;
    if (node.op == Op::kParam || node.op == Op::kState) {
      at = layout_in(old_.role(), program_.find_state(node.name)->layout);
    } else if (node.op == Op::kInput && !rows_.empty() && rows_[0] == Axis::kContext &&
               node.results[0].shape[0] == tokens_) {
      at = at.cut(0, {Axis::kContext});
    }
    for (const Layout::Cut& cut : at.cuts) {
      int64_t& dim = node.results[0].shape[cut.dim];
      check(dim % parallel_.mesh[cut.axis] == 0, ErrorCode::kInvalidArgument,
            "parallel: dim {} of {} is {}, which does not divide into {} parts along {}", cut.dim, node.name, dim,
            parallel_.mesh[cut.axis], axis_name(cut.axis));
      dim /= parallel_.mesh[cut.axis];
    }
    node.layouts = {at};
    finish(id, graph().add(std::move(node)));
  }

  void place_elementwise(const Node& old_node, Node& node) {
    const auto is_full = [&](size_t i) { return old_.shape(old_node.inputs[i]) == old_.shape(old_node.inputs[0]); };
    const bool dropout = node.op == Op::kDropout;
    const size_t operands = dropout ? 1 : node.inputs.size();
    bool alike = true;
    for (size_t i = 1; i < operands; ++i) alike &= is_full(i) && layout(node.inputs[i]) == layout(node.inputs[0]);
    const bool linear = node.op == Op::kAdd || node.op == Op::kSub || node.op == Op::kScale ||
                        (node.op == Op::kCast && dtype_bytes(node.results[0].dtype) >= 4);
    const bool keeps =
        alike && (linear || (node.op == Op::kMaximum && layout(node.inputs[0]).due(Pending::kSum).empty()));
    if (!keeps) {
      for (size_t i = 0; i < operands; ++i) node.inputs[i] = settle(node.inputs[i], old_node.inputs[i]);
      Layout most = layout(node.inputs[0]);
      for (size_t i = 1; i < operands; ++i)
        if (is_full(i) && layout(node.inputs[i]).cuts.size() > most.cuts.size()) most = layout(node.inputs[i]);
      for (size_t i = 0; i < operands; ++i) {
        const int last = old_.shape(old_node.inputs[0]).rank() - 1;
        const bool channels = !is_full(i) && old_.shape(old_node.inputs[i])[0] > 1;
        node.inputs[i] = bring(node.inputs[i], is_full(i) ? most
                                               : channels ? Layout().with_cuts_of(most, last, 0)
                                                          : Layout());
      }
    }
    if (dropout) node.inputs[1] = bring(node.inputs[1], {});
  }

  void place_norm(const Node& old_node, Node& node) {
    const auto& operands = op_info(node.op).operands;
    Value& x = node.inputs[0];
    x = settle(x, old_node.inputs[0]);
    x = bring(x, layout(x).only(0));
    for (size_t i = 1; i < node.inputs.size(); ++i) {
      const bool copies = operands[i] == "weight" || operands[i] == "bias";
      node.inputs[i] = bring(node.inputs[i], copies ? Layout() : layout(x));
    }
  }

  // Operands of a loss or of its gradient that belong to rows.
  void place_rows_of(const Node& old_node, Node& node) {
    node.inputs[0] = settle(node.inputs[0], old_node.inputs[0]);
    for (size_t i = 1; i < node.inputs.size(); ++i)
      node.inputs[i] = bring(node.inputs[i], layout(node.inputs[0]).moved({0, -1}));
  }
  void set_classes(const Node& old_node, Node& node) {
    if (!layout(node.inputs[0]).cut_axes(1).empty() && !node.attrs.has("classes"))
      node.attrs.set("classes", old_.shape(old_node.inputs[0])[1]);
  }

  // The log-sum-exp of all classes first: a float a row is exchanged.
  NodeId place_loss(NodeId id, Node node) {
    const Node& old_node = old_.node(id);
    place_rows_of(old_node, node);
    set_classes(old_node, node);
    const Layout& logits = layout(node.inputs[0]);
    if (!logits.cut_axes(1).empty() && !node.operand("lse").exists()) {
      const Layout rows = logits.moved({0, -1});
      const Value own = relayout_.emit(Op::kRowLse, node.inputs[0], attrs_for(Op::kRowLse, node.attrs));
      node.inputs.push_back(bring(own, rows));
    }
    return graph().add(std::move(node));
  }

  void place_embedding(const Node& old_node, Node& node) {
    node.inputs[0] = settle(node.inputs[0], old_node.inputs[0]);
    // A table that is there whole is read for this rank's rows alone.
    if (layout(node.inputs[1]).cuts.empty() && is_row_value(old_node.inputs[0]))
      node.inputs[0] = bring(node.inputs[0], Layout().with(0, rows_));
  }

  void place_embedding_grad(NodeId id, const Node& old_node, Node& node) {
    const auto target = targets_.find({id, 0});
    const StateEntry* entry = target != targets_.end() ? program_.find_state(target->second) : nullptr;
    const Layout table = entry != nullptr && !entry->param.empty() ? states_.weight(entry->param) : Layout();
    const AxisList over = table.cut_axes(0);
    Value& dy = node.inputs[1];
    dy = settle(dy, old_node.inputs[1]);
    AxisList rows = layout(dy).cut_axes(0);
    std::erase_if(rows, [&](Axis axis) { return AxisSet(over).has(axis); });
    dy = bring(dy, layout(dy).with(0, rows));
    node.inputs[0] = bring(node.inputs[0], Layout().with(0, rows));
    if (over.empty()) return;
    node.attrs.set("over", print(over));
    node.attrs.set("rows", node.attr<int64_t>("rows") / parallel_.mesh.parts(over));
  }

  // Heads of tp, then of what cuts rows, whose ranks exchange rows for heads; a key head that they share is gathered.
  void place_heads(const Node& old_node, Node& node) {
    const int64_t head_dim = node.attr<int64_t>("head_dim");
    for (size_t i : {0, 1, 2}) {
      Value& x = node.inputs[i];
      x = settle(x, old_node.inputs[i]);
      const AxisList rows = layout(x).cut_axes(0);
      AxisList axes = layout(x).cut_axes(1);
      if (i == 0 || graph().shape(x)[1] / head_dim % parallel_.mesh.parts(rows) == 0)
        for (Axis axis : rows) axes.push_back(axis);
      x = bring(x, Layout().with(1, axes));
    }
    const Layout q = layout(node.inputs[0]);
    if (node.op == Op::kAttentionGrad)
      for (size_t i : {4, 5, 6}) node.inputs[i] = bring(node.inputs[i], q);
    node.attrs.set("heads", graph().shape(node.inputs[0])[1] / head_dim);
    node.attrs.set("kv_heads", graph().shape(node.inputs[1])[1] / head_dim);
  }

  void place_reshape(const Node& old_node, Node& node) {
    const Layout& x = layout(node.inputs[0]);
    const Shape& from = graph().shape(node.inputs[0]);
    std::vector<int64_t> shape = old_node.attr<std::vector<int64_t>>("shape");
    int64_t before = 1;
    for (int d = 0; d < from.rank(); before *= from[d++]) {
      if (x.cut_axes(d).empty()) continue;
      const int64_t start = before * x.outer(d);
      int64_t other = 1;
      size_t r = 0;
      while (r + 1 < shape.size() && start % (other * shape[r]) == 0) other *= shape[r++];
      const int64_t parts = parallel_.mesh.parts(x.cut_axes(d));
      if (start % other != 0 || shape[r] % (start / other * parts) != 0) {
        node.inputs[0] = bring(node.inputs[0], x.whole(d));
        return place_reshape(old_node, node);
      }
      shape[r] /= parts;
    }
    node.attrs.set("shape", shape);
  }

  void place_codes(const Node& old_node, Node& node) {
    node.inputs[0] = settle(node.inputs[0], old_node.inputs[0]);
    const std::string& scaling = node.attr<std::string>("scaling");
    if (node.op == Op::kQuantize) {
      if (scaling == "row") node.inputs[0] = bring(node.inputs[0], layout(node.inputs[0]).whole(1));
      if (node.inputs.size() > 1) node.inputs[1] = bring(node.inputs[1], {});
    }
  }

  Value bring_gradient(Value x) {
    const Node& leaf = graph().node(x);
    const StateEntry* entry = leaf.op == Op::kState ? program_.find_state(leaf.name) : nullptr;
    return bring(x, entry != nullptr && entry->role == StateRole::kGradient ? states_.master(entry->param)
                                                                            : layout(x).settled());
  }

  void place_optimizer(Node& node) {
    const OpFacts& facts = op_facts(node.op);
    const Layout param = layout(node.inputs[0]);
    for (size_t i = 1; i < node.inputs.size(); ++i) {
      const bool scalar = static_cast<int>(i) >= facts.first_scalar && static_cast<int>(i) < facts.first_scalar + 4;
      node.inputs[i] = bring(node.inputs[i], scalar ? Layout() : param);
    }
  }

  // --- products

  struct Side {
    size_t input;
    int outer, inner;  // the dim that the result has, and the contraction
  };

  NodeId place_product(NodeId id, Node node) {
    const Node& old_node = old_.node(id);
    const auto b_input = static_cast<size_t>(operand_index(node.op, "b"));
    const bool trans_a = node.attr<bool>("trans_a"), trans_b = node.attr<bool>("trans_b");
    const Side a{0, trans_a ? 1 : 0, trans_a ? 0 : 1}, b{b_input, trans_b ? 0 : 1, trans_b ? 1 : 0};
    for (size_t i : {a.input, b.input}) node.inputs[i] = settle_operand(node.inputs[i], old_node.inputs[i]);
    const bool wgrad = node.attrs.has("role") && node.attr<std::string>("role") == "wgrad";
    for (Axis axis : kAllAxes) agree(node, a, b, axis, wgrad);
    if (node.op == Op::kScaledMatmul) {
      for (const auto& [side, key] : {std::pair{a, "scaling_a"}, {b, "scaling_b"}}) {
        const ScaleLayout scaling = parse_scale_layout(node.attr<std::string>(key));
        node.inputs[side.input + 1] =
            bring(node.inputs[side.input + 1], scales_layout(layout(node.inputs[side.input]), scaling));
      }
    }
    const auto c_input = static_cast<size_t>(operand_index(node.op, "c"));
    if (c_input >= node.inputs.size()) return graph().add(std::move(node));
    const Value c = node.inputs[c_input];
    node.inputs.pop_back();
    Node alone = node;
    if (!alone.attrs.has("to")) alone.attrs.set("to", std::string(dtype_name(node.results[0].dtype)));
    return add_to_product(old_node, std::move(node), std::move(alone), c, c_input);
  }

  // A sum takes a c that is of the same sum; else c is added when the sum is whole.
  NodeId add_to_product(const Node& old_node, Node node, Node alone, Value c, size_t c_input) {
    const Value old_c = old_node.inputs[c_input];
    const bool full = old_.shape(old_c) == old_node.results[0].shape;
    const NodeId made = graph().add(alone);
    const Layout y = layout({made, 0});
    if (full ? layout(c) == y : !y.is_pending()) {
      node.inputs.push_back(full ? c : bring(c, Layout().with_cuts_of(y, 1, 0)));
      return graph().add(std::move(node));  // the trial is dead
    }
    const Value sum = bring({made, 0}, is_row_value(old_c) && full ? settled({made, 0}, old_c) : y.settled());
    Node add{.op = Op::kAdd, .inputs = {sum, c}, .name = node.name, .layer = node.layer, .phase = node.phase};
    add.inputs[1] = full ? bring(settle(c, old_c), layout(sum)) : bring(c, Layout().with_cuts_of(layout(sum), 1, 0));
    return graph().add(std::move(add));
  }

  Value settle_operand(Value x, Value old_value) {
    return layout(x).is_pending() || is_row_value(old_value) ? settle(x, old_value) : x;
  }

  // One axis may cut rows of a, columns of b, or the contraction of both. Weights stay where they are: what gives way
  // has tokens along the dim that the axis cuts; what is there whole takes its part.
  void agree(Node& node, const Side& a, const Side& b, Axis axis, bool wgrad) {
    const auto cuts = [&](const Side& side, int dim) {
      return AxisSet(layout(node.inputs[side.input]).cut_axes(dim)).has(axis);
    };
    const auto gather = [&](const Side& side, int dim) {
      AxisList axes = layout(node.inputs[side.input]).cut_axes(dim);
      std::erase(axes, axis);
      node.inputs[side.input] = bring(node.inputs[side.input], layout(node.inputs[side.input]).with(dim, axes));
    };
    const auto take = [&](const Side& side, int dim) {
      node.inputs[side.input] = bring(node.inputs[side.input], layout(node.inputs[side.input]).cut(dim, {axis}));
    };
    for (int round = 0; round < 3; ++round) {
      const bool m = cuts(a, a.outer), ak = cuts(a, a.inner), n = cuts(b, b.outer), bk = cuts(b, b.inner);
      if (ak && bk) return;
      if (ak && n) {
        gather(a, a.inner);
      } else if (ak) {
        take(b, b.inner);
      } else if (bk && m) {
        wgrad ? gather(b, b.inner) : gather(a, a.outer);
      } else if (bk) {
        take(a, a.inner);
      } else if (m && n) {
        gather(a, a.outer);
      } else {
        return;
      }
    }
  }

  // --- results

  void place_update(const NamedValue& update) {
    StateEntry& entry =
        program_.states()[static_cast<size_t>(program_.find_state(update.name) - program_.states().data())];
    Value value = rewriter_.map(update.value);
    const bool made_here = entry.role == StateRole::kGradient || entry.role == StateRole::kBuffer;
    if (made_here && runs_per_micro_batch(old_.role())) {
      if (entry.role == StateRole::kGradient) {
        const Layout& weight = states_.weight(entry.param);
        value = bring(value, layout(value).settled() == weight
                                 ? layout(value)
                                 : weight.with_due(Pending::kSum, layout(value).due(Pending::kSum)));
      }
      Layout at = layout(value);
      if (parallel_.mesh[Axis::kData] > 1) at.due(Pending::kSum) = at.due(Pending::kSum) | Axis::kData;
      entry.layout = at;
    }
    rewriter_.set(update.value, bring(value, layout_in(old_.role(), entry.layout)));
  }

  const Graph& old_;
  Rewriter rewriter_;
  Relayout relayout_;
  Program& program_;
  const StateLayouts& states_;
  const Parallel& parallel_;
  AxisList rows_;        // that cut the rows of the residual stream
  int64_t tokens_ = -1;  // rows of the whole micro-batch
  ValueTable<char> is_rows_;
  std::unordered_map<Value, std::string, ValueHash> targets_;
};

}  // namespace

bool shard(Program& program, const CompileOptions& options) {
  const Parallel& parallel = options.parallel;
  if (parallel.mesh.ranks() == 1) return false;
  check_heads(program, parallel.mesh);
  if (parallel.mesh[Axis::kTensor] > 1)
    pad_vocab(program, options.target.vocab_multiple * parallel.mesh[Axis::kTensor], /*embeddings=*/true);
  const StateLayouts states(program, parallel);
  for (StateEntry& entry : program.states()) entry.layout = states.of(program, entry);
  // Graphs of the first micro-batch write gradients and say how they lie.
  std::vector<size_t> order;
  for (size_t i = 0; i < program.graphs().size(); ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto first = [&](size_t i) { return program.graphs()[i].role() != GraphRole::kTrain; };
    return first(a) < first(b);
  });
  for (size_t i : order) program.graphs()[i] = ShardedGraph(program.graphs()[i], program, states, parallel).run();
  for (StateEntry& entry : program.states())
    for (const Layout::Cut& cut : entry.layout.cuts) entry.type.shape[cut.dim] /= parallel.mesh[cut.axis];
  return true;
}

}  // namespace octet
