#include "passes/fuse_patterns.h"

#include <algorithm>
#include <optional>

namespace octet {
namespace {

using Match = std::vector<FusionMember>;
using Accepts = bool (*)(const Graph& graph, const Node& node);

// One link of a chain: a node that reads result 0 of a node before it.
struct Link {
  const char* name;
  Accepts accepts;
  size_t back = 1;  // which one: the one before, the one before that
};
Link beside(Link link) {  // reads what the link before it reads
  return {link.name, link.accepts, link.back + 1};
}

bool is_norm(const Graph&, const Node& node) { return node.op == Op::kLayerNorm || node.op == Op::kRmsNorm; }
bool is_norm_grad(const Graph&, const Node& node) {
  return node.op == Op::kLayerNormGrad || node.op == Op::kRmsNormGrad;
}
bool is_quantize(const Graph&, const Node& node) { return node.op == Op::kQuantize; }
bool is_amax(const Graph&, const Node& node) {
  return node.op == Op::kReduce && node.attrs.get<std::string>("kind") == "amax" &&
         node.attrs.get<std::string>("axis") == "all";
}
bool is_row_sum(const Graph&, const Node& node) {
  return node.op == Op::kReduce && node.attrs.get<std::string>("kind") == "sum" &&
         node.attrs.get<std::string>("axis") == "rows";
}
bool is_scale(const Graph&, const Node& node) { return node.op == Op::kComputeScale; }
bool is_rope(const Graph&, const Node& node) { return node.op == Op::kRope; }
bool is_gelu(const Graph&, const Node& node) { return node.op == Op::kGelu; }
bool is_gelu_grad(const Graph&, const Node& node) { return node.op == Op::kGeluGrad; }
bool is_silu(const Graph&, const Node& node) { return node.op == Op::kSilu; }
bool is_relu(const Graph&, const Node& node) { return node.op == Op::kRelu; }
bool same_shapes(const Graph& graph, const Node& node) {
  return graph.shape(node.inputs[0]) == graph.shape(node.inputs[1]);
}
bool is_mul(const Graph& graph, const Node& node) { return node.op == Op::kMul && same_shapes(graph, node); }
bool is_residual(const Graph& graph, const Node& node) { return node.op == Op::kAdd && same_shapes(graph, node); }
bool is_bias(const Graph& graph, const Node& node) {
  return node.op == Op::kAdd && graph.shape(node.inputs[0]).rank() == 2 && graph.shape(node.inputs[1]).rank() == 1 &&
         graph.shape(node.inputs[1])[0] > 1;
}

constexpr Link kNorm{"norm", is_norm}, kNormGrad{"norm_grad", is_norm_grad}, kQuantize{"quantize", is_quantize},
    kAmaxOf{"amax", is_amax}, kRowSum{"bias_grad", is_row_sum}, kGelu{"gelu", is_gelu},
    kGeluGrad{"gelu_grad", is_gelu_grad}, kSilu{"silu", is_silu}, kRelu{"relu", is_relu}, kMul{"mul", is_mul},
    kAdd{"add", is_residual}, kBias{"bias", is_bias}, kScale{"scale", is_scale}, kRope{"rope", is_rope};

// The first user of `value` that is this link, in the same phase as the node it starts from.
NodeId find_user(const UseGraph& uses, Value value, const Link& link, Phase phase) {
  for (NodeId user : uses.users(value)) {
    const Node& node = uses.node(user);
    if (node.phase == phase && link.accepts(uses.graph(), node)) return user;
  }
  return NodeId::kNone;
}

void in_node_order(Match& match) {
  std::sort(match.begin(), match.end(),
            [](const FusionMember& a, const FusionMember& b) { return index(a.node) < index(b.node); });
}

// dsilu = dy * up; dgate = silu_grad(gate, dsilu); dup = dy * silu(gate), the last silu a member when it is made again.
Match swiglu_grad(const UseGraph& uses, NodeId first) {
  const Node& node = uses.node(first);
  if (node.op != Op::kMul || !is_mul(uses.graph(), node)) return {};
  NodeId grad = NodeId::kNone;
  for (NodeId user : uses.users({first, 0})) {
    if (uses.node(user).op == Op::kSiluGrad && uses.node(user).inputs[1] == Value{first, 0}) grad = user;
  }
  if (grad == NodeId::kNone) return {};
  Value gate = uses.node(grad).inputs[0];
  for (Value dy : node.inputs) {
    for (NodeId other : uses.users(dy)) {
      const Node& product = uses.node(other);
      if (other == first || product.op != Op::kMul || product.phase != node.phase) continue;
      Value silu = product.inputs[0] == dy ? product.inputs[1] : product.inputs[0];
      const Node& maker = uses.node(silu.node);
      if (maker.op != Op::kSilu || maker.inputs[0] != gate) continue;
      Match match = {{first, "dsilu"}, {grad, "dgate"}, {other, "dup"}};
      bool only_here = uses.users(silu).size() == 1 && !uses.is_output(silu);
      if (maker.phase != Phase::kForward && only_here) match.push_back({silu.node, "silu"});
      in_node_order(match);
      return match;
    }
  }
  return {};
}

// The swiglu_grad and what reads each of its two results: named after them, "quantize_dgate".
FusionPattern swiglu_grad_with(const char* kind, const char* members, Link end) {
  return {kind, members, [end](const UseGraph& uses, NodeId first) {
            Match match = swiglu_grad(uses, first);
            Match ends;
            for (const FusionMember& member : match) {
              if (member.name != "dgate" && member.name != "dup") continue;
              NodeId user = find_user(uses, {member.node, 0}, end, uses.node(first).phase);
              if (user == NodeId::kNone) return Match{};
              ends.push_back({user, std::string(end.name) + "_" + member.name});
            }
            match.insert(match.end(), ends.begin(), ends.end());
            in_node_order(match);
            return match;
          }};
}

// `root`, where there is one, and nodes that all read its result 0; else nodes that read what the first of them reads.
FusionPattern fan(const char* kind, const char* members, std::optional<Link> root, std::vector<Link> links) {
  return {kind, members, [root, links](const UseGraph& uses, NodeId first) {
            const Link& link = root ? *root : links.front();
            if (!link.accepts(uses.graph(), uses.node(first))) return Match{};
            Match match = {{first, link.name}};
            const Value read = root ? Value{first, 0} : uses.node(first).inputs[0];
            for (size_t i = root ? 0 : 1; i < links.size(); ++i) {
              NodeId user = find_user(uses, read, links[i], uses.node(first).phase);
              if (user == NodeId::kNone) return Match{};
              match.push_back({user, links[i].name});
            }
            in_node_order(match);
            return match;
          }};
}

// A product that only its bias reads; one that already starts from an addend stays as it is, and so does an output
// head, whose table and bias get padded rows (pack).
Match matmul_bias(const UseGraph& uses, NodeId first) {
  const Node& node = uses.node(first);
  if (node.op != Op::kMatmul && node.op != Op::kScaledMatmul) return {};
  if (node.attrs.get_or<std::string>("kind", "") == "head") return {};
  const size_t addend = node.op == Op::kMatmul ? 2 : 4;
  const bool starts_from = node.inputs.size() > addend && node.inputs[addend].exists();
  if (starts_from || uses.users({first, 0}).size() != 1 || uses.is_output({first, 0})) return {};
  NodeId bias = find_user(uses, {first, 0}, kBias, node.phase);
  bool same = bias != NodeId::kNone && uses.node(bias).inputs[0] == Value{first, 0} &&
              uses.node(bias).results[0] == node.results[0];
  return same ? Match{{first, "matmul"}, {bias, "bias"}} : Match{};
}

// The attention that reads these keys through the paged cache.
NodeId attention_of(const UseGraph& uses, NodeId append) {
  for (NodeId user : uses.users({append, 0})) {
    const Node& node = uses.node(user);
    if (node.op == Op::kPagedAttention && node.inputs[1] == Value{append, 0}) return user;
  }
  return NodeId::kNone;
}

// The two appends of a layer, to the same slots, found from that of the keys.
Match kv_append_pair(const UseGraph& uses, NodeId first) {
  if (uses.node(first).op != Op::kKvAppend) return {};
  const NodeId attention = attention_of(uses, first);
  if (attention == NodeId::kNone) return {};
  const NodeId second = uses.node(attention).inputs[2].node;
  const Node& values = uses.node(second);
  if (values.op != Op::kKvAppend || second == first || values.inputs[2] != uses.node(first).inputs[2]) return {};
  return {{first, "append_k"}, {second, "append_v"}};
}

// With the ropes of queries and keys, by the same angles; turned keys go to the cache alone.
Match rope_kv_append(const UseGraph& uses, NodeId first) {
  Match match = kv_append_pair(uses, first);
  if (match.empty()) return {};
  const Value key = uses.node(first).inputs[1], query = uses.node(attention_of(uses, first)).inputs[0];
  const Node &key_rope = uses.node(key.node), &query_rope = uses.node(query.node);
  if (key_rope.op != Op::kRope || query_rope.op != Op::kRope || key_rope.inputs[1] != query_rope.inputs[1]) return {};
  Attrs attrs = key_rope.attrs;
  attrs.set("heads", query_rope.attrs.get<int64_t>("heads"));
  if (!(attrs == query_rope.attrs) || uses.users(key).size() != 1 || uses.is_output(key)) return {};
  match.insert(match.begin(), {{query.node, "rope_q"}, {key.node, "rope_k"}});
  return match;
}

FusionPattern row(const char* kind, const char* members, std::vector<Link> links) {
  return {kind, members, [links](const UseGraph& uses, NodeId first) {
            Match match;
            for (const Link& link : links) {
              NodeId node = first;
              if (!match.empty()) {
                node = find_user(uses, {match[match.size() - link.back].node, 0}, link, uses.node(first).phase);
              }
              if (node == NodeId::kNone || !link.accepts(uses.graph(), uses.node(node))) return Match{};
              match.push_back({node, link.name});
            }
            return match;
          }};
}

}  // namespace

UseGraph::UseGraph(const Graph& graph) : graph_(graph) {
  for (const Node& node : graph.nodes()) {
    users_.emplace_back(node.results.size());
    outputs_.emplace_back(node.results.size(), false);
  }
  for (int32_t i = 0; i < graph.size(); ++i) {
    for (Value input : graph.node(NodeId{i}).inputs) {
      if (!input.exists()) continue;
      auto& list = users_[static_cast<size_t>(index(input.node))][static_cast<size_t>(input.result)];
      if (list.empty() || list.back() != NodeId{i}) list.push_back(NodeId{i});
    }
  }
  for (const auto* named : {&graph.outputs(), &graph.updates()}) {
    for (const NamedValue& entry : *named) {
      outputs_[static_cast<size_t>(index(entry.value.node))][static_cast<size_t>(entry.value.result)] = true;
    }
  }
}

const std::vector<NodeId>& UseGraph::users(Value value) const {
  return users_[static_cast<size_t>(index(value.node))][static_cast<size_t>(value.result)];
}

std::span<const FusionPattern> fusion_patterns() {
  static const std::vector<FusionPattern> table = {
      row("add_norm_quantize", "add, norm, quantize", {kAdd, kNorm, kQuantize}),
      row("add_norm_amax", "add, norm, amax", {kAdd, kNorm, kAmaxOf}),
      row("bias_gelu_quantize", "bias, gelu, quantize", {kBias, kGelu, kQuantize}),
      row("bias_gelu_amax", "bias, gelu, amax", {kBias, kGelu, kAmaxOf}),
      row("swiglu_quantize", "silu, mul, quantize", {kSilu, kMul, kQuantize}),
      row("geglu_quantize", "gelu, mul, quantize", {kGelu, kMul, kQuantize}),
      row("swiglu_amax", "silu, mul, amax", {kSilu, kMul, kAmaxOf}),
      swiglu_grad_with("swiglu_grad_quantize", "swiglu_grad's, quantize of dgate and dup", kQuantize),
      swiglu_grad_with("swiglu_grad_amax", "swiglu_grad's, amax of dgate and dup", kAmaxOf),
      {"swiglu_grad", "dsilu, dgate, dup, (silu)", swiglu_grad},
      row("norm_quantize", "norm, quantize", {kNorm, kQuantize}),
      row("norm_amax", "norm, amax", {kNorm, kAmaxOf}),
      row("add_norm", "add, norm", {kAdd, kNorm}),
      row("bias_gelu", "bias, gelu", {kBias, kGelu}),
      row("gelu_quantize", "gelu, quantize", {kGelu, kQuantize}),
      row("relu_quantize", "relu, quantize", {kRelu, kQuantize}),
      row("swiglu", "silu, mul", {kSilu, kMul}),
      fan("gelu_grad_bias_quantize", "gelu_grad, bias_grad, quantize", kGeluGrad, {kRowSum, kQuantize}),
      fan("gelu_grad_bias_amax", "gelu_grad, bias_grad, amax", kGeluGrad, {kRowSum, kAmaxOf}),
      row("gelu_grad_bias", "gelu_grad, bias_grad", {kGeluGrad, kRowSum}),
      row("gelu_grad_quantize", "gelu_grad, quantize", {kGeluGrad, kQuantize}),
      row("gelu_grad_amax", "gelu_grad, amax", {kGeluGrad, kAmaxOf}),
      row("norm_grad_add_bias_amax", "norm_grad, add, bias_grad, amax", {kNormGrad, kAdd, kRowSum, beside(kAmaxOf)}),
      row("norm_grad_add_amax", "norm_grad, add, amax", {kNormGrad, kAdd, kAmaxOf}),
      fan("bias_grad_quantize", "bias_grad, quantize", std::nullopt, {kRowSum, kQuantize}),
      fan("bias_grad_amax", "bias_grad, amax", std::nullopt, {kRowSum, kAmaxOf}),
      {"matmul_bias", "matmul or scaled_matmul, bias", matmul_bias},  // after those that take the bias
      row("norm_grad_add_bias", "norm_grad, add, bias_grad", {kNormGrad, kAdd, kRowSum}),
      row("norm_grad_add", "norm_grad, add", {kNormGrad, kAdd}),
      {"rope_kv_append", "rope_q, rope_k, append_k, append_v", rope_kv_append},
      {"kv_append_pair", "append_k, append_v", kv_append_pair},
      row("rope_amax", "rope, amax", {kRope, kAmaxOf}),
      row("scale_quantize", "scale, quantize", {kScale, kQuantize}),  // after those that make what is quantized
  };
  return table;
}

}  // namespace octet
