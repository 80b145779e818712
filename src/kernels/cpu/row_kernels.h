// The families' factories of row kernels; each returns none for ops or types it does not support.
#pragma once

#include "kernels/common/dtype_sets.h"
#include "kernels/cpu/row_program.h"

namespace octet::cpu {

std::optional<RowKernel> unary_row_kernel(const Graph& graph, const Node& node, RowUse use);   // cast scale gelu ...
std::optional<RowKernel> binary_row_kernel(const Graph& graph, const Node& node, RowUse use);  // add sub mul maximum
std::optional<RowKernel> dropout_row_kernel(const Graph& graph, const Node& node, RowUse use);
std::optional<RowKernel> norm_row_kernel(const Graph& graph, const Node& node);
std::optional<RowKernel> norm_grad_row_kernel(const Graph& graph, const Node& node);
std::optional<RowKernel> reduce_row_kernel(const Graph& graph, const Node& node);
std::optional<RowKernel> rope_row_kernel(const Graph& graph, const Node& node);
std::optional<RowKernel> cross_entropy_row_kernel(const Graph& graph, const Node& node);
std::optional<RowKernel> quantize_row_kernel(const Graph& graph, const Node& node);  // inside fusions only

// visit(float{}) or visit(BF16{}).
template <typename Visit>
auto with_float_type(DType dtype, const Visit& visit) {
  return dtype == DType::kBF16 ? visit(BF16{}) : visit(float{});
}

// The rows of an elementwise kernel: those of the shape or, if it runs alone without broadcasts along rows, every
// element is a row, so that [1, N] is split as well as [N, 1].
struct ElementRows {
  int64_t rows, cols, alignment;
  ElementRows(const Shape& shape, RowUse use, bool row_broadcast) {
    const bool flat = use == RowUse::kAlone && !row_broadcast;
    rows = flat ? shape.elements() : shape.rows();
    cols = flat ? 1 : shape.cols();
    alignment = flat ? 64 : 1;
  }
};

}  // namespace octet::cpu
