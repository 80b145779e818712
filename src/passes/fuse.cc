#include "passes/passes.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "ir/rewrite.h"
#include "passes/fuse_patterns.h"

namespace octet {
namespace {

bool is_leaf(const Node& node) { return is_named_leaf(node.op) || node.op == Op::kConstant; }

// A fusion to be made: where its node stands, what it reads, which results leave it.
struct Site {
  std::vector<FusionMember> members;
  int32_t position = 0;  // before the old node of this index
  std::vector<Value> inputs;
  std::vector<std::string> input_names;
  std::vector<Value> results;
  std::vector<std::string> result_names;
};

bool is_member(const Site& site, NodeId id) {
  return std::ranges::any_of(site.members, [id](const FusionMember& member) { return member.node == id; });
}

void add_inputs(const Graph& graph, Site& site) {
  for (const FusionMember& member : site.members) {
    const Node& node = graph.node(member.node);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      Value input = node.inputs[i];
      if (!input.exists() || is_member(site, input.node)) continue;
      if (std::ranges::find(site.inputs, input) != site.inputs.end()) continue;
      site.inputs.push_back(input);
      site.input_names.push_back(fmt::format("{}.{}", member.name, i));
    }
  }
}

// Results read outside, and the position: after every input, before every outside reader. False when there is none
// (a reader outside feeds a member: the scale of a quantize made from the norm it would be fused with). Nodes taken by
// earlier sites count where those sites stand: `moved` has that position, or -1.
bool place(const UseGraph& uses, const std::vector<int32_t>& moved, Site& site) {
  const Graph& graph = uses.graph();
  auto moved_to = [&](NodeId id) { return moved[slot(id)]; };
  int32_t earliest = 0, latest = index(site.members.back().node);
  for (Value input : site.inputs) {
    if (is_leaf(graph.node(input))) continue;
    earliest = std::max({earliest, index(input.node) + 1, moved_to(input.node) + 1});
  }
  for (const FusionMember& member : site.members) {
    for (int32_t r = 0; r < static_cast<int32_t>(graph.node(member.node).results.size()); ++r) {
      Value result{member.node, r};
      bool leaves = uses.is_output(result);
      for (NodeId user : uses.users(result)) {
        if (is_member(site, user)) continue;
        leaves = true;
        latest = std::min(latest, moved_to(user) >= 0 ? moved_to(user) - 1 : index(user));
      }
      if (!leaves) continue;
      site.results.push_back(result);
      site.result_names.push_back(fmt::format("{}.{}", member.name, r));
    }
  }
  site.position = latest;
  return earliest <= latest && !site.results.empty();
}

std::shared_ptr<const Graph> make_body(const Graph& graph, const Site& site) {
  auto body = std::make_shared<Graph>(empty_body(graph));
  std::unordered_map<Value, Value, ValueHash> map;
  for (size_t i = 0; i < site.inputs.size(); ++i) {
    map[site.inputs[i]] = add_body_input(*body, graph, site.inputs[i], site.input_names[i]);
  }
  for (const FusionMember& member : site.members) {
    Node node = graph.node(member.node);
    for (Value& input : node.inputs) {
      if (input.exists()) input = map.at(input);
    }
    node.name = member.name;
    size_t results = node.results.size();
    NodeId id = body->add(std::move(node));
    for (size_t r = 0; r < results; ++r) {
      map[{member.node, static_cast<int32_t>(r)}] = {id, static_cast<int32_t>(r)};
    }
  }
  for (size_t i = 0; i < site.results.size(); ++i) {
    body->outputs().push_back({site.result_names[i], map.at(site.results[i])});
  }
  return body;
}

void emit(Rewriter& rewriter, const Site& site) {
  const Graph& old = rewriter.old_graph();
  const Node& first = old.node(site.members.front().node);
  Node fusion{.op = Op::kFusion, .name = first.name, .layer = first.layer, .phase = first.phase};
  for (Value input : site.inputs) {
    if (is_leaf(old.node(input)) && !rewriter.is_mapped(input)) rewriter.copy(input.node);
    fusion.inputs.push_back(rewriter.map(input));
  }
  for (Value result : site.results) fusion.results.push_back(old.type(result));
  fusion.body = make_body(old, site);
  NodeId id = rewriter.graph().add(std::move(fusion));
  for (size_t i = 0; i < site.results.size(); ++i) rewriter.set(site.results[i], {id, static_cast<int32_t>(i)});
}

std::vector<Site> find_sites(const Graph& graph, const Target& target, std::span<const FusionPattern> patterns) {
  UseGraph uses(graph);
  std::vector<int32_t> moved(static_cast<size_t>(graph.size()), -1);
  auto taken = [&](NodeId id) { return moved[slot(id)] >= 0; };
  std::vector<Site> sites;
  for (const FusionPattern& pattern : patterns) {
    for (int32_t i = 0; i < graph.size(); ++i) {
      if (taken(NodeId{i})) continue;
      for (FusionMembers& members : pattern.match(uses, NodeId{i}, target)) {
        Site site{.members = std::move(members)};
        if (std::ranges::any_of(site.members, [&](const auto& m) { return taken(m.node); })) continue;
        add_inputs(graph, site);
        if (!place(uses, moved, site)) continue;
        for (const FusionMember& member : site.members) moved[slot(member.node)] = site.position;
        sites.push_back(std::move(site));
        break;
      }
    }
  }
  return sites;
}

// Sums that a product can start from: add(matmul(a, b), x) becomes matmul(a, b, x), where nobody else reads the product
// and it is made in the type it is summed in.
bool merge_sums(Graph& graph, const CompileOptions& options) {
  const UseGraph uses(graph);
  return fold_into_products(graph, [&](const Node& sum) {
    for (size_t side = 0; side < 2; ++side) {
      const Value value = sum.inputs[side], other = sum.inputs[1 - side];
      const Node& node = graph.node(value);
      if (node.op != Op::kMatmul && node.op != Op::kScaledMatmul) continue;
      const bool same = graph.type(value) == graph.type(other) && sum.results[0] == graph.type(value);
      if (node.operand("c").exists() || !same || value == other) continue;
      if (uses.users(value).size() != 1 || uses.is_output(value)) continue;
      const bool accumulates = graph.dtype(value) == DType::kF32 && node.attr<std::string>("role") == "wgrad";
      const FusionPart part = accumulates ? FusionPart::kAccumulate : FusionPart::kResidual;
      if (options.target.fuses(Producer::kProduct, part)) return value;
    }
    return Value::none();
  });
}

bool fuse_patterns(Graph& graph, const CompileOptions& options) { return fuse_graph(graph, options.target); }

}  // namespace

