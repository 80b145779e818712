// What the shape rules and costs of all families share: checks that name the node, counting.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/integers.h"
#include "ir/facts.h"
#include "ir/graph.h"
#include "ir/scale_layout.h"

// Printed only when a check fails, so that building a graph formats nothing.
template <>
struct fmt::formatter<octet::Shape> : fmt::formatter<std::string> {
  auto format(const octet::Shape& shape, fmt::format_context& context) const {
    return fmt::formatter<std::string>::format(octet::to_string(shape), context);
  }
};
template <>
struct fmt::formatter<octet::TensorType> : fmt::formatter<std::string> {
  auto format(const octet::TensorType& type, fmt::format_context& context) const {
    return fmt::formatter<std::string>::format(octet::to_string(type), context);
  }
};
template <>
struct fmt::formatter<octet::DType> : fmt::formatter<std::string_view> {
  auto format(octet::DType dtype, fmt::format_context& context) const {
    return fmt::formatter<std::string_view>::format(octet::dtype_name(dtype), context);
  }
};

namespace octet::ops {

using Types = std::vector<TensorType>;

[[noreturn]] void throw_bad_node(const Node& node, const std::string& message);

// require(k == l, node, "inner dims differ: {} vs {}", k, l) throws "matmul: inner dims differ: 64 vs 48 in node up".
template <typename... Args>
void require(bool condition, const Node& node, fmt::format_string<const Args&...> format, const Args&... args) {
  if (!condition) [[unlikely]]
    throw_bad_node(node, fmt::format(format, args...));
}

inline const TensorType& input_type(const Graph& graph, const Node& node, size_t i) {
  return graph.type(node.inputs[i]);
}
inline const Shape& input_shape(const Graph& graph, const Node& node, size_t i) { return graph.shape(node.inputs[i]); }

// A float type that arithmetic reads as it is: not codes, which need their scale.
inline bool is_arithmetic(DType dtype) { return is_float(dtype) && !is_fp8(dtype); }
void require_arithmetic(const Graph& graph, const Node& node, size_t i);
void require_rank(const Graph& graph, const Node& node, size_t i, int rank);
void require_matrix(const Graph& graph, const Node& node, size_t i);  // of rank 2, for arithmetic
void require_type(const Graph& graph, const Node& node, size_t i, const TensorType& want);
void require_dropout_bits(const Node& node, double p);
// The same of an optional operand; nothing when it is absent.
void require_optional(const Graph& graph, const Node& node, std::string_view operand, const TensorType& want);
inline TensorType f32(Shape shape) { return {DType::kF32, std::move(shape)}; }

inline TensorType scale_type(const Shape& codes, ScaleLayout layout) {
  return f32(scale_shape(layout, codes[0], codes[1]));
}
inline ScaleLayout layout_attr(const Node& node, std::string_view key) {
  return parse_scale_layout(node.attr<std::string>(key));
}
inline DType dtype_attr(const Node& node, std::string_view key) { return parse_dtype(node.attr<std::string>(key)); }

// Zero points of integer codes, where there are some: i8, one for every scale, groups of whole rows.
void require_zero_points(const Graph& graph, const Node& node, std::string_view operand, const TensorType& codes,
                         ScaleLayout layout);

inline Cost no_cost(const Graph&, const Node&) { return {}; }
// Every input read once, every result written once.
double moved_bytes(const Graph& graph, const Node& node);
// `flops` per element of result 0 and of input 0, and moved_bytes.
template <int kFlops>
Cost per_result_element(const Graph& graph, const Node& node) {
  return {kFlops * static_cast<double>(node.results[0].shape.elements()), moved_bytes(graph, node)};
}
template <int kFlops>
Cost per_input_element(const Graph& graph, const Node& node) {
  return {kFlops * static_cast<double>(input_shape(graph, node, 0).elements()), moved_bytes(graph, node)};
}

// The gradient rules' way to emit, named after the forward node. Returns result 0.
Value emit_gradient(GradientContext& context, Op op, std::vector<Value> inputs, Attrs attrs = {});
// Sums dy over what was broadcast so that it fits `input` of the forward node; same dtype rules as reduce (f32).
Value reduce_to_input(GradientContext& context, Value dy, int input);
// For rules that have no gradient through a secondary result (statistics).
void require_no_gradient(GradientContext& context, int result, const char* what);

// Checks that dense and paged attention share.
struct HeadDims {
  int64_t heads, kv_heads, head_dim;
};
HeadDims head_dims(const Node& node);  // checks them, scale and alibi
void require_heads(const Graph& graph, const Node& node, size_t i, int64_t tokens, int64_t width);
void require_ints(const Graph& graph, const Node& node, size_t i, int rank, const char* what);
void require_segments(const Graph& graph, const Node& node, size_t i);

}  // namespace octet::ops
