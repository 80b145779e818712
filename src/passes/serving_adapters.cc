#include "passes/serving_adapters.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>

#include "base/error.h"
#include "ir/rewrite.h"

namespace octet {
namespace {

// A router's product, which recipes leave in float32.
bool is_router(const Node& node) { return node.op == Op::kMatmul && node.attr<bool>("float32"); }

// x W^T of experts, rows sorted by them.
bool is_of_experts(const Graph& graph, const Node& node) {
  return node.op == Op::kGroupedMatmul && node.attr<bool>("trans_b") && graph.node(node.inputs[1]).op == Op::kParam &&
         graph.node(node.inputs[2]).op == Op::kGroupRows;
}

// x W^T of a linear, whose weight is a parameter: what the precision pass decides on, but for the head, and routers.
bool is_linear(const Graph& graph, const Node& node) {
  return node.op == Op::kMatmul && node.attr<bool>("trans_b") && !node.attr<bool>("head") &&
         (node.attrs.has("gemm") || is_router(node)) && graph.node(node.inputs[1]).op == Op::kParam;
}

const std::string& weight_of(const Graph& graph, const Node& node) { return graph.node(node.inputs[1]).name; }

bool is_target(const std::string& weight, const std::vector<std::string>& targets) {
  const std::string name = "." + weight;
  return targets.empty() || std::ranges::any_of(targets, [&](const std::string& target) {
           return name.find("." + target + ".") != std::string::npos;
         });
}

class AdapterRewriter {
 public:
  AdapterRewriter(Program& program, const Graph& graph, const AdapterTables& tables, const AdapterVariant& variant)
      : old_(graph), tables_(tables), variant_(variant), program_(program), rewriter_(graph), b_(rewriter_.builder()) {
    for (const AdaptedLinears& linears : tables.linears)
      for (size_t i = 0; i < linears.params.size(); ++i) places_[linears.params[i]] = {&linears, i};
  }

  Graph run() {
    const Value ids = old_.find_leaf(Op::kInput, "ids");
    check(ids.exists(), ErrorCode::kInvalidArgument, "adapters: graph {} has no input \"ids\"", old_.name());
    tokens_ = old_.shape(ids)[0];
    for (int32_t i = 0; i < old_.size(); ++i) {
      const NodeId id{i};
      const Node& node = old_.node(id);
      rewriter_.copy(id);
      b_.set_layer(node.layer);
      if (node.op == Op::kEmbedding && node.inputs[0] == ids && variant_.virtual_tokens) put_virtual_tokens({id, 0});
      if ((!is_linear(old_, node) && !is_of_experts(old_, node)) || variant_.classes.empty()) continue;
      if (const auto place = places_.find(weight_of(old_, node)); place != places_.end()) adapt(id, place->second);
    }
    return rewriter_.finish();
  }

 private:
  struct Place {
    const AdaptedLinears* linears;
    size_t index;
  };

  // `weight`: that of a linear, along whose split ("column" of B, "row" of A) the table is split with it.
  Value buffer(const std::string& name, Shape shape, const Node* weight = nullptr, const char* split = "none") {
    const Value known = b_.graph().find_leaf(Op::kState, name);
    if (known.exists()) return known;
    const bool with = weight != nullptr && weight->attr<std::string>("split") == split;
    const Value leaf = declare_state(program_, b_,
                                     {.name = name,
                                      .type = {tables_.dtype, std::move(shape)},
                                      .role = StateRole::kBuffer,
                                      .param = with ? weight->name : ""});
    if (with) b_.graph().mutable_node(leaf.node).attrs.set("split", std::string(split));
    return leaf;
  }

  Value input(const std::string& name, Shape shape, Attrs attrs = {}) {
    const Value known = b_.graph().find_leaf(Op::kInput, name);
    return known.exists() ? known : b_.input(name, {DType::kI32, std::move(shape)}, std::move(attrs));
  }
  Value input_of_tokens(const std::string& name, int64_t pad) {
    const Value known = b_.graph().find_leaf(Op::kInput, name);
    return known.exists() ? known : b_.of_tokens(name, tokens_, {{"pad", pad}});
  }

  // Where the groups of a class begin.
  Value offsets_of(const Node& node, const AdaptedLinears& linears, int64_t rank) {
    if (!is_of_experts(old_, node)) return input(lora_offsets_input(rank), {tables_.slots + 3});
    const NodeId sorted = node.inputs[2].node;
    const auto [known, added] = offsets_.try_emplace({slot(sorted), rank});
    if (added)
      known->second = {
          b_.emit(
              Op::kGroupRows,
              {rewriter_.map(old_.node(sorted).inputs[0]), input_of_tokens(lora_groups_input(rank), tables_.slots + 1)},
              {{"groups", linears.experts * (tables_.slots + 2)}, {"parts", tables_.slots + 2}}, "lora_groups"),
          1};
    return known->second;
  }

  Value grouped(Value rows, Value table, Value offsets, const std::string& name) {
    return {b_.emit(Op::kGroupedMatmul, {rows, table, offsets}, {{"trans_b", true}}, name), 0};
  }

  // x A^T of all linears that read it, side by side.
  Value inner(Value x, const AdaptedLinears& linears, int64_t rank, Value offsets, const Node& weight) {
    const std::string name = lora_a_state(linears, rank);
    const auto [known, added] = inner_.try_emplace(name);
    if (added) {
      const auto rows = linears.experts * (tables_.slots + 2) * std::ssize(linears.params) * rank;
      known->second = grouped(rewriter_.map(x), buffer(name, {rows, linears.in}, &weight, "row"), offsets, name);
    }
    return known->second;
  }

