// Rows of products with few rows of x, in every form a product has (product.h).
#pragma once

#include "kernels/cuda/kernel.h"

namespace octet::cuda {

bool accepts_gemv(const Graph& graph, const Node& node);  // any of the forms; fusions of other kinds: false
BoundKernel bind_gemv(DeviceContext& context, const Graph& graph, const Node& node);

// matmul_split with any number of rows: a product for each part.
bool accepts_split(const Graph& graph, const Node& node);
int64_t split_workspace(DeviceContext& context, const Graph& graph, const Node& node);
BoundKernel bind_split(DeviceContext& context, const Graph& graph, const Node& node);

}  // namespace octet::cuda
