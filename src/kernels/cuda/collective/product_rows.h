// The entry of products fused with the exchange of their rows: {all_gather, product}, {product, reduce_scatter}.
#pragma once

#include "kernels/cuda/kernel.h"

namespace octet::cuda {

bool accepts_product_rows(const Graph& graph, const Node& node);
BoundKernel bind_product_rows(DeviceContext& context, const Graph& graph, const Node& node);
int64_t product_rows_workspace(DeviceContext& context, const Graph& graph, const Node& node);

}  // namespace octet::cuda
