// Which activation a node is, or is the gradient of.
#pragma once

#include "ir/graph.h"
#include "kernels/cuda/elementwise/elementwise.h"

namespace octet::cuda {

Activation activation_of_node(const Node& node);

}  // namespace octet::cuda
