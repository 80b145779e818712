// Layout rules that several families share, and what a rule is written with: checks that name the operand and both
// layouts. A rule gets a node with local types and gives the layouts of its results (LayoutRules::place).
#pragma once

#include <vector>

#include "ir/layout.h"
#include "ir/ops/common.h"

namespace octet::ops {

using Layouts = std::vector<Layout>;

[[noreturn]] void throw_bad_layout(const Graph& graph, const Node& node, size_t input, const std::string& want);

// "matmul: operand b is e4m3[64*tp,32] (want dim 1 cut as dim 1 of a, by tp) in node ..."
template <typename... Args>
void require_layout(bool condition, const Graph& graph, const Node& node, size_t input,
                    fmt::format_string<const Args&...> want, const Args&... args) {
  if (!condition) [[unlikely]]
    throw_bad_layout(graph, node, input, fmt::format(want, args...));
}

inline bool given(const Node& node, size_t input) { return input < node.inputs.size() && node.inputs[input].exists(); }
const Layout& input_layout(const Graph& graph, const Node& node, size_t input);
int input_rank(const Graph& graph, const Node& node, size_t input);

// The operand is cut exactly so / holds copies / has nothing pending. Absent operands pass.
void require_is(const Graph& graph, const Node& node, size_t input, const Layout& want, const char* as);
void require_copies(const Graph& graph, const Node& node, size_t input);
void require_settled(const Graph& graph, const Node& node, size_t input);
// No axis cuts this dim.
void require_whole(const Graph& graph, const Node& node, size_t input, int dim);

// No cut of these codes goes between elements that share a scale.
void require_whole_groups(const Graph& graph, const Node& node, size_t input, ScaleLayout scaling);
bool has_whole_groups(const Layout& codes, const Shape& local, ScaleLayout scaling);

// All operands hold copies, and so do the results.
Layouts place_whole(const Graph& graph, const Node& node);
// Equal layouts of all operands of the shape of operand 0, nothing pending; [C] operands are cut as the last dim of
// operand 0, [1] operands hold copies.
Layouts place_elementwise(const Graph& graph, const Node& node);
// The same for x alone or a and b of one shape, where sums may be pending over the same axes: f(sum) = sum of f.
Layouts place_linear(const Graph& graph, const Node& node);
// The same where maxima may be pending.
Layouts place_maximum(const Graph& graph, const Node& node);
// Operands and result alike. A slice or concat along a dim that is cut is one of every part.
Layouts place_along_axis(const Graph& graph, const Node& node);

// LayoutRules::arrange: copies of all operands; all as they lie.
void arrange_whole(LayoutRequest& request);
void arrange_as_given(LayoutRequest& request);
inline constexpr LayoutRules kWhole = {place_whole, arrange_whole};
// Nothing pending; all of operand 0's shape as the one that most axes cut.
void arrange_elementwise(LayoutRequest& request);
// The same, but operands that lie alike stay, sums too.
void arrange_linear(LayoutRequest& request);
// Operands from the second on as the rows of the first, which is settled.
void arrange_rows(LayoutRequest& request);
// Heads of tp, then of what cuts rows, whose ranks exchange rows for heads; a key head that they share is gathered.
void arrange_heads(LayoutRequest& request);

// LayoutRules::rows: of these results, a bit each, the rows of these operands.
template <uint32_t kOperands, uint32_t kResults = ~0U>
bool rows_of(const Graph&, const Node&, size_t result, size_t operand) {
  return result < 32 && operand < 32 && (kResults >> result & kOperands >> operand & 1U) != 0;
}

// The layout of q of attention, after checking it and operands [first_key, last_key].
Layout heads_layout(const Graph& graph, const Node& node, size_t first_key, size_t last_key);

}  // namespace octet::ops
