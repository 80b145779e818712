
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "ir/facts.h"
#include "passes/fuse_patterns.h"
#include "passes/passes.h"

namespace octet {
namespace {

// The same step of an optimiser: op, scalars and attributes except the weight decay; where trust ratios make rates,
// each has its own.
bool same_step(const Graph& graph, const Node& a, const Node& b) {
  if (a.op != b.op || a.phase != b.phase) return false;
  const auto but_decay = [](Attrs attrs) {
    attrs.erase("weight_decay");
    return attrs;
  };
  const OpFacts& facts = op_facts(a.op);
  const auto has_ratio = [&](const Node& update) {
    const Op op = graph.node(update.inputs[static_cast<size_t>(facts.first_scalar)]).op;
    return facts.scalars == 4 && (op == Op::kTrustRatio || op == Op::kFusion);
  };
  const int own = has_ratio(a) && has_ratio(b) ? 1 : 0;
  const auto scalars = a.inputs.begin() + facts.first_scalar;
  return but_decay(a.attrs) == but_decay(b.attrs) &&
         std::equal(scalars + own, scalars + facts.scalars, b.inputs.begin() + facts.first_scalar + own);
}

const char* reader_name(const Node& reader) {
  if (reader.op == Op::kCast && reader.results[0].dtype == DType::kBF16) return "cast";
  return is_amax(reader) ? "amax" : nullptr;
}

FusionMembers group_from(const UseGraph& uses, NodeId first, int64_t most) {
  const Node& start = uses.node(first);
  // Rows of a table are taken out before their update, and put back behind it.
  const auto is_whole = [&](const Node& update) { return uses.node(update.inputs[0].node).op != Op::kSelectRows; };
  if (!is_optimizer_update(start.op) || !is_whole(start)) return {};
  std::vector<FusionMember> members;
  int64_t count = 0;
  for (int32_t i = index(first); i < uses.graph().size() && count < most; ++i) {
    if (!same_step(uses.graph(), start, uses.node(NodeId{i})) || !is_whole(uses.node(NodeId{i}))) continue;
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

FusionMembers directions_from(const UseGraph& uses, NodeId first, int64_t most) {
  return uses.node(first).op == Op::kAdamDirection ? group_from(uses, first, most) : FusionMembers{};
}

// Nodes from `first` on of its op and attributes but the weight decay, whose operands are all made before any member's
// result is read.
FusionMembers before_readers(const UseGraph& uses, NodeId first, const char* name, int64_t most) {
  const auto attrs_of = [](const Node& node) {
    Attrs attrs = node.attrs;
    attrs.erase("weight_decay");
    return attrs;
  };
  const Node& start = uses.node(first);
  std::vector<FusionMember> members;
  int32_t read = uses.graph().size();
  for (int32_t i = index(first); i < uses.graph().size() && std::ssize(members) < most; ++i) {
    const Node& node = uses.node(NodeId{i});
    const bool made = std::ranges::all_of(node.inputs, [&](Value x) {
      return !x.exists() || is_named_leaf(uses.node(x.node).op) || index(x.node) < read;
    });
    if (node.op != start.op || node.phase != start.phase || attrs_of(node) != attrs_of(start) || !made) continue;
    for (NodeId user : uses.users({NodeId{i}, 0})) read = std::min(read, index(user));
    members.push_back({NodeId{i}, fmt::format("{}{}", name, members.size())});
  }
  return members.size() < 2 ? FusionMembers{} : members;
}

FusionMembers norms_from(const UseGraph& uses, NodeId first, int64_t most) {
  const Node& start = uses.node(first);
  const bool own = start.op == Op::kSquareSum && !start.attr<bool>("stages");
  return own ? before_readers(uses, first, "norm", 2 * most) : FusionMembers{};
}

FusionMembers ratios_from(const UseGraph& uses, NodeId first, int64_t most) {
  return uses.node(first).op == Op::kTrustRatio ? before_readers(uses, first, "ratio", most) : FusionMembers{};
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
  // One after the other: each reads what the groups before it make.
  static const FusionPattern steps[] = {group(FusionPart::kOptimizer, &TargetLimits::update_params, directions_from),
                                        group(FusionPart::kOptimizer, &TargetLimits::update_params, norms_from),
                                        group(FusionPart::kOptimizer, &TargetLimits::update_params, ratios_from)};
  bool changed = false;
  for (Graph& graph : program.graphs())
    for (const FusionPattern& step : steps) changed |= fuse_graph(graph, options.target, {&step, 1});
  for (Graph& graph : program.graphs()) changed |= fuse_graph(graph, options.target, groups);
  return changed;
}

}  // namespace octet
