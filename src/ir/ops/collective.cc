// Collectives: what brings values from one layout to another. Every rank of the group that `over` spans runs the same
// node; values keep their order, so that several are one call.
#include <algorithm>

#include "ir/ops/layouts.h"

namespace octet::facts {
namespace {

using namespace ops;

AxisList over(const Node& node) { return parse_axes(node.attr<std::string>("over")); }
int64_t parts(const Graph& graph, const Node& node) { return graph.mesh().parts(over(node)); }

int axis_of(const Graph& graph, const Node& node, size_t input, const char* key) {
  const int64_t axis = node.attr<int64_t>(key);
  const Shape& shape = input_shape(graph, node, input);
  require(axis < shape.rank(), node, "{} is {} of a tensor of rank {}", key, axis, shape.rank());
  return static_cast<int>(axis);
}

// The inputs' types with dim `divided` cut into as many parts as there are ranks, and dim `joined` as often as large.
Types resized(const Graph& graph, const Node& node, const char* divided, const char* joined) {
  const int64_t count = parts(graph, node);
  Types types;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    TensorType type = input_type(graph, node, i);
    if (divided != nullptr) {
      int64_t& dim = type.shape[axis_of(graph, node, i, divided)];
      require(dim % count == 0, node, "dim {} of operand {} is {}: it does not divide into {} parts",
              node.attr<int64_t>(divided), i, dim, count);
      dim /= count;
    }
    if (joined != nullptr) type.shape[axis_of(graph, node, i, joined)] *= count;
    types.push_back(std::move(type));
  }
  return types;
}

Types all_reduce_type(const Graph& graph, const Node& node) { return resized(graph, node, nullptr, nullptr); }
Types part_type(const Graph& graph, const Node& node) { return resized(graph, node, "axis", nullptr); }
Types all_gather_type(const Graph& graph, const Node& node) { return resized(graph, node, nullptr, "axis"); }
Types all_to_all_type(const Graph& graph, const Node& node) {
  require(node.attr<int64_t>("axis") != node.attr<int64_t>("split_axis"), node, "axis and split_axis are both {}",
          node.attr<int64_t>("axis"));
  return resized(graph, node, "split_axis", "axis");
}

// The operand without what is pending over the group. In a graph of one micro-batch the addends of other data ranks are
// pending over dp, unsaid: they belong to other micro-batches, as those of other runs do.
Layout reduced(const Graph& graph, const Node& node, size_t input, Pending kind) {
  const Layout& x = input_layout(graph, node, input);
  const AxisSet group = over(node);
  const bool unsaid = kind != Pending::kLse && runs_per_micro_batch(graph.role());
  const AxisSet due =
      unsaid && !x.cut_axes().has(Axis::kData) ? x.pending_axes(kind) | Axis::kData : x.pending_axes(kind);
  require_layout(due.has_all(group) && x.pending_axes(kind) == x.pending_axes(), graph, node, input,
                 "a {} pending over {}", pending_name(kind), print(over(node)));
  return x.with_pending(kind, x.pending_axes(kind) - group);
}

template <typename Fn>
Layouts each(const Node& node, const Fn& place) {
  Layouts results;
  for (size_t i = 0; i < node.inputs.size(); ++i) results.push_back(place(i));
  return results;
}

Layouts place_all_reduce(const Graph& graph, const Node& node) {
  const std::string& name = node.attr<std::string>("reduction");
  const Pending kind = name == "sum" ? Pending::kSum : name == "max" ? Pending::kMax : Pending::kLse;
  return each(node, [&](size_t i) { return reduced(graph, node, i, kind); });
}

Layouts place_reduce_scatter(const Graph& graph, const Node& node) {
  const int axis = axis_of(graph, node, 0, "axis");
  return each(node, [&](size_t i) { return reduced(graph, node, i, Pending::kSum).cut(axis, over(node)); });
}

// The operand without the cut of `axis` by the group, which is its innermost.
Layout gathered(const Graph& graph, const Node& node, size_t input) {
  const int axis = axis_of(graph, node, input, "axis");
  const AxisList group = over(node);
  AxisList cut = input_layout(graph, node, input).cut_axes(axis);
  const bool innermost = cut.size() >= group.size() && std::equal(group.rbegin(), group.rend(), cut.rbegin());
  require_layout(innermost, graph, node, input, "dim {} cut by {}, innermost", axis, print(group));
  cut.resize(cut.size() - group.size());
  return input_layout(graph, node, input).with(axis, cut);
}

Layouts place_all_gather(const Graph& graph, const Node& node) {
  return each(node, [&](size_t i) { return gathered(graph, node, i); });
}

Layouts place_all_to_all(const Graph& graph, const Node& node) {
  const int split = axis_of(graph, node, 0, "split_axis");
  return each(node, [&](size_t i) { return gathered(graph, node, i).cut(split, over(node)); });
}

Layouts place_take_part(const Graph& graph, const Node& node) {
  const Layout& x = input_layout(graph, node, 0);
  require_layout((x.cut_axes() & AxisSet(over(node))).empty() && (x.pending_axes() & AxisSet(over(node))).empty(),
                 graph, node, 0, "copies over {}", print(over(node)));
  return {x.cut(axis_of(graph, node, 0, "axis"), over(node))};
}

// Bytes that a rank sends, of n ranks, in units of a whole value.
template <int kPasses>
Cost ring_cost(const Graph& graph, const Node& node) {
  double whole = 0;
  for (size_t i = 0; i < node.inputs.size(); ++i)
    whole += static_cast<double>(std::max(input_type(graph, node, i).bytes(), node.results[i].bytes()));
  const auto n = static_cast<double>(parts(graph, node));
  return {0, kPasses * whole * (n - 1) / n};
}

Cost no_cost(const Graph&, const Node&) { return {}; }

OpFacts collective(OpFacts facts) {
  facts.no_gradient = "made after autodiff";
  facts.precision = {ResultPrecision::kUnchanged};
  facts.collective = true;
  return facts;
}

}  // namespace

const OpFacts all_reduce =
    collective({.infer = all_reduce_type,
                .layouts = {place_all_reduce},
                .cost = ring_cost<2>,
                .meaning = "the sum, maximum or log-sum-exp of the parts, on every rank: added in "
                           "order of ranks in float32, rounded once"});
const OpFacts reduce_scatter = collective({.infer = part_type,
                                           .layouts = {place_reduce_scatter},
                                           .cost = ring_cost<1>,
                                           .meaning = "the sum of the parts; each rank has its part along axis"});
const OpFacts all_gather = collective({.infer = all_gather_type,
                                       .layouts = {place_all_gather},
                                       .cost = ring_cost<1>,
                                       .meaning = "the parts one after another along axis, on every rank"});
const OpFacts all_to_all = collective({.infer = all_to_all_type,
                                       .layouts = {place_all_to_all},
                                       .cost = ring_cost<1>,
                                       .meaning = "parts along axis become parts along split_axis"});
const OpFacts take_part = collective(
    {.infer = part_type, .layouts = {place_take_part}, .cost = no_cost, .meaning = "this rank's part along axis"});

}  // namespace octet::facts
