#include "passes/adapt.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ir/rewrite.h"

namespace octet {
namespace {

// One of a LowRank's parameters: rows [begin, end) of B are its rows.
struct Target {
  size_t adapter = 0;
  int64_t begin = 0, end = 0;
  bool met = false;  // a node of the graph reads the parameter
};

bool is_product(Op op) { return op == Op::kMatmul || op == Op::kGroupedMatmul; }

class AdaptedGraph {
 public:
  AdaptedGraph(const Graph& graph, const AdapterSpec& adapter)
      : old_(graph),
        spec_(adapter),
        rewriter_(graph),
        b_(rewriter_.builder()),
        dropout_(graph.role() == GraphRole::kTrain ? adapter.dropout : 0) {
    find_targets();
  }

  Graph run() {
    for (int32_t i = 0; i < old_.size(); ++i) {
      const NodeId id{i};
      const Node& node = old_.node(id);
      if (node.op == Op::kParam && !std::ranges::count(spec_.trained, node.name)) {
        Node frozen = node;
        frozen.attrs.set("update", "none");
        rewriter_.replace(id, std::move(frozen));
        continue;
      }
      rewriter_.copy(id);
      if (!is_product(node.op) && node.op != Op::kEmbedding) continue;
      b_.set_layer(node.layer);
      const std::string& param = old_.node(node.inputs[1]).name;
      const auto [first, last] = targets_.equal_range(param);
      for (auto found = first; found != last; ++found)
        if (is_of(spec_.low_rank[found->second.adapter], node)) adapt(id, found->second);
    }
    for (const auto& [param, target] : targets_)
      check(target.met, ErrorCode::kUnsupported,
            "adapter {}: nothing in the model multiplies rows by {} or looks them up in it: adapt linears and "
            "embeddings",
            spec_.low_rank[target.adapter].name, param);
    return rewriter_.finish();
  }

 private:
  const Node& param(const std::string& name, const std::string& who) const {
    const Value leaf = old_.find_leaf(Op::kParam, name);
    std::vector<std::string> names;
    if (!leaf.exists())
      for (const Node& node : old_.nodes())
        if (node.op == Op::kParam) names.push_back(node.name);
    check(leaf.exists(), ErrorCode::kInvalidArgument, "adapter {}: the model has no parameter {}{}", who, name,
          if_near(name, names, "; the nearest is {}"));
    return old_.node(leaf);
  }

  void find_targets() {
    for (size_t i = 0; i < spec_.low_rank.size(); ++i) {
      const LowRank& low = spec_.low_rank[i];
      check(low.rank > 0 && std::isfinite(low.scale), ErrorCode::kInvalidArgument,
            "adapter {}: rank {} and scale {} (want a rank of 1 or more and a finite scale)", low.name, low.rank,
            low.scale);
      check(!low.params.empty(), ErrorCode::kInvalidArgument, "adapter {}: it adapts no parameter", low.name);
      int64_t row = 0;
      for (const std::string& name : low.params) {
        const int64_t rows = param(name, low.name).results[0].shape[0];
        for (auto [found, end] = targets_.equal_range(name); found != end; ++found)
          check(is_head(low) != is_head(spec_.low_rank[found->second.adapter]), ErrorCode::kInvalidArgument,
                "adapters {} and {} both adapt {}", spec_.low_rank[found->second.adapter].name, low.name, name);
        targets_.emplace(name, Target{i, row, row + rows});
        row += rows;
      }
      rows_.push_back(row);
    }
    for (const std::string& name : spec_.trained) {
      param(name, "trained");
      check(!targets_.contains(name), ErrorCode::kInvalidArgument,
            "adapter: {} is trained whole and adapted by {}: choose one", name,
            targets_.contains(name) ? spec_.low_rank[targets_.find(name)->second.adapter].name : "");
    }
  }

  // A table that is embedding and head at once has an adapter for each.
  static bool is_head(const LowRank& low) { return low.name == "head"; }
  bool is_of(const LowRank& low, const Node& node) const {
    const std::string& name = low.params[0];
    return name != "embed.weight" || is_head(low) == (node.op != Op::kEmbedding);
  }

  Value part(const Target& target, Value b) {
    const int64_t rows = rows_[target.adapter];
    return target.begin == 0 && target.end == rows ? b : b_.slice(b, 0, target.begin, target.end);
  }

  void adapt(NodeId id, Target& target) {
    const Node& node = old_.node(id);
    const LowRank& low = spec_.low_rank[target.adapter];
    target.met = true;
    const Node& weight = old_.node(node.inputs[1]);
    check(is_product(node.op) ? node.attr<bool>("trans_b") : true, ErrorCode::kUnsupported,
          "adapter {}: {} is multiplied as [in, out]", low.name, weight.name);
    check(!low.dora || node.op == Op::kMatmul, ErrorCode::kUnsupported,
          "adapter {}: DoRA is for linears, and {} is of {}; use lora there", low.name, weight.name,
          node.op == Op::kEmbedding ? "an embedding" : "experts");
    const Value y{rewriter_.map({id, 0})};
    Value sum = b_.add(y, node.op == Op::kEmbedding       ? embedding_delta(node, low)
                          : node.op == Op::kGroupedMatmul ? grouped_delta(node, low)
                                                          : delta(node, low, target));
    if (low.dora) sum = b_.mul(sum, dora_factor(node, low, target));
    name_last(low.name);
    rewriter_.set({id, 0}, sum);
  }

  // What the adapter adds has the adapter's name in profiles and dumps.
  void name_last(const std::string& name) {
    Graph& graph = rewriter_.graph();
    for (int32_t i = graph.size() - 1; i >= 0 && graph.node(NodeId{i}).name.empty(); --i)
      graph.mutable_node(NodeId{i}).name = name + ".adapter";
  }

