// The families' factories of row kernels; each returns none for types it does not support.
#pragma once

#include "kernels/cpu/row_program.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {

std::optional<RowKernel> cast_row_kernel(const Graph& graph, const Node& node, RowUse use);
std::optional<RowKernel> unary_row_kernel(const Graph& graph, const Node& node, RowUse use);   // scale gelu ...
std::optional<RowKernel> binary_row_kernel(const Graph& graph, const Node& node, RowUse use);  // add sub mul maximum
std::optional<RowKernel> dropout_row_kernel(const Graph& graph, const Node& node, RowUse use);
std::optional<RowKernel> norm_row_kernel(const Graph& graph, const Node& node, RowUse use);
std::optional<RowKernel> norm_grad_row_kernel(const Graph& graph, const Node& node, RowUse use);
std::optional<RowKernel> reduce_row_kernel(const Graph& graph, const Node& node, RowUse use);
std::optional<RowKernel> rope_row_kernel(const Graph& graph, const Node& node, RowUse use);
std::optional<RowKernel> cross_entropy_row_kernel(const Graph& graph, const Node& node, RowUse use);
std::optional<RowKernel> quantize_row_kernel(const Graph& graph, const Node& node, RowUse use);

}  // namespace octet::cpu
