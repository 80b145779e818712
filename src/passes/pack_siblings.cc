// merge_siblings: products of one x with several weights become one product with all their rows. Codes, their scales
// and zero points lie side by side as the weights do; those of experts expert by expert.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "ir/rewrite.h"
#include "passes/passes.h"

namespace octet {
namespace {

using Names = std::vector<std::string>;

Value zero_points(const Node& node) { return node.operand(node.op == Op::kScaledGroupedMatmul ? "w_zero" : "b_zero"); }

// Which inputs of a product are leaves that are merged: the weight, or its codes, their scales and zero points.
std::vector<size_t> weight_inputs(const Node& node) {
  if (node.op == Op::kMatmul) return {1};
  return zero_points(node).exists() ? std::vector<size_t>{2, 3, 5} : std::vector<size_t>{2, 3};
}

int64_t experts_of(const Graph& graph, const Node& node) {
  return node.op == Op::kScaledGroupedMatmul ? graph.shape(node.operand("offsets"))[0] - 1 : 1;
}

const Node& leaf_of(const Graph& graph, NodeId product, size_t input) {
  return graph.node(graph.node(product).inputs[input]);
}

// Experts' products are merged where the kernels behind them read columns: those that end in codes (fold_slices). Not
// with scales of blocks, and not over ranks.
bool fits_experts(const Graph& graph, const Node& node) {
  const std::string& scaling = node.attr<std::string>("scaling_b");
  return node.attr<std::string>("scaling_a") == "row" && scaling != "128x128" &&
         graph.layout(node.inputs[2]).cut_axes().empty();
}

// A forward product x W^T of a linear whose weight is a param, or codes in its place.
bool is_mergeable(const Graph& graph, const Node& node) {
  const bool grouped = node.op == Op::kScaledGroupedMatmul, scaled = node.op == Op::kScaledMatmul || grouped;
  if (!scaled && node.op != Op::kMatmul) return false;
  if (node.attr<std::string>("role") != "fprop" || !node.attr<bool>("trans_b")) return false;
  if (grouped && !fits_experts(graph, node)) return false;
  if (!grouped && (node.attr<bool>("head") || node.attr<bool>("trans_a") || node.operand("c").exists())) return false;
  const Node& weight = graph.node(node.inputs[weight_inputs(node)[0]]);
  if (!scaled) return weight.op == Op::kParam;
  return weight.op == Op::kState && weight.attrs.has("scaling") && graph.node(node.inputs[3]).op == Op::kState;
}

// Whether the products may stand side by side: of one kind, and in blocks of 128 rows where scales are of such blocks.
bool fit_together(const Graph& graph, const std::vector<NodeId>& nodes) {
  const Node& first = graph.node(nodes[0]);
  const size_t weight = weight_inputs(first)[0];
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = graph.node(nodes[i]);
    if (node.op != first.op || node.results[0].dtype != first.results[0].dtype) return false;
    const Layout& layout = graph.layout(node.inputs[weight]);
    if (layout != graph.layout(first.inputs[weight]) || !layout.cut_axes(1).empty()) return false;
    if (node.op == Op::kMatmul) continue;
    const Node &codes = leaf_of(graph, nodes[i], weight), &expected = leaf_of(graph, nodes[0], weight);
    if (node.inputs[1] != first.inputs[1] || !(codes.attrs == expected.attrs)) return false;
    if (codes.results[0].dtype != expected.results[0].dtype) return false;
    if (zero_points(node).exists() != zero_points(first).exists()) return false;
    if (experts_of(graph, node) != experts_of(graph, first)) return false;
    const bool blocks = codes.attrs.get<std::string>("scaling") == "128x128";
    if (blocks && i + 1 < nodes.size() && codes.results[0].shape[0] % 128 != 0) return false;
  }
  return true;
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
    if (nodes.size() < 2 || !fit_together(graph, nodes)) continue;
    Names names;
    for (NodeId id : nodes) names.push_back(leaf_of(graph, id, weight_inputs(graph.node(id))[0]).name);
    groups.emplace(names, std::move(nodes));
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
  std::map<std::string, int> readers;  // reads of a leaf over all graphs
  const auto is_leaf = [](const Node& node) { return node.op == Op::kParam || node.op == Op::kState; };
  for (const Graph& graph : program.graphs()) {
    for (const auto& [names, nodes] : sibling_groups(graph)) ++found[names];
    for (const Node& node : graph.nodes()) {
      for (Value input : node.inputs) {
        if (input.exists() && is_leaf(graph.node(input))) ++readers[graph.node(input).name];
      }
    }
    for (const auto* named : {&graph.outputs(), &graph.updates()}) {
      for (const NamedValue& entry : *named) {
        if (is_leaf(graph.node(entry.value))) ++readers[graph.node(entry.value).name];
      }
    }
  }
  std::vector<Names> agreed;
  for (const auto& [names, graphs] : found) {
    bool alone = std::ranges::all_of(names, [&, in = graphs](const std::string& name) { return readers[name] == in; });
    if (alone) agreed.push_back(names);
  }
  return agreed;
}

// The entry that holds those of the group's leaves at this input, one below the other. One scale a tensor becomes one a
// row. Of tensors that are cut over ranks it holds this rank's parts, and the placements, of whole tensors, begin where
// these do (ir/localize.h).
StateEntry merged_entry(const Program& program, const Graph& graph, const std::vector<NodeId>& products, size_t input) {
  const size_t weight = weight_inputs(graph.node(products[0]))[0];
  StateEntry merged = *program.find_state(leaf_of(graph, products[0], input).name);
  const Node& codes = leaf_of(graph, products[0], weight);
  const bool groups = codes.op == Op::kState && input != weight &&
                      scale_group(parse_scale_layout(codes.attrs.get<std::string>("scaling"))) > 0;
  Names params;
  int64_t row = 0, all = 0;
  for (NodeId id : products) all += leaf_of(graph, id, weight).results[0].shape[0];
  const int64_t experts = experts_of(graph, graph.node(products[0]));
  merged.placements.clear();
  for (NodeId id : products) {
    const Shape& weights = leaf_of(graph, id, weight).results[0].shape;
    params.push_back(program.find_state(leaf_of(graph, id, input).name)->param);
    Shape shape = leaf_of(graph, id, input).results[0].shape;
    if (shape.rank() == 1) {
      shape[0] = weights[0];
      merged.layout = graph.layout(graph.node(id).inputs[weight]).only(0);
    }
    merged.placements.push_back(
        place_rows(params.back(), whole_shape(shape, merged.layout, graph.mesh()), groups ? 0 : row));
    Placement& at = merged.placements.back();
    if (groups) at.offset = row;  // [K/G, N]: a column for each row of codes
    if (experts > 1) {
      PlacedDim& rows = at.dims[groups ? 1 : 0];
      rows.run = rows.extent / experts, rows.run_stride = all / experts * rows.stride, at.offset /= experts;
    }
    row += groups ? weights[0] : shape[0];
  }
  for (Placement& at : merged.placements)
    if (groups) at.dims[0].stride = row, at.dims[0].run_stride = row * at.dims[0].extent;
  merged.type.shape[groups ? 1 : 0] = row;
  merged.param = merged_name(params);
  merged.name = state_name(merged.role, merged.param, merged.index);
  return merged;
}

using MergedStates = std::map<std::string, StateEntry>;  // by each entry that goes into one

// The product and the columns of each part, as nodes or as one fusion. Returns the parts.
std::vector<Value> emit_parts(Builder& builder, Node product, const std::vector<int64_t>& widths, bool fused) {
  Graph& graph = builder.graph();
  std::vector<Value> parts;
  const auto slices = [&](Builder& into, Value merged) {
    int64_t begin = 0;
    for (int64_t width : widths) {
      parts.push_back(into.slice(merged, 1, begin, begin + width));
      begin += width;
    }
  };
  if (!fused) {
    slices(builder, {graph.add(std::move(product)), 0});
    return parts;
  }
  auto body = std::make_shared<Graph>(empty_body(graph));
  Builder inside(*body);
  Node fusion{.op = Op::kFusion, .name = product.name, .layer = product.layer, .phase = product.phase};
  for (size_t i = 0; i < product.inputs.size(); ++i) {
    if (!product.inputs[i].exists()) continue;
    fusion.inputs.push_back(product.inputs[i]);
    product.inputs[i] = add_body_input(*body, graph, fusion.inputs.back(), fmt::format("matmul.{}", i));
  }
  product.name = "matmul";
  slices(inside, {body->add(std::move(product)), 0});
  for (size_t i = 0; i < parts.size(); ++i) body->outputs().push_back({fmt::format("part{}.0", i), parts[i]});
  for (Value part : parts) fusion.results.push_back(body->type(part));
  fusion.body = std::move(body);
  const NodeId id = graph.add(std::move(fusion));
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = {id, static_cast<int32_t>(i)};
  return parts;
}

Graph merge_in(const Program& program, const Graph& graph, const std::vector<Names>& agreed, bool fused,
               MergedStates& merged) {
  std::map<int32_t, std::vector<NodeId>> first;  // the group's products, by the first one
  std::set<int32_t> dropped;                     // products and weights
  for (auto& [names, nodes] : sibling_groups(graph)) {
    if (std::ranges::find(agreed, names) == agreed.end()) continue;
    for (NodeId id : nodes) {
      dropped.insert(index(id));
      for (size_t input : weight_inputs(graph.node(id))) dropped.insert(index(graph.node(id).inputs[input].node));
    }
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
    Node product = graph.node(NodeId{i});
    const std::vector<size_t> leaves = weight_inputs(product);
    for (size_t input = 0; input < product.inputs.size(); ++input) {
      if (std::ranges::find(leaves, input) == leaves.end()) {
        if (product.inputs[input].exists()) product.inputs[input] = rewriter.map(product.inputs[input]);
        continue;
      }
      const StateEntry entry = merged_entry(program, graph, group->second, input);
      for (NodeId id : group->second) merged.insert_or_assign(leaf_of(graph, id, input).name, entry);
      Node leaf = leaf_of(graph, NodeId{i}, input);
      leaf.name = entry.name;
      leaf.results[0] = entry.type;
      if (!leaf.layouts.empty()) leaf.layouts[0] = entry.layout;
      if (input == leaves[0]) product.name = entry.param.substr(0, entry.param.rfind(".weight"));
      product.inputs[input] = {rewriter.graph().add(std::move(leaf)), 0};
    }
    if (product.op != Op::kMatmul && product.attr<std::string>("scaling_b") == "tensor")
      product.attrs.set("scaling_b", "row");
    std::vector<int64_t> widths;
    for (NodeId id : group->second) widths.push_back(graph.node(id).results[0].shape[1]);
    product.results.clear();
    builder.set_layer(product.layer);
    const std::vector<Value> parts = emit_parts(builder, std::move(product), widths, fused);
    for (size_t k = 0; k < parts.size(); ++k) rewriter.set({group->second[k], 0}, parts[k]);
  }
  return rewriter.finish();
}

}  // namespace

bool merge_siblings(Program& program, bool fused) {
  if (is_training(program)) return false;
  const std::vector<Names> agreed = agreed_groups(program);
  if (agreed.empty()) return false;
  Program packed;
  packed.name = program.name;
  MergedStates merged;
  for (const Graph& graph : program.graphs()) packed.add_graph(merge_in(program, graph, agreed, fused, merged));
  for (const StateEntry& entry : program.states()) {
    const auto found = merged.find(entry.name);
    packed.add_state(found == merged.end() ? entry : found->second);
  }
  program = std::move(packed);
  return true;
}

}  // namespace octet
