#include <algorithm>

#include "ir/facts.h"
#include "ir/rewrite.h"
#include "passes/passes.h"

namespace octet {
namespace {

// More than this is worth a call of its own in graphs of a micro-batch, where what is brought together lives longer.
constexpr int64_t kSmallBytes = 64 << 10;

// All nodes; by rounds: by the number of collectives before them on the longest way, those of one number with
// collectives last.
std::vector<NodeId> in_order(const Graph& graph, bool rounds) {
  std::vector<int32_t> round(static_cast<size_t>(graph.size()));
  std::vector<NodeId> order;
  for (int32_t i = 0; i < graph.size(); ++i) {
    for (Value input : graph.node(NodeId{i}).inputs)
      if (input.exists())
        round[static_cast<size_t>(i)] =
            std::max(round[static_cast<size_t>(i)], round[slot(input.node)] + (exchanges(graph.node(input)) ? 1 : 0));
    order.push_back(NodeId{i});
  }
  if (rounds)
    std::ranges::stable_sort(order, {},
                             [&](NodeId id) { return std::pair(round[slot(id)], exchanges(graph.node(id))); });
  return order;
}

struct Group {
  std::vector<NodeId> members;
  int32_t place = 0;  // of the first one
};

bool small(const Node& node) {
  return std::ranges::all_of(node.results, [](const TensorType& type) { return type.bytes() <= kSmallBytes; });
}

}  // namespace

bool group_collectives(Graph& graph) {
  if (graph.mesh().ranks() == 1) return false;
  const bool rounds = graph.role() == GraphRole::kApply || graph.role() == GraphRole::kPrepare;
  const std::vector<NodeId> order = in_order(graph, rounds);
  std::vector<int32_t> place(order.size());
  for (size_t i = 0; i < order.size(); ++i) place[slot(order[i])] = static_cast<int32_t>(i);

  std::vector<Group> groups;
  std::vector<int32_t> group_of(order.size(), -1);
  std::vector<int32_t> open;  // the last group of each kind
  for (NodeId id : order) {
    const Node& node = graph.node(id);
    if (!exchanges(node) || (!rounds && !small(node))) continue;
    const auto alike = [&](int32_t group) {
      const Node& other = graph.node(groups[static_cast<size_t>(group)].members[0]);
      return other.op == node.op && other.phase == node.phase && other.attrs == node.attrs;
    };
    auto found = std::ranges::find_if(open, alike);
    if (found == open.end()) found = open.insert(open.end(), -1);
    const bool joins = *found >= 0 && std::ranges::all_of(node.inputs, [&](Value input) {
      return place[slot(input.node)] < groups[static_cast<size_t>(*found)].place;
    });
    if (!joins) *found = static_cast<int32_t>(groups.size()), groups.push_back({.place = place[slot(id)]});
    groups[static_cast<size_t>(*found)].members.push_back(id);
    group_of[slot(id)] = *found;
  }
  if (std::ranges::none_of(groups, [](const Group& group) { return group.members.size() > 1; })) return false;

  Rewriter rewriter(graph);
  for (NodeId id : order) {
    const int32_t number = group_of[slot(id)];
    if (number < 0) {
      rewriter.copy(id);
      continue;
    }
    const Group& group = groups[static_cast<size_t>(number)];
    if (group.members[0] != id) continue;
    Node node = graph.node(id);
    node.inputs.clear(), node.results.clear(), node.layouts.clear();
    for (NodeId member : group.members) {
      for (Value input : graph.node(member).inputs) node.inputs.push_back(rewriter.map(input));
      if (graph.node(member).layer != node.layer) node.layer = -1;
    }
    const NodeId made = rewriter.graph().add(std::move(node));
    int32_t result = 0;
    for (NodeId member : group.members)
      for (size_t r = 0; r < graph.node(member).results.size(); ++r)
        rewriter.set({member, static_cast<int32_t>(r)}, {made, result++});
  }
  graph = rewriter.finish();
  return true;
}

}  // namespace octet
