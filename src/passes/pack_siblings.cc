// merge_siblings: products of one x with several weights become one product with all their rows.
#include <algorithm>
#include <map>
#include <set>

#include "ir/rewrite.h"
#include "passes/pack.h"

namespace octet {
namespace {

using Names = std::vector<std::string>;

// A forward product x W^T of a linear whose weight is a param.
bool is_mergeable(const Graph& graph, const Node& node) {
  return node.op == Op::kMatmul && node.attrs.get_or<std::string>("role", "") == "fprop" &&
         node.attrs.get_or<std::string>("kind", "linear") == "linear" && node.attrs.get_or("trans_b", false) &&
         !node.attrs.get_or("trans_a", false) && (node.inputs.size() < 3 || !node.inputs[2].exists()) &&
         graph.node(node.inputs[1]).op == Op::kParam;
}

// Products of a graph that read the same x, by the names of their weights.
std::map<Names, std::vector<NodeId>> sibling_groups(const Graph& graph) {
  std::map<int64_t, std::vector<NodeId>> by_input;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    if (!is_mergeable(graph, node)) continue;
    by_input[static_cast<int64_t>(index(node.inputs[0].node)) * 8 + node.inputs[0].result].push_back(NodeId{i});
  }
  std::map<Names, std::vector<NodeId>> groups;
  for (auto& [input, nodes] : by_input) {
    Names names;
    for (NodeId id : nodes) {
      if (graph.node(id).results[0].dtype == graph.node(nodes[0]).results[0].dtype) {
        names.push_back(graph.node(graph.node(id).inputs[1]).name);
      }
    }
    if (nodes.size() > 1 && names.size() == nodes.size()) groups.emplace(names, std::move(nodes));
  }
  return groups;
}

// "layers.0.attn.q+k+v.weight"
std::string merged_name(const Names& names) {
  size_t prefix = names[0].size(), suffix = names[0].size();
  for (const std::string& name : names) {
    auto front = std::mismatch(names[0].begin(), names[0].end(), name.begin(), name.end());
    prefix = std::min(prefix, static_cast<size_t>(front.first - names[0].begin()));
    auto back = std::mismatch(names[0].rbegin(), names[0].rend(), name.rbegin(), name.rend());
    suffix = std::min(suffix, static_cast<size_t>(back.first - names[0].rbegin()));
  }
  std::string result = names[0].substr(0, prefix);
  for (size_t i = 0; i < names.size(); ++i) {
    size_t middle = names[i].size() - std::min(names[i].size(), prefix + suffix);
    result += (i > 0 ? "+" : "") + names[i].substr(prefix, middle);
  }
  return result + names[0].substr(names[0].size() - suffix);
}

// Groups every graph that uses one of the weights has alike, with no other reader of them.
std::vector<Names> agreed_groups(const Program& program) {
  std::map<Names, int> found;          // graphs that have the group
  std::map<std::string, int> readers;  // reads of a param over all graphs
  for (const Graph& graph : program.graphs()) {
    for (const auto& [names, nodes] : sibling_groups(graph)) ++found[names];
    for (const Node& node : graph.nodes()) {
      for (Value input : node.inputs) {
        if (input.exists() && graph.node(input).op == Op::kParam) ++readers[graph.node(input).name];
      }
    }
    for (const auto* named : {&graph.outputs(), &graph.updates()}) {
      for (const NamedValue& entry : *named) {
        if (graph.node(entry.value).op == Op::kParam) ++readers[graph.node(entry.value).name];
      }
    }
  }
  std::vector<Names> agreed;
  for (const auto& [names, graphs] : found) {
    bool alone =
        std::all_of(names.begin(), names.end(), [&](const std::string& name) { return readers[name] == graphs; });
    if (alone) agreed.push_back(names);
  }
  return agreed;
}

std::string joined(const Names& names) {
  std::string result;
  for (const std::string& name : names) result += (result.empty() ? "" : ",") + name;
  return result;
}

Graph merge_in(const Graph& graph, const std::vector<Names>& agreed) {
  std::map<int32_t, std::vector<NodeId>> first;  // the group's products, by the first one
  std::set<int32_t> dropped;                     // products and weights
  for (auto& [names, nodes] : sibling_groups(graph)) {
    if (std::find(agreed.begin(), agreed.end(), names) == agreed.end()) continue;
    for (NodeId id : nodes) dropped.insert({index(id), index(graph.node(id).inputs[1].node)});
    first[index(nodes[0])] = nodes;
  }
  Rewriter rewriter(graph);
  Builder& builder = rewriter.builder();
  for (int32_t i = 0; i < graph.size(); ++i) {
    auto group = first.find(i);
    if (group == first.end()) {
      if (!dropped.contains(i)) rewriter.copy(NodeId{i});
      continue;
    }
    Names names;
    std::vector<int64_t> rows;
    for (NodeId id : group->second) {
      const Node& weight = graph.node(graph.node(id).inputs[1]);
      names.push_back(weight.name);
      rows.push_back(weight.results[0].shape[0]);
    }
    Node leaf = graph.node(graph.node(NodeId{i}).inputs[1]);
    for (size_t k = 1; k < rows.size(); ++k) leaf.results[0].shape[0] += rows[k];
    leaf.name = merged_name(names);
    leaf.attrs.set("parts", joined(names));
    leaf.attrs.set("part_rows", rows);
    Node product = graph.node(NodeId{i});
    product.name = leaf.name.substr(0, leaf.name.rfind(".weight"));
    product.inputs = {rewriter.map(product.inputs[0]), {rewriter.graph().add(std::move(leaf)), 0}};
    builder.set_layer(product.layer);
    Value merged{rewriter.graph().add(std::move(product)), 0};
    int64_t begin = 0;
    for (size_t k = 0; k < rows.size(); ++k) {
      rewriter.set({group->second[k], 0}, builder.slice(merged, 1, begin, begin + rows[k]));
      begin += rows[k];
    }
  }
  return rewriter.finish();
}

}  // namespace

bool merge_siblings(Program& program) {
  for (const StateEntry& entry : program.states()) {
    if (entry.kind == StateKind::kMoment || entry.kind == StateKind::kGradient) return false;  // training
  }
  std::vector<Names> agreed = agreed_groups(program);
  if (agreed.empty()) return false;
  Program packed;
  packed.name = program.name;
  for (const StateEntry& entry : program.states()) {
    auto holds = [&](const Names& names) { return std::find(names.begin(), names.end(), entry.name) != names.end(); };
    auto group = std::find_if(agreed.begin(), agreed.end(), holds);
    if (group == agreed.end()) {
      packed.add_state(entry);
      continue;
    }
    if (entry.name != group->front()) continue;
    StateEntry merged = entry;
    merged.name = merged.param = merged_name(*group);
    merged.type.shape[0] = 0;
    for (const std::string& name : *group) merged.type.shape[0] += program.find_state(name)->type.shape[0];
    packed.add_state(std::move(merged));
  }
  for (const Graph& graph : program.graphs()) packed.add_graph(merge_in(graph, agreed));
  program = std::move(packed);
  return true;
}

}  // namespace octet