bool fuse_graph(Graph& graph, const Target& target, std::span<const FusionPattern> patterns) {
  std::vector<Site> sites = find_sites(graph, target, patterns);
  if (sites.empty()) return false;
  std::ranges::stable_sort(sites, [](const Site& a, const Site& b) { return a.position < b.position; });
  std::vector<bool> fused(static_cast<size_t>(graph.size()), false);
  for (const Site& site : sites) {
    for (const FusionMember& member : site.members) fused[slot(member.node)] = true;
  }
  Rewriter rewriter(graph);
  size_t next = 0;
  for (int32_t i = 0; i < graph.size(); ++i) {
    while (next < sites.size() && sites[next].position == i) emit(rewriter, sites[next++]);
    NodeId id{i};
    if (!fused[static_cast<size_t>(i)] && !rewriter.is_mapped({id, 0})) rewriter.copy(id);
  }
  graph = rewriter.finish();
  return true;
}

std::span<const Step> fuse_steps() {
  static constexpr Step kSteps[] = {{"merge_sums", on_graphs<merge_sums>}, {"fuse_patterns", on_graphs<fuse_patterns>}};
  return kSteps;
}

bool fuse(Program& program, const CompileOptions& options) {
  const bool changed = run_steps(fuse_steps(), program, options);
  for (Graph& graph : program.graphs()) graph.set_stage(Stage::kFused);
  return changed;
}

}  // namespace octet