  void adapt(NodeId id, const Place& place) {
    const AdaptedLinears& linears = *place.linears;
    const std::string& param = linears.params[place.index];
    const int64_t out = linears.out[place.index], count = std::ssize(linears.params);
    Value y = rewriter_.map({id, 0}), addend;
    Value& sum = is_router(old_.node(id)) ? addend : y;  // of a router inside the product, whose sum is float32
    if (variant_.dora && !is_of_experts(old_, old_.node(id))) {
      const Value rows = input_of_tokens(kGainRowsInput, tables_.classes() * tables_.slots);
      const Value gains = buffer(gain_state(param), {tables_.classes() * tables_.slots + 1, out});
      const Value gained = b_.mul(y, b_.select_rows(gains, rows));
      sum = sum.exists() ? b_.add(sum, gained) : gained;
    }
    for (const size_t c : variant_.classes) {
      const int64_t rank = tables_.ranks[c];
      const Value offsets = offsets_of(old_.node(id), linears, rank);
      const Node& weight = old_.node(old_.node(id).inputs[1]);
      Value h = inner(old_.node(id).inputs[0], linears, rank, offsets, weight);
      const auto first = static_cast<int64_t>(place.index) * rank;
      if (count > 1) h = b_.slice(h, 1, first, first + rank);
      const std::string name = lora_b_state(param, rank);
      const Value table = buffer(name, {linears.experts * (tables_.slots + 2) * out, rank}, &weight, "column");
      const Value delta = grouped(h, table, offsets, name);
      sum = sum.exists() ? b_.add(sum, delta) : delta;
    }
    if (addend.exists())
      y = b_.matmul(rewriter_.map(old_.node(id).inputs[0]), rewriter_.map(old_.node(id).inputs[1]), false, true, addend,
                    {{"float32", true}});
    rewriter_.set({id, 0}, y);
  }

  void put_virtual_tokens(Value embedded) {
    const Value x = rewriter_.map(embedded), slots = input_of_tokens(kVirtualSlotsInput, -1);
    const Value table =
        buffer(kVirtualTokensState, {tables_.slots * tables_.virtual_tokens, b_.graph().shape(x).cols()});
    const Value rows = b_.select_rows(table, input_of_tokens(kVirtualRowsInput, 0));
    rewriter_.set(embedded, {b_.emit(Op::kScatterRows, {x, rows, slots}, {}, kVirtualTokensState), 0});
  }

  const Graph& old_;
  const AdapterTables& tables_;
  const AdapterVariant& variant_;
  Program& program_;
  Rewriter rewriter_;
  Builder& b_;
  int64_t tokens_ = 0;
  std::unordered_map<std::string, Place> places_;        // by weight
  std::unordered_map<std::string, Value> inner_;         // by state of A
  std::map<std::pair<size_t, int64_t>, Value> offsets_;  // of experts, by node that sorts rows and rank
};

}  // namespace

int64_t AdapterTables::slot_bytes() const {
  int64_t elements = 0;
  for (const AdaptedLinears& group : linears)
    for (const int64_t out : group.out) elements += group.experts * (group.in + out);
  return std::accumulate(ranks.begin(), ranks.end(), int64_t{0}) * elements * dtype_bytes(dtype);
}

std::vector<AdaptedLinears> adapted_linears(const Graph& graph, const std::vector<std::string>& targets) {
  std::vector<AdaptedLinears> all;
  std::unordered_map<Value, size_t, ValueHash> by_input;
  for (const Node& node : graph.nodes()) {
    const bool experts = is_of_experts(graph, node);
    if (!experts && (!is_linear(graph, node) || (targets.empty() && is_router(node)))) continue;
    if ((experts && targets.empty()) || !is_target(weight_of(graph, node), targets)) continue;
    const std::string& weight = weight_of(graph, node);
    const auto [known, added] = by_input.try_emplace(node.inputs[0], all.size());
    if (added)
      all.push_back({.name = weight.substr(0, weight.rfind('.')),
                     .in = graph.shape(node.inputs[0]).cols(),
                     .experts = experts ? graph.shape(node.inputs[2])[0] - 1 : 1});
    all[known->second].params.push_back(weight);
    all[known->second].out.push_back(node.results[0].shape.cols());
  }
  return all;
}

std::string adapter_target(const std::string& weight) {
  size_t begin = weight.starts_with("layers.") ? weight.find('.', weight.find('.') + 1) + 1 : 0;
  return weight.substr(begin, weight.rfind('.') - begin);
}

std::string lora_a_state(const AdaptedLinears& linears, int64_t rank) {
  return fmt::format("adapters.{}.lora_a.{}", linears.name, rank);
}
std::string lora_b_state(const std::string& param, int64_t rank) {
  return fmt::format("adapters.{}.lora_b.{}", param, rank);
}
std::string gain_state(const std::string& param) { return fmt::format("adapters.{}.gain", param); }
std::string lora_offsets_input(int64_t rank) { return fmt::format("lora_offsets.{}", rank); }
std::string lora_groups_input(int64_t rank) { return fmt::format("lora_groups.{}", rank); }

Graph add_adapters(Program& program, const Graph& graph, const AdapterTables& tables, const AdapterVariant& variant) {
  return AdapterRewriter(program, graph, tables, variant).run();
}

}  // namespace octet