  // As the weight is split over ranks: A by columns with it, B and magnitudes by rows.
  static Split split_of(const Node& weight, const char* split, Split as) {
    return weight.attr<std::string>("split") == split ? as : Split::kNone;
  }
  // Uniform within 1 / sqrt(in): PEFT's Kaiming values with a = sqrt(5).
  Value lora_a(const LowRank& low, const Shape& shape, Split split) {
    const Value a = b_.param(low.name + ".lora_a", shape, {.split = split});
    Attrs& attrs = rewriter_.graph().mutable_node(a.node).attrs;
    attrs.set("init", "uniform");
    attrs.set("std", 1 / std::sqrt(3.0 * static_cast<double>(shape[1])));
    return a;
  }
  Value a(const LowRank& low, const Node& weight) {
    return lora_a(low, {low.rank, weight.results[0].shape[1]}, split_of(weight, "row", Split::kRow));
  }
  Value b(const LowRank& low, const Node& weight, const Target& target) {
    const Split split = low.params.size() > 1 ? Split::kNone : split_of(weight, "column", Split::kColumn);
    return b_.param(low.name + ".lora_b", {rows_[target.adapter], low.rank}, {.init = Init::kZeros, .split = split});
  }

  Value scaled(Value x, const LowRank& low) { return low.scale == 1 ? x : b_.scale(x, low.scale); }

  // [T, rank]: one for all linears that share A.
  Value down(const Node& node, const LowRank& low, const Attrs& attrs) {
    const Value x = rewriter_.map(node.inputs[0]);
    const auto [found, added] = down_.try_emplace({low.name, index(x.node), x.result});
    if (added)
      found->second =
          scaled(b_.matmul(b_.dropout(x, dropout_), a(low, old_.node(node.inputs[1])), false, true, {}, attrs), low);
    return found->second;
  }

  Value delta(const Node& node, const LowRank& low, const Target& target) {
    Attrs attrs;  // of a router's product
    if (node.attr<bool>("float32")) attrs.set("float32", true);
    const Value z = down(node, low, attrs);
    return b_.matmul(z, part(target, b(low, old_.node(node.inputs[1]), target)), false, true, {}, attrs);
  }

  Value embedding_delta(const Node& node, const LowRank& low) {
    const Shape& table = old_.node(node.inputs[1]).results[0].shape;
    const Value a = b_.param(low.name + ".lora_a", {low.rank, table[0]}, {.init = Init::kZeros});
    const Value b = b_.param(low.name + ".lora_b", {table[1], low.rank}, {.std = 1});
    const Value z = b_.embedding(rewriter_.map(node.inputs[0]), b_.transpose(a));
    return b_.matmul(scaled(z, low), b, false, true);
  }

  Value grouped_delta(const Node& node, const LowRank& low) {
    const Shape& weight = old_.node(node.inputs[1]).results[0].shape;
    const int64_t experts = old_.shape(node.inputs[2])[0] - 1;
    check(low.params.size() == 1, ErrorCode::kUnsupported, "adapter {}: experts' parameters are adapted one by one",
          low.name);
    const Value a = lora_a(low, {experts * low.rank, weight[1]}, Split::kNone);
    const Value b = b_.param(low.name + ".lora_b", {weight[0], low.rank}, {.init = Init::kZeros});
    const Value offsets = rewriter_.map(node.inputs[2]);
    const auto product = [&](Value rows, Value w) {
      return Value{b_.emit(Op::kGroupedMatmul, {rows, w, offsets}, {{"trans_b", true}}), 0};
    };
    return product(scaled(product(b_.dropout(rewriter_.map(node.inputs[0]), dropout_), a), low), b);
  }

  // [out]: magnitude / |rows of W + scale B A|, by the rstd of an RMS norm: 1 / |row| = rstd / sqrt(in).
  Value dora_factor(const Node& node, const LowRank& low, const Target& target) {
    const Node& weight = old_.node(node.inputs[1]);
    const int64_t in = weight.results[0].shape[1];
    const Value rows = b_.matmul(scaled(part(target, b(low, weight, target)), low), a(low, weight), false, false,
                                 rewriter_.map(node.inputs[1]));
    const Value rstd = b_.rms_norm(rows, b_.constant(1, {in}), 0).rstd;
    const Value inverse{
        b_.emit(Op::kScale, {rstd}, {{"value", 1 / std::sqrt(static_cast<double>(in))}, {"detached", true}}), 0};
    const Split split = low.params.size() > 1 ? Split::kNone : split_of(weight, "column", Split::kColumn);
    const Value magnitude =
        b_.param(low.name + ".magnitude", {rows_[target.adapter]}, {.init = Init::kOnes, .split = split});
    return b_.mul(part(target, magnitude), inverse);
  }

  const Graph& old_;
  const AdapterSpec& spec_;
  Rewriter rewriter_;
  Builder& b_;
  double dropout_;
  std::multimap<std::string, Target> targets_;  // by parameter
  std::vector<int64_t> rows_;                   // of B, of each LowRank
  std::map<std::tuple<std::string, int32_t, int32_t>, Value> down_;
};

}  // namespace

Graph adapt(const Graph& model, const AdapterSpec& adapter) {
  check(adapter.token_rows.empty(), ErrorCode::kUnsupported, "adapter: rows of the embedding table are not trained");
  check(adapter.virtual_tokens == 0, ErrorCode::kUnsupported, "adapter: virtual tokens are not trained");
  return AdaptedGraph(model, adapter).run();
}

}  // namespace octet
