// RopePlan of a node, for the rows.
#pragma once

#include <memory>

#include "ir/graph.h"
#include "kernels/cuda/position/rope.h"

namespace octet::cuda {

struct BoundRope {
  RopePlan plan;
  std::shared_ptr<const double> frequencies;  // owner of plan.frequencies
};
// Computes the frequencies and uploads them.
BoundRope rope_of_node(const Node& node);

}  // namespace octet::cuda
