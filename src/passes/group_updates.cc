#include "passes/group_updates.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "passes/fuse.h"
#include "passes/fuse_patterns.h"

namespace octet {
namespace {

constexpr int kGroup = 32;  // parameters: what fits a kernel's arguments

// The same step: scalars and attributes, but for the weight decay.
bool same_step(const Node& a, const Node& b) {
  if (b.op != Op::kAdamw || a.phase != b.phase) return false;
  for (const char* key : {"beta1", "beta2", "eps"}) {
    if (a.attrs.get<double>(key) != b.attrs.get<double>(key)) return false;
  }
  return std::equal(a.inputs.begin() + 4, a.inputs.end(), b.inputs.begin() + 4, b.inputs.end());
}

const char* reader_name(const Node& reader) {
  if (reader.op == Op::kCast && reader.results[0].dtype == DType::kBF16) return "cast";
  const bool amax = reader.op == Op::kReduce && reader.attrs.get<std::string>("kind") == "amax" &&
                    reader.attrs.get<std::string>("axis") == "all";
  return amax ? "amax" : nullptr;
}

std::vector<FusionMember> group_from(const UseGraph& uses, NodeId first) {
  const Node& start = uses.node(first);
  if (start.op != Op::kAdamw) return {};
  std::vector<FusionMember> members;
  int count = 0;
  for (int32_t i = index(first); i < uses.graph().size() && count < kGroup; ++i) {
    if (!same_step(start, uses.node(NodeId{i}))) continue;
    members.push_back({NodeId{i}, fmt::format("adamw{}", count)});
    bool taken[2] = {};  // one cast and one amax of each
    for (NodeId user : uses.users({NodeId{i}, 0})) {
      const char* name = uses.node(user).phase == start.phase ? reader_name(uses.node(user)) : nullptr;
      if (name == nullptr || std::exchange(taken[name[0] == 'c'], true)) continue;
      members.push_back({user, fmt::format("{}{}", name, count)});
    }
    ++count;
  }
  if (members.size() < 2) return {};
  std::sort(members.begin(), members.end(),
            [](const FusionMember& a, const FusionMember& b) { return index(a.node) < index(b.node); });
  return members;
}

}  // namespace

bool group_updates(Program& program, const CompileOptions& options) {
  const FusionPattern group{"adamw_group", "adamw, cast, amax: of up to 32 parameters", group_from};
  bool changed = false;
  for (Graph& graph : program.graphs()) changed |= fuse_graph(graph, options.target, {&group, 1});
  return changed;
}

}  // namespace octet
