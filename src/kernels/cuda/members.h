// A fusion run as its members one by one, each by its own best row, values between them in the workspace: for fusions
// whose kernel does not take a node's types or shapes. The results are those of the unfused nodes by construction.
#pragma once

#include "kernels/cuda/kernel.h"

namespace octet::cuda {

// Whether every member has a row.
bool accepts_members(const Graph& graph, const Node& node);
BoundKernel bind_members(DeviceContext& context, const Graph& graph, const Node& node);
int64_t members_workspace(DeviceContext& context, const Graph& graph, const Node& node);

}  // namespace octet::cuda
