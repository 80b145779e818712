#include "ir/ops/layouts.h"

#include <algorithm>

namespace octet::ops {

void throw_bad_layout(const Graph& graph, const Node& node, size_t input, const std::string& want) {
  const auto& operands = op_info(node.op).operands;
  const std::string name = op_info(node.op).max_inputs >= 0 ? operands[input] : "";
  throw_bad_node(node, fmt::format("operand {}{}{} is {} (want {})", input, name.empty() ? "" : " ", name,
                                   print(input_type(graph, node, input), input_layout(graph, node, input)), want));
}

const Layout& input_layout(const Graph& graph, const Node& node, size_t input) {
  return graph.layout(node.inputs[input]);
}

int input_rank(const Graph& graph, const Node& node, size_t input) { return input_shape(graph, node, input).rank(); }

void require_is(const Graph& graph, const Node& node, size_t input, const Layout& want, const char* as) {
  if (!given(node, input)) return;
  require_layout(input_layout(graph, node, input) == want, graph, node, input, "{}: {}", as,
                 print(input_type(graph, node, input), want));
}

void require_copies(const Graph& graph, const Node& node, size_t input) {
  if (given(node, input))
    require_layout(input_layout(graph, node, input).copies(), graph, node, input, "copies on all ranks");
}

void require_settled(const Graph& graph, const Node& node, size_t input) {
  if (given(node, input))
    require_layout(!input_layout(graph, node, input).is_pending(), graph, node, input, "nothing pending");
}

void require_whole(const Graph& graph, const Node& node, size_t input, int dim) {
  if (given(node, input))
    require_layout(input_layout(graph, node, input).cut_axes(dim).empty(), graph, node, input, "dim {} whole", dim);
}

bool has_whole_groups(const Layout& codes, const Shape& local, ScaleLayout scaling) {
  for (int dim : {0, 1}) {
    if (codes.cut_axes(dim).empty() || scaling == ScaleLayout::kTensor) continue;
    const bool tiles = scaling == ScaleLayout::kTile128;
    const int64_t group = tiles ? kScaleBlock : scale_group(scaling);
    const bool grouped = tiles || (group > 0 && dim == 1);
    const bool aligned = group > 0 && local[dim] % group == 0 && codes.outer(dim) == 1;
    if (grouped ? !aligned : scaling == ScaleLayout::kRow && dim == 1) return false;
  }
  return true;
}

void require_whole_groups(const Graph& graph, const Node& node, size_t input, ScaleLayout scaling) {
  require_layout(has_whole_groups(input_layout(graph, node, input), input_shape(graph, node, input), scaling), graph,
                 node, input, "cut between groups of one scale ({}: each part whole groups, rows under one whole)",
                 scale_layout_name(scaling));
}

Layouts place_whole(const Graph& graph, const Node& node) {
  for (size_t i = 0; i < node.inputs.size(); ++i) require_copies(graph, node, i);
  return Layouts(node.results.size());
}

namespace {

// The layout of all operands of the first one's shape; what is broadcast is checked against it.
Layout common_layout(const Graph& graph, const Node& node) {
  const Layout& x = input_layout(graph, node, 0);
  const Shape& shape = input_shape(graph, node, 0);
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    const Shape& operand = input_shape(graph, node, i);
    if (operand == shape)
      require_is(graph, node, i, x, "as operand 0");
    else if (operand[0] == shape.cols())
      require_is(graph, node, i, Layout().with_cuts_of(x, shape.rank() - 1, 0), "as the last dim of operand 0");
    else
      require_copies(graph, node, i);
  }
  return x;
}

void require_pending_only(const Graph& graph, const Node& node, Pending allowed) {
  const Layout& x = input_layout(graph, node, 0);
  require_layout(Layout().with_pending(allowed, x.pending_axes(allowed)).pending == x.pending, graph, node, 0,
                 "nothing pending but a {}", pending_name(allowed));
  for (size_t i = 1; i < node.inputs.size(); ++i)
    require_layout(input_layout(graph, node, i).pending == x.pending, graph, node, i,
                   "pending as operand 0 is: copies would count many times");
}

}  // namespace

Layouts place_elementwise(const Graph& graph, const Node& node) {
  for (size_t i = 0; i < node.inputs.size(); ++i) require_settled(graph, node, i);
  return {common_layout(graph, node)};
}

Layouts place_linear(const Graph& graph, const Node& node) {
  require_pending_only(graph, node, Pending::kSum);
  return {common_layout(graph, node)};
}

Layouts place_maximum(const Graph& graph, const Node& node) {
  require_pending_only(graph, node, Pending::kMax);
  return {common_layout(graph, node)};
}

void arrange_whole(LayoutRequest& request) {
  for (size_t i = 0; i < request.node().inputs.size(); ++i) request.redistribute(i, {});
}

void arrange_as_given(LayoutRequest&) {}

void arrange_elementwise(LayoutRequest& request) {
  const size_t operands = request.node().inputs.size();
  const auto is_full = [&](size_t i) { return request.whole_shape(i) == request.whole_shape(0); };
  for (size_t i = 0; i < operands; ++i) request.reduce(i);
  Layout most = request.layout(0);
  for (size_t i = 1; i < operands; ++i)
    if (is_full(i) && request.layout(i).cuts.size() > most.cuts.size()) most = request.layout(i);
  const int last = request.whole_shape(0).rank() - 1;
  for (size_t i = 0; i < operands; ++i) {
    const bool channels = !is_full(i) && request.whole_shape(i)[0] > 1;
    request.redistribute(i, is_full(i) ? most : channels ? Layout().with_cuts_of(most, last, 0) : Layout());
  }
}

void arrange_linear(LayoutRequest& request) {
  for (size_t i = 1; i < request.node().inputs.size(); ++i)
    if (request.whole_shape(i) != request.whole_shape(0) || request.layout(i) != request.layout(0))
      return arrange_elementwise(request);
}

void arrange_rows(LayoutRequest& request) {
  request.reduce(0);
  const Layout rows = request.layout(0).moved({0, -1});
  for (size_t i = 1; i < request.node().inputs.size(); ++i) request.redistribute(i, rows);
}

Layouts place_along_axis(const Graph& graph, const Node& node) {
  const Layout& x = input_layout(graph, node, 0);
  for (size_t i = 1; i < node.inputs.size(); ++i) require_is(graph, node, i, x, "as operand 0");
  return {x};
}

}  // namespace octet::ops
