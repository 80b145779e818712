#include "passes/sharded_graph.h"

#include <algorithm>

#include "base/error.h"
#include "ir/facts.h"
#include "passes/passes.h"

namespace octet {

ShardedGraph::ShardedGraph(const Graph& graph, Program& program, StateLayouts& states, const Parallel& parallel)
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
  tokens_ = ids.exists() ? graph.shape(ids)[0] : states.tokens;
  for (int32_t i = 0; i < graph.size(); ++i)
    for (size_t r = 0; r < graph.node(NodeId{i}).results.size(); ++r)
      is_rows_[{NodeId{i}, static_cast<int32_t>(r)}] = makes_rows(graph.node(NodeId{i}), r);
  for (const NamedValue& update : graph.updates())
    if (program.find_state(update.name)->role == StateRole::kSaved && is_rows_[update.value])
      states.row_states.insert(update.name);
  if (!runs_per_micro_batch(graph.role())) return;
  for (const NamedValue& update : graph.updates())
    if (program.find_state(update.name)->role == StateRole::kGradient) find_targets(update.value, update.name);
}

Graph ShardedGraph::run() {
  for (int32_t i = 0; i < old_.size(); ++i) place(NodeId{i});
  for (const NamedValue& output : old_.outputs()) rewriter_.set(output.value, bring(rewriter_.map(output.value), {}));
  for (const NamedValue& update : old_.updates()) place_update(update);
  return rewriter_.finish();
}

bool ShardedGraph::makes_rows(const Node& node, size_t result) const {
  if (tokens_ < 0 || node.results[result].shape[0] != tokens_) return false;
  const auto reads_rows = [&](Value input) { return input.exists() && is_rows_[input]; };
  switch (node.op) {
    case Op::kInput: return true;
    case Op::kState: return states_.row_states.contains(node.name);
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

void ShardedGraph::find_targets(Value value, const std::string& state) {
  targets_[value] = state;
  const Node& node = old_.node(value);
  for (const size_t i : addends(old_, node)) find_targets(node.inputs[i], state);
}

Layout ShardedGraph::settled(Value x, Value old_value) {
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

Value ShardedGraph::gathered(Value old_value) {
  const Value x = rewriter_.map(old_value);
  if (!x.exists() || !is_model_graph(old_) || is_part(old_value)) return x;
  const Node& leaf = old_.node(old_value);
  if ((leaf.op != Op::kParam && leaf.op != Op::kState) || state(leaf.name).param.empty()) return x;
  const Layout whole = without_replicas(layout(x));
  check(whole == layout(x) || state(leaf.name).role != StateRole::kGradient, ErrorCode::kInternal,
        "shard: {} is read by what does not add to it", leaf.name);
  return bring(x, whole);
}

Layout ShardedGraph::without_replicas(Layout layout) {
  std::erase_if(layout.cuts, [](const Layout::Cut& cut) { return kReplicas.has(cut.axis); });
  return layout;
}

void ShardedGraph::place(NodeId id) {
  const Node& old_node = old_.node(id);
  relayout_.set_phase(old_node.phase);
  Node node = old_node;
  for (Value& input : node.inputs) input = gathered(input);
  if (op_info(node.op).max_inputs == 0) return place_leaf(id, std::move(node));
  for (const size_t i : addends(old_, old_node))
    if (is_part(old_node.inputs[i])) return place_sum(id, std::move(node), i);
  finish(id, placed(id, std::move(node)));
}

NodeId ShardedGraph::placed(NodeId id, Node node) {
  const Node& old_node = old_.node(id);
  switch (node.op) {
    case Op::kMatmul:
    case Op::kScaledMatmul: return place_product(id, std::move(node));
    case Op::kAttention:
    case Op::kPagedAttention:
    case Op::kAttentionGrad: place_heads(old_node, node); break;
    case Op::kLayerNorm:
    case Op::kRmsNorm:
    case Op::kLayerNormGrad:
    case Op::kRmsNormGrad: place_norm(old_node, node); break;
    case Op::kCrossEntropy: return place_loss(id, std::move(node));
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
    case Op::kTranspose:
    case Op::kCopyBlocks: break;
    case Op::kScatterCodes:
    case Op::kScatterRows: node.inputs[1] = bring(node.inputs[1], layout(node.inputs[0])); break;
    case Op::kTakeColumns:
      node.inputs[0] = settle(node.inputs[0], old_node.inputs[0]);
      node.inputs[0] = bring(node.inputs[0], layout(node.inputs[0]).whole(1));
      break;
    case Op::kReduce:
      if (node.attr<std::string>("reduction") != "sum") node.inputs[0] = settle(node.inputs[0], old_node.inputs[0]);
      break;
    case Op::kQuantize:
    case Op::kDequantize: place_codes(id, node); break;
    case Op::kClipFactor:  // within the stage first: all stages make one exchange of a pipeline
      if (const AxisSet due = layout(node.inputs[0]).due(Pending::kSum); due.has(Axis::kPipeline))
        node.inputs[0] = bring(node.inputs[0], Layout().with_due(Pending::kSum, Axis::kPipeline));
      node.inputs[0] = bring(node.inputs[0], {});
      break;
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
  return graph().add(std::move(node));
}

void ShardedGraph::finish(NodeId id, NodeId made) {
  for (int32_t r = 0; r < static_cast<int32_t>(old_.node(id).results.size()); ++r) {
    const Value value{made, r};
    const Shape whole = whole_shape(graph().shape(value), layout(value), parallel_.mesh);
    check(whole == old_.shape({id, r}) || !layout(value).due(Pending::kNever).empty(), ErrorCode::kInternal,
          "shard: result {} of {} is {}, of {}", r, describe(old_, id), print(graph().type(value), layout(value)),
          to_string(old_.type({id, r})));
    rewriter_.set({id, r}, value);
  }
}

void ShardedGraph::place_leaf(NodeId id, Node node) {
  Layout at;
  if (node.op == Op::kParam || node.op == Op::kState) {
    StateEntry& entry = state(node.name);
    if (entry.role == StateRole::kTransfer) entry.layout = between(entry, {});
    at = layout_in(old_.role(), entry.layout);
    if (targets_.contains({id, 0}) && at != without_replicas(at)) parts_.insert({id, 0});
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

}  // namespace octet
