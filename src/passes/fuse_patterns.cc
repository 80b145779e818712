#include "passes/fuse_patterns.h"

#include <algorithm>
#include <bit>

#include "ir/facts.h"

namespace octet {
namespace {

using Candidates = std::vector<FusionMembers>;
using Accepts = bool (*)(const Graph& graph, const Node& node);

bool is_quantize(const Graph&, const Node& node) { return node.op == Op::kQuantize; }
bool same_shapes(const Graph& graph, const Node& node) {
  return graph.shape(node.inputs[0]) == graph.shape(node.inputs[1]);
}
bool is_mul(const Graph& graph, const Node& node) { return node.op == Op::kMul && same_shapes(graph, node); }
bool is_residual(const Graph& graph, const Node& node) { return node.op == Op::kAdd && same_shapes(graph, node); }

// The first user of `value` that this accepts, in the phase of the fusion.
NodeId find_user(const UseGraph& uses, Value value, Accepts accepts, Phase phase) {
  for (NodeId user : uses.users(value)) {
    const Node& node = uses.node(user);
    if (node.phase == phase && accepts(uses.graph(), node)) return user;
  }
  return NodeId::kNone;
}

// The node that makes `value`, where this accepts it, in the phase of the fusion.
NodeId find_maker(const UseGraph& uses, Value value, Accepts accepts, Phase phase) {
  const Node& node = uses.node(value.node);
  return value.result == 0 && node.phase == phase && accepts(uses.graph(), node) ? value.node : NodeId::kNone;
}

FusionMembers joined(FusionMembers members, const FusionMembers& more) {
  members.insert(members.end(), more.begin(), more.end());
  std::ranges::sort(members,
                    [](const FusionMember& a, const FusionMember& b) { return index(a.node) < index(b.node); });
  return members;
}

// The sets of sinks of `value` that the Target's kernels make beside this producer, the largest first, then none. A
// quantize makes the amax too. Names end in `suffix`.
std::vector<FusionMembers> sinks_of(const UseGraph& uses, Value value, Producer producer, const Target& target,
                                    const std::string& suffix = "") {
  const Phase phase = uses.node(value.node).phase;
  const auto find = [&](FusionPart part, const char* name, Accepts accepts) {
    const NodeId user = target.fuses(producer, part) ? find_user(uses, value, accepts, phase) : NodeId::kNone;
    return user == NodeId::kNone ? FusionMembers{} : FusionMembers{{user, name + suffix}};
  };
  const FusionMembers sum = find(FusionPart::kColumnSum, "bias_grad",
                                 [](const Graph&, const Node&node) { return is_column_sum(node); }),
                      codes = find(FusionPart::kQuantize, "quantize", is_quantize),
                      amax =
                          find(FusionPart::kAmax, "amax", [](const Graph&, const Node&node) { return is_amax(node); });
  std::vector<FusionMembers> sets;
  for (const FusionMembers* first : {&sum, static_cast<const FusionMembers*>(nullptr)}) {
    if (first != nullptr && first->empty()) continue;
    const FusionMembers start = first != nullptr ? *first : FusionMembers{};
    for (const FusionMembers* last : {&codes, &amax})
      if (!last->empty()) sets.push_back(joined(start, *last));
    sets.push_back(start);
  }
  return sets;
}

// Every core with every set of sinks that `made` has, cores in order; fusions of one node are none.
Candidates with_sinks(const std::vector<FusionMembers>& cores, const std::vector<FusionMembers>& sinks) {
  Candidates candidates;
  for (const FusionMembers& core : cores) {
    for (const FusionMembers& set : sinks) {
      FusionMembers members = joined(core, set);
      if (members.size() > 1) candidates.push_back(std::move(members));
    }
  }
  return candidates;
}

// The sum over ranks of one tensor.
bool is_rank_sum(const Graph&, const Node& node) {
  return node.op == Op::kAllReduce && node.attr<std::string>("reduction") == "sum" && node.inputs.size() == 1;
}

// The sum over ranks, of a few rows, that only the first member of a norm's core reads.
NodeId find_rank_sum(const UseGraph& uses, NodeId reader, size_t operands, const Target& target) {
  if (!target.fuses(Producer::kNorm, FusionPart::kRankSum)) return NodeId::kNone;
  const Node& node = uses.node(reader);
  for (size_t i = 0; i < operands; ++i) {
    const NodeId sum = find_maker(uses, node.inputs[i], is_rank_sum, node.phase);
    const bool small = sum != NodeId::kNone && uses.graph().type({sum, 0}).bytes() <= target.limits.rank_sum_bytes;
    if (small && uses.users({sum, 0}).size() == 1 && !uses.is_output({sum, 0})) return sum;
  }
  return NodeId::kNone;
}

// (all_reduce,) (add,) norm
Candidates norm(const UseGraph& uses, NodeId first, const Target& target) {
  const Node& node = uses.node(first);
  if (!is_norm(node.op)) return {};
  std::vector<FusionMembers> cores;
  const auto add_core = [&](FusionMembers core, size_t operands) {  // with the sum over ranks first
    const NodeId sum = find_rank_sum(uses, core.front().node, operands, target);
    if (sum != NodeId::kNone) cores.push_back(joined(core, {{sum, "rank_sum"}}));
    cores.push_back(std::move(core));
  };
  const NodeId add = find_maker(uses, node.inputs[0], is_residual, node.phase);
  if (add != NodeId::kNone && target.fuses(Producer::kNorm, FusionPart::kResidual))
    add_core({{add, "add"}, {first, "norm"}}, 2);
  add_core({{first, "norm"}}, 1);
  return with_sinks(cores, sinks_of(uses, {first, 0}, Producer::kNorm, target));
}

// norm_grad, add. Sums over rows stay for the quantize of the same gradient, which kPlain makes with them.
Candidates norm_grad(const UseGraph& uses, NodeId first, const Target& target) {
  const Node& node = uses.node(first);
  if (!is_norm_grad(node.op)) return {};
  const NodeId add = find_user(uses, {first, 0}, is_residual, node.phase);
  if (add == NodeId::kNone || !target.fuses(Producer::kNormGrad, FusionPart::kResidual)) return {};
  Candidates candidates =
      with_sinks({{{first, "norm_grad"}, {add, "add"}}}, sinks_of(uses, {add, 0}, Producer::kNormGrad, target));
  if (find_user(uses, {add, 0}, is_quantize, node.phase) != NodeId::kNone &&
      target.fuses(Producer::kPlain, FusionPart::kColumnSum)) {
    std::erase_if(candidates, [](const FusionMembers& members) {
      return members.back().name == "bias_grad" && members.size() == 3;
    });
  }
  return candidates;
}

// Without the quantizes by rows of a value that others read too: their kernels make codes alone.
std::vector<FusionMembers> without_row_codes(const UseGraph& uses, Value value, std::vector<FusionMembers> sinks) {
  std::erase_if(sinks, [&](const FusionMembers& set) {
    return std::ranges::any_of(set, [&](const FusionMember& member) {
      const Node& node = uses.node(member.node);
      return node.op == Op::kQuantize && node.attr<std::string>("scaling") == "row" &&
             (uses.users(value).size() > set.size() || uses.is_output(value));
    });
  });
  return sinks;
}

// (bias,) activation, or its square
Candidates activation(const UseGraph& uses, NodeId first, const Target& target) {
  const Node& node = uses.node(first);
  if (!is_activation(node.op) || !target.fuses(Producer::kActivation)) return {};
  const char* name = op_name(node.op);
  const NodeId add = target.fuses(Producer::kActivation, FusionPart::kBias)
                         ? find_maker(uses, node.inputs[0], is_bias, node.phase)
                         : NodeId::kNone;
  FusionMembers core = {{first, name}};
  if (add != NodeId::kNone) core.insert(core.begin(), {add, "bias"});
  Candidates candidates;
  const NodeId square = find_user(uses, {first, 0}, is_mul, node.phase);
  if (square != NodeId::kNone && uses.node(square).inputs[0] == uses.node(square).inputs[1]) {
    candidates =
        with_sinks({joined(core, {{square, "square"}})}, sinks_of(uses, {square, 0}, Producer::kActivation, target));
  }
  std::vector<FusionMembers> cores = {core};
  if (add != NodeId::kNone) cores.push_back({{first, name}});
  for (FusionMembers& members : with_sinks(
           cores, without_row_codes(uses, {first, 0}, sinks_of(uses, {first, 0}, Producer::kActivation, target))))
    candidates.push_back(std::move(members));
  return candidates;
}

// activation, mul by another factor
Candidates gated(const UseGraph& uses, NodeId first, const Target& target) {
  const Node& node = uses.node(first);
  if (!is_activation(node.op) || !target.fuses(Producer::kGated)) return {};
  const NodeId mul = find_user(uses, {first, 0}, is_mul, node.phase);
  if (mul == NodeId::kNone || uses.node(mul).inputs[0] == uses.node(mul).inputs[1]) return {};
  return with_sinks({{{first, op_name(node.op)}, {mul, "mul"}}},
                    without_row_codes(uses, {mul, 0}, sinks_of(uses, {mul, 0}, Producer::kGated, target)));
}

// The activation of `gate` that a gradient reads, a member where it is made again for that alone.
FusionMembers remade(const UseGraph& uses, Value act) {
  const bool only_here = uses.users(act).size() == 1 && !uses.is_output(act);
  if (uses.node(act.node).phase == Phase::kForward || !only_here) return {};
  return {{act.node, op_name(uses.node(act.node).op)}};
}

// act_grad, or of the square: product = dy act, sum = product + product, act_grad
Candidates activation_grad(const UseGraph& uses, NodeId first, const Target& target) {
  const Node& node = uses.node(first);
  if (!is_activation_grad(node.op) || !target.fuses(Producer::kActivationGrad)) return {};
  const std::vector<FusionMembers> sinks = sinks_of(uses, {first, 0}, Producer::kActivationGrad, target);
  FusionMembers core = {{first, op_name(node.op)}};
  Candidates candidates;
  const Node& sum = uses.node(node.inputs[1].node);
  if (sum.op == Op::kAdd && sum.phase == node.phase && sum.inputs[0] == sum.inputs[1]) {
    const Node& product = uses.node(sum.inputs[0].node);
    for (Value act : product.op == Op::kMul ? product.inputs : std::vector<Value>{}) {
      const Node& maker = uses.node(act.node);
      if (maker.op != activation_of(node.op) || maker.inputs[0] != node.inputs[0]) continue;
      FusionMembers squared = joined(core, {{sum.inputs[0].node, "product"}, {node.inputs[1].node, "sum"}});
      candidates = with_sinks({joined(squared, remade(uses, act)), squared}, sinks);
      break;
    }
  }
  for (FusionMembers& members : with_sinks({core}, sinks)) candidates.push_back(std::move(members));
  return candidates;
}

// dact = dy * up; dgate = act_grad(gate, dact); dup = dy * act(gate)
Candidates gated_grad(const UseGraph& uses, NodeId first, const Target& target) {
  const Node& grad = uses.node(first);
  if (!is_activation_grad(grad.op) || !target.fuses(Producer::kGatedGrad)) return {};
  const NodeId dact = find_maker(uses, grad.inputs[1], is_mul, grad.phase);
  if (dact == NodeId::kNone) return {};
  const Value gate = grad.inputs[0];
  for (Value dy : uses.node(dact).inputs) {
    for (NodeId other : uses.users(dy)) {
      const Node& product = uses.node(other);
      if (other == dact || product.op != Op::kMul || product.phase != grad.phase) continue;
      const Value act = product.inputs[0] == dy ? product.inputs[1] : product.inputs[0];
      const Node& maker = uses.node(act.node);
      if (maker.op != activation_of(grad.op) || maker.inputs[0] != gate) continue;
      const FusionMembers core = joined({{dact, "dact"}, {first, "dgate"}, {other, "dup"}}, remade(uses, act));
      const auto of_gate = sinks_of(uses, {first, 0}, Producer::kGatedGrad, target, "_dgate"),
                 of_up = sinks_of(uses, {other, 0}, Producer::kGatedGrad, target, "_dup");
      Candidates candidates;  // sinks alike on both sides
      for (const FusionMembers& one : of_gate) {
        for (const FusionMembers& two : of_up) {
          const bool alike = std::equal(one.begin(), one.end(), two.begin(), two.end(),
                                        [&](const FusionMember& a, const FusionMember& b) {
                                          return uses.node(a.node).op == uses.node(b.node).op;
                                        });
          if (alike) candidates.push_back(joined(joined(core, one), two));
        }
      }
      return candidates;
    }
  }
  return {};
}

// A gradient's sums over its rows, with its codes or amax: x is read once.
Candidates plain(const UseGraph& uses, NodeId first, const Target& target) {
  const Node& node = uses.node(first);
  if (!is_column_sum(node) || !target.fuses(Producer::kPlain, FusionPart::kColumnSum)) return {};
  Candidates candidates;
  for (FusionMembers& sinks : sinks_of(uses, node.inputs[0], Producer::kPlain, target)) {
    const bool has = std::ranges::any_of(sinks, [&](const FusionMember& m) { return m.node == first; });
    if (has && sinks.size() > 1) candidates.push_back(std::move(sinks));
  }
  return candidates;
}

// A scale and the codes made with it.
Candidates scale_quantize(const UseGraph& uses, NodeId first, const Target& target) {
  const Node& node = uses.node(first);
  if (node.op != Op::kComputeScale || !target.fuses(Producer::kPlain, FusionPart::kScale)) return {};
  const NodeId quantize = find_user(uses, {first, 0}, is_quantize, node.phase);
  if (quantize == NodeId::kNone) return {};
  return {{{first, "scale"}, {quantize, "quantize"}}};
}

Candidates rope(const UseGraph& uses, NodeId first, const Target& target) {
  if (uses.node(first).op != Op::kRope) return {};
  return with_sinks({{{first, "rope"}}}, sinks_of(uses, {first, 0}, Producer::kRope, target));
}

// A product that only its bias reads; one that already starts from an addend stays as it is, and so does an output
// head, whose table and bias get padded rows (pack).
Candidates product_bias(const UseGraph& uses, NodeId first, const Target& target) {
  const Node& node = uses.node(first);
  if (node.op != Op::kMatmul && node.op != Op::kScaledMatmul) return {};
  if (!target.fuses(Producer::kProduct, FusionPart::kBias)) return {};
  if (node.attr<bool>("head")) return {};
  if (node.operand("c").exists() || uses.users({first, 0}).size() != 1 || uses.is_output({first, 0})) return {};
  const NodeId bias = find_user(uses, {first, 0}, is_bias, node.phase);
  const bool same = bias != NodeId::kNone && uses.node(bias).inputs[0] == Value{first, 0} &&
                    uses.node(bias).results[0] == node.results[0];
  return same ? Candidates{{{first, "matmul"}, {bias, "bias"}}} : Candidates{};
}

// The exchange over ranks of a product's rows: only of whole rows one after another, of one tensor.
bool is_exchange_of_rows(const Graph& graph, const Node& node, Op op) {
  if (node.op != op || node.inputs.size() != 1 || node.attr<int64_t>("axis") != 0) return false;
  const Layout& parts = op == Op::kAllGather ? graph.layout(node.inputs[0]) : node.layouts.at(0);
  return graph.shape(node.inputs[0]).rank() == 2 && parts.outer(0) == 1;
}
bool gathers_rows(const Graph& graph, const Node& node) { return is_exchange_of_rows(graph, node, Op::kAllGather); }
bool scatters_rows(const Graph& graph, const Node& node) {
  return is_exchange_of_rows(graph, node, Op::kReduceScatter);
}

// Whether a product may run on some rows at a time: nothing but its rows and an addend differs between them.
bool goes_by_rows(const Graph& graph, const Node& node) {
  if ((node.op != Op::kMatmul && node.op != Op::kScaledMatmul) || node.attr<bool>("trans_a")) return false;
  return node.op == Op::kMatmul || graph.shape(node.inputs[1]).elements() == 1;
}

// Whether an exchange takes long enough for the parts of a product beside it, which are less efficient than the whole.
bool is_worth_parts(const Graph& graph, NodeId id, const Target& target) {
  const double most = target.limits.exchange_latencies * target.link_latency * target.link_bytes_per_second;
  return target.link_bytes_per_second <= 0 || node_cost(graph, id).bytes > most;
}

// A gather of rows, and the product that reads them first; a product, and the scatter of its rows. Of gradients, the
// products of weights hide them (schedule).
Candidates product_rows(const UseGraph& uses, NodeId first, const Target& target) {
  const Node& node = uses.node(first);
  if (!target.fuses(Producer::kProduct, FusionPart::kRankRows) || node.phase == Phase::kBackward ||
      !goes_by_rows(uses.graph(), node))
    return {};
  Candidates candidates;
  const NodeId scatter = find_user(uses, {first, 0}, scatters_rows, node.phase);
  if (scatter != NodeId::kNone && is_worth_parts(uses.graph(), scatter, target))
    candidates.push_back({{first, "matmul"}, {scatter, "scatter"}});
  const NodeId gather = find_maker(uses, node.inputs[0], gathers_rows, node.phase);
  if (gather != NodeId::kNone && is_worth_parts(uses.graph(), gather, target))
    candidates.push_back({{gather, "gather"}, {first, "matmul"}});
  return candidates;
}

// The attention that reads these keys through the paged cache.
NodeId attention_of(const UseGraph& uses, NodeId append) {
  for (NodeId user : uses.users({append, 0})) {
    const Node& node = uses.node(user);
    if (node.op == Op::kPagedAttention && node.inputs[1] == Value{append, 0}) return user;
  }
  return NodeId::kNone;
}

// The rms_norm of heads that only `rope` reads, and the reshapes to heads and back around it.
FusionMembers head_norm(const UseGraph& uses, const Node& rope, const std::string& side) {
  FusionMembers members;
  Value value = rope.inputs[0];
  for (const auto& [op, name] : {std::pair{Op::kReshape, "back_"}, {Op::kRmsNorm, "norm_"}, {Op::kReshape, "heads_"}}) {
    const Node& node = uses.node(value.node);
    if (node.op != op || node.phase != rope.phase || uses.users(value).size() != 1 || uses.is_output(value)) return {};
    members.push_back({value.node, name + side});
    value = node.inputs[0];
  }
  const int64_t dim = rope.attrs.get<int64_t>("head_dim");
  const bool whole = rope.attrs.get_or<int64_t>("rotary_dim", dim) == dim && !rope.attr<bool>("interleaved");
  if (!whole || uses.graph().shape(Value{members[1].node, 0}).cols() != dim) return {};  // of heads that turn whole
  return members;
}

// The two appends of a layer, to the same slots, found from that of the keys; with the ropes of queries and keys, by
// the same angles, where turned keys go to the cache alone.
Candidates scatter_rows(const UseGraph& uses, NodeId first, const Target& target) {
  if (!is_scatter(uses.node(first).op) || !target.fuses(Producer::kScatterRows)) return {};
  const NodeId attention = attention_of(uses, first);
  if (attention == NodeId::kNone) return {};
  const NodeId second = uses.node(attention).inputs[2].node;
  const Node& values = uses.node(second);
  if (!is_scatter(values.op) || second == first || values.inputs[2] != uses.node(first).inputs[2]) return {};
  const FusionMembers appends = {{first, "append_k"}, {second, "append_v"}};
  Candidates candidates = {appends};
  const Value key = uses.node(first).inputs[1], query = uses.node(attention).inputs[0];
  const Node &key_rope = uses.node(key.node), &query_rope = uses.node(query.node);
  if (key_rope.op != Op::kRope || query_rope.op != Op::kRope || key_rope.inputs[1] != query_rope.inputs[1])
    return candidates;
  Attrs attrs = key_rope.attrs;
  attrs.set("heads", query_rope.attrs.get<int64_t>("heads"));
  const bool alike = attrs == query_rope.attrs && uses.users(key).size() == 1 && !uses.is_output(key);
  if (alike && target.fuses(Producer::kScatterRows, FusionPart::kRope)) {
    FusionMembers with_ropes = {{query.node, "rope_q"}, {key.node, "rope_k"}};
    with_ropes.insert(with_ropes.end(), appends.begin(), appends.end());
    const FusionMembers norm_q = head_norm(uses, query_rope, "q"), norm_k = head_norm(uses, key_rope, "k");
    const bool normed =
        target.fuses(Producer::kScatterRows, FusionPart::kHeadNorm) && !norm_q.empty() && !norm_k.empty();
    candidates.insert(candidates.begin(), with_ropes);
    if (normed) candidates.insert(candidates.begin(), joined(joined(std::move(with_ropes), norm_q), norm_k));
  }
  return candidates;
}

// The cast to float32 of a few bf16 tokens, the product that makes a router's logits, top_k, group_rows, where nothing
// else reads what the first two make.
Candidates router(const UseGraph& uses, NodeId first, const Target& target) {
  const Node& top_k = uses.node(first);
  if (top_k.op != Op::kTopK || !target.fuses(Producer::kRouter)) return {};
  const Shape& chosen = top_k.results[0].shape;
  if (chosen[0] > target.limits.router_tokens || chosen.elements() > target.limits.router_choices) return {};
  const auto made_for_this = [&](Value value, Op op) {
    const Node& node = uses.node(value.node);
    return node.op == op && node.phase == top_k.phase && uses.users(value).size() == 1 && !uses.is_output(value);
  };
  const Value logits = top_k.inputs[0];
  if (!made_for_this(logits, Op::kMatmul)) return {};
  const Value x = uses.node(logits.node).inputs[0];
  if (!made_for_this(x, Op::kCast) || uses.graph().dtype(uses.node(x.node).inputs[0]) != DType::kBF16) return {};
  const auto by_expert = [](const Graph&, const Node& n) { return n.op == Op::kGroupRows && n.inputs.size() == 1; };
  const NodeId groups = find_user(uses, {first, 1}, by_expert, top_k.phase);
  if (groups == NodeId::kNone) return {};
  return {{{x.node, "x"}, {logits.node, "logits"}, {first, "top_k"}, {groups, "group_rows"}}};
}

bool takes_columns(const Graph& graph, const Node& node) {
  return node.op == Op::kSlice && node.attr<int64_t>("axis") == 1 && node.attr<int64_t>("begin") % 8 == 0 &&
         graph.shape(node.inputs[0]).rank() == 2 && graph.shape(node.inputs[0]).cols() % 8 == 0;
}

// A grouped product in bf16 that contracts few columns, an adapter's: with the slice that takes these from a wider
// matrix, the sum that it is added to, or both.
Candidates addend(const UseGraph& uses, NodeId first, const Target& target) {
  const Node& node = uses.node(first);
  const Graph& graph = uses.graph();
  if (node.op != Op::kGroupedMatmul || !target.fuses(Producer::kAddend) || !node.attr<bool>("trans_b")) return {};
  const Value h = node.inputs[0];
  const auto contracted = static_cast<uint64_t>(graph.shape(h).cols());
  const bool few = contracted >= 8 && std::has_single_bit(contracted) &&
                   graph.shape(h).cols() <= target.limits.addend_columns && node.results[0].shape.cols() % 8 == 0;
  const auto is_bf16 = [](DType dtype) { return dtype == DType::kBF16; };
  if (!few || !is_bf16(graph.dtype(h)) || !is_bf16(graph.dtype(node.inputs[1])) || !is_bf16(node.results[0].dtype))
    return {};
  FusionMembers with_columns = {{first, "product"}}, with_sum;
  const NodeId slice = find_maker(uses, h, takes_columns, node.phase);
  if (slice != NodeId::kNone && target.fuses(Producer::kAddend, FusionPart::kColumns))
    with_columns = joined(std::move(with_columns), {{slice, "columns"}});
  const bool only_here = uses.users({first, 0}).size() == 1 && !uses.is_output({first, 0});
  const NodeId add = only_here ? find_user(uses, {first, 0}, is_residual, node.phase) : NodeId::kNone;
  if (add != NodeId::kNone && graph.type(uses.node(add).inputs[0]) == graph.type(uses.node(add).inputs[1]) &&
      uses.node(add).results[0] == node.results[0])
    with_sum = joined(with_columns, {{add, "add"}});
  Candidates candidates;
  for (FusionMembers* members : {&with_sum, &with_columns})
    if (members->size() > 1) candidates.push_back(std::move(*members));
  return candidates;
}

}  // namespace

std::span<const FusionPattern> fusion_patterns() {
  static const std::vector<FusionPattern> table = {
      {Producer::kAddend, addend},  // before norms, which would take the sum
      {Producer::kNorm, norm},
      {Producer::kGated, gated},
      {Producer::kActivation, activation},
      {Producer::kGatedGrad, gated_grad},
      {Producer::kActivationGrad, activation_grad},
      {Producer::kNormGrad, norm_grad},
      {Producer::kPlain, plain},
      {Producer::kRouter, router},
      {Producer::kProduct, product_bias},  // after those that take the bias
      {Producer::kProduct, product_rows},
      {Producer::kScatterRows, scatter_rows},
      {Producer::kRope, rope},
      {Producer::kPlain, scale_quantize},  // after those that make what is quantized
  };
  return table;
}

}  // namespace octet
