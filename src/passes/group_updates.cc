
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "ir/facts.h"
#include "passes/fuse_patterns.h"
#include "passes/passes.h"

namespace octet {
namespace {

// The same step of an optimiser: op, scalars and attributes except the weight decay.
bool same_step(const Node& a, const Node& b) {
  if (a.op != b.op || a.phase != b.phase) return false;
  const auto but_decay = [](Attrs attrs) {
    attrs.erase("weight_decay");
    return attrs;
  };
  const auto scalars = a.inputs.begin() + op_facts(a.op).first_scalar;
  return but_decay(a.attrs) == but_decay(b.attrs) &&
         std::equal(scalars, scalars + 4, b.inputs.begin() + op_facts(b.op).first_scalar);
}

const char* reader_name(const Node& reader) {
  if (reader.op == Op::kCast && reader.results[0].dtype == DType::kBF16) return "cast";
  return is_amax(reader) ? "amax" : nullptr;
}

FusionMembers group_from(const UseGraph& uses, NodeId first, int64_t most) {
  const Node& start = uses.node(first);
  if (!is_optimizer_update(start.op)) return {};
  std::vector<FusionMember> members;
  int64_t count = 0;
  for (int32_t i = index(first); i < uses.graph().size() && count < most; ++i) {
    if (!same_step(start, uses.node(NodeId{i}))) continue;
    members.push_back({NodeId{i}, fmt::format("{}{}", op_name(start.op), count)});
    bool taken[2] = {};  // one cast and one amax of each
    for (NodeId user : uses.users({NodeId{i}, 0})) {
      const char* name = uses.node(user).phase == start.phase ? reader_name(uses.node(user)) : nullptr;
      if (name == nullptr || std::exchange(taken[name[0] == 'c'], true)) continue;
      members.push_back({user, fmt::format("{}{}", name, count)});
    }
    ++count;
  }
  if (members.size() < 2) return {};
  std::ranges::sort(members,
                    [](const FusionMember& a, const FusionMember& b) { return index(a.node) < index(b.node); });
  return members;
}

// Nodes from `first` on that are like it and whose results are new contents of states and nothing else.
template <typename Like>
std::vector<FusionMember> last_nodes(const UseGraph& uses, NodeId first, const char* name, int64_t most,
                                     const Like& like) {
  std::vector<FusionMember> members;
  for (int32_t i = index(first); i < uses.graph().size() && std::ssize(members) < most; ++i) {
    const Node& node = uses.node(NodeId{i});
    bool last = like(node) && node.phase == uses.node(first).phase;
    for (int32_t r = 0; last && r < static_cast<int32_t>(node.results.size()); ++r)
      last = uses.users({NodeId{i}, r}).empty();
    if (last) members.push_back({NodeId{i}, fmt::format("{}{}", name, members.size())});
    if (!last && NodeId{i} == first) return {};
  }
  return members.size() < 2 ? std::vector<FusionMember>{} : members;
}

FusionMembers scales_from(const UseGraph& uses, NodeId first, int64_t most) {
  const Node& start = uses.node(first);
  if (start.op != Op::kUpdateScales) return {};
  return last_nodes(uses, first, "scale", most, [&](const Node& node) {
    const auto same = [&](const char* key) {
      return attr_or_default(node.op, node.attrs, key) == attr_or_default(start.op, start.attrs, key);
    };
    const auto finite = [](const Node& update) { return update.inputs.size() > 2 ? update.inputs[2] : Value::none(); };
    return node.op == Op::kUpdateScales && node.results[0] == start.results[0] && finite(node) == finite(start) &&
           same("margin") && same("pow2") && same("algo");
  });
}

FusionMembers maxima_from(const UseGraph& uses, NodeId first, int64_t most) {
  const TensorType one{DType::kF32, {1}};
  const auto like = [&](const Node& node) {
    return node.op == Op::kMaximum && uses.graph().type(node.inputs[0]) == one &&
           uses.graph().type(node.inputs[1]) == one;
  };
  if (!like(uses.node(first))) return {};
  return last_nodes(uses, first, "maximum", most, like);
}

}  // namespace

bool group_updates(Program& program, const CompileOptions& options) {
  using From = FusionMembers (*)(const UseGraph&, NodeId, int64_t most);
  const auto group = [](FusionPart part, int64_t TargetLimits::*most, From from) {
    return FusionPattern{Producer::kUpdate, [=](const UseGraph& uses, NodeId first, const Target& target) {
                           std::vector<FusionMembers> candidates;
                           if (target.fuses(Producer::kUpdate, part))
                             candidates.push_back(from(uses, first, target.limits.*most));
                           std::erase_if(candidates, [](const FusionMembers& members) { return members.empty(); });
                           return candidates;
                         }};
  };
  static const FusionPattern groups[] = {group(FusionPart::kOptimizer, &TargetLimits::update_params, group_from),
                                         group(FusionPart::kUpdateScales, &TargetLimits::update_scales, scales_from),
                                         group(FusionPart::kMaximum, &TargetLimits::update_maxima, maxima_from)};
  bool changed = false;
  for (Graph& graph : program.graphs()) changed |= fuse_graph(graph, options.target, groups);
  return changed;
}

}  // namespace octet
