// What may fuse: for each producer (ir/fusion.h) the members that a fusion starting at a node could have.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ir/rewrite.h"
#include "ir/target.h"

namespace octet {

// A node taken into a fusion, under the name its inputs and results carry in the body.
struct FusionMember {
  NodeId node;
  std::string name;
};
using FusionMembers = std::vector<FusionMember>;

struct FusionPattern {
  Producer producer;
  // The fusions of what the Target's kernels take that `first` could be part of, members in node order, the one to be
  // preferred first.
  std::function<std::vector<FusionMembers>(const UseGraph& uses, NodeId first, const Target& target)> match;
};

// In the order in which they choose their nodes.
std::span<const FusionPattern> fusion_patterns();

// Graph level of passes fuse and group_updates. Returns whether something changed.
bool fuse_graph(Graph& graph, const Target& target, std::span<const FusionPattern> patterns = fusion_patterns());

}  // namespace octet
