// The entry of products fused with the exchange of their rows: {all_gather, product}, {product, reduce_scatter}.
#pragma once

#include "kernels/cuda/kernel.h"

namespace octet::cuda {

BoundKernel bind_product_rows(DeviceContext& context, const Fusion& fusion);

}  // namespace octet::cuda
