#include "passes/adapt.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
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

constexpr const char *kTable = "embed.weight", *kHead = "head.weight";

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
    if (spec_.nf4 > 0) find_linears();
    const Value rng = old_.find_leaf(Op::kInput, "rng");
    if (rng.exists() && dropout_ > 0) rewriter_.copy(rng.node);
    for (const Node& node : old_.nodes()) key_ = std::max(key_, node.attrs.get_or<int64_t>("key", 0));
  }

  Graph run() {
    for (int32_t i = 0; i < old_.size(); ++i) {
      const NodeId id{i};
      const Node& node = old_.node(id);
      if (node.op == Op::kInput && rewriter_.is_mapped({id, 0})) continue;
      if (node.op == Op::kParam && !std::ranges::count(spec_.trained, node.name)) {
        Node frozen = node;
        frozen.attrs.set("update", "none");
        if (linears_.contains(node.name)) frozen.attrs.set("nf4", spec_.nf4);
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
      if (param == kTable) node.op == Op::kEmbedding ? add_rows(id) : replace_columns(id);
    }
    for (const auto& [param, target] : targets_)
      check(target.met, ErrorCode::kUnsupported,
            "adapter {}: nothing in the model multiplies rows by {} or looks them up in it: adapt linears and "
            "embeddings",
            spec_.low_rank[target.adapter].name, param);
    check(spec_.virtual_tokens == 0 || has_prompt_, ErrorCode::kUnsupported,
          "adapter: the model looks up no ids in {}, in front of which virtual tokens would stand", kTable);
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

  // Matrices [out, in] that products alone read: no head, no router.
  void find_linears() {
    std::set<std::string> others;
    for (const Node& node : old_.nodes()) {
      const bool linear = (node.op == Op::kMatmul && !node.attr<bool>("head") && !node.attr<bool>("float32")) ||
                          node.op == Op::kGroupedMatmul;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (!node.inputs[i].exists()) continue;
        const Node& leaf = old_.node(node.inputs[i]);
        if (leaf.op != Op::kParam) continue;
        const bool held = linear && i == 1 && node.attr<bool>("trans_b") && leaf.results[0].shape.elements() % 8 == 0;
        (held ? linears_ : others).insert(leaf.name);
      }
    }
    for (const std::string& name : others) linears_.erase(name);
  }

  void find_targets() {
    for (size_t i = 0; i < spec_.low_rank.size(); ++i) {
      const LowRank& low = spec_.low_rank[i];
      check(low.rank > 0 && std::isfinite(low.scale), ErrorCode::kInvalidArgument,
            "adapter {}: rank {} and scale {} (want a rank of 1 or more and a finite scale)", low.name, low.rank,
            low.scale);
      check(!low.params.empty(), ErrorCode::kInvalidArgument, "adapter {}: it adapts no parameter", low.name);
      int64_t row = 0;
      for (std::string name : low.params) {
        if (name == kHead && !old_.find_leaf(Op::kParam, name).exists()) name = kTable;  // a tied head
        const int64_t rows = param(name, low.name).results[0].shape[0];
        for (auto [found, end] = targets_.equal_range(name); found != end; ++found)
          check(is_head(low) != is_head(spec_.low_rank[found->second.adapter]), ErrorCode::kInvalidArgument,
                "adapters {} and {} both adapt {}", spec_.low_rank[found->second.adapter].name, low.name, name);
        targets_.emplace(name, Target{i, row, row + rows});
        row += rows;
      }
      rows_.push_back(row);
    }
    if (!spec_.token_rows.empty()) {
      const int64_t vocab = param(kTable, "of rows of tokens").results[0].shape[0];
      const auto falls = std::ranges::adjacent_find(spec_.token_rows, std::greater_equal());
      check(falls == spec_.token_rows.end() && spec_.token_rows[0] >= 0 && spec_.token_rows.back() < vocab,
            ErrorCode::kInvalidArgument, "adapter: rows of tokens are {} to {} (want ascending ids below {})",
            spec_.token_rows[0], spec_.token_rows.back(), vocab);
      check(std::ranges::count(spec_.trained, kTable) == 0, ErrorCode::kInvalidArgument,
            "adapter: {} is trained whole, and some of its rows beside it: choose one", kTable);
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
    return old_.node(node.inputs[1]).name != kTable || is_head(low) == (node.op != Op::kEmbedding);
  }

  Value part(const Target& target, Value b) {
    const int64_t rows = rows_[target.adapter];
    return target.begin == 0 && target.end == rows ? b : b_.slice(b, 0, target.begin, target.end);
  }

  void adapt(NodeId id, Target& target) {
    const Node& node = old_.node(id);
    const LowRank& low = spec_.low_rank[target.adapter];
    target.met = true;
    auto scope = b_.scope(low.name);
    const Node& weight = old_.node(node.inputs[1]);
    check(is_product(node.op) ? node.attr<bool>("trans_b") : true, ErrorCode::kUnsupported,
          "adapter {}: {} is multiplied as [in, out]", low.name, weight.name);
    check(!low.dora || node.op == Op::kMatmul, ErrorCode::kUnsupported,
          "adapter {}: DoRA is for linears, and {} is of {}; use lora there", low.name, weight.name,
          node.op == Op::kEmbedding ? "an embedding" : "experts");
    const Value y{rewriter_.map({id, 0})};
    // The addend's product, not the base's, becomes the one that starts from the other (merge_sums): siblings of the
    // base still merge.
    const Value added = node.op == Op::kEmbedding       ? embedding_delta(node, low)
                        : node.op == Op::kGroupedMatmul ? grouped_delta(node, low, target)
                                                        : delta(node, low, target);
    Value sum = b_.add(added, y);
    if (low.dora) sum = b_.mul(sum, dora_factor(node, low, target));
    rewriter_.set({id, 0}, sum);
  }

  // As the weight is split over ranks: A by columns with it, B and magnitudes by rows.
  static Split split_of(const Node& weight, const char* split, Split as) {
    return weight.attr<std::string>("split") == split ? as : Split::kNone;
  }
  // Uniform within 1 / sqrt(in): PyTorch's values of a linear, PEFT's of A.
  Value uniform(const std::string& name, const Shape& shape, int64_t in, Split split) {
    const Value leaf = b_.param(name, shape, {.split = split});
    Attrs& attrs = rewriter_.graph().mutable_node(leaf.node).attrs;
    attrs.set("init", "uniform");
    attrs.set("std", 1 / std::sqrt(3.0 * static_cast<double>(in)));
    return leaf;
  }
  Value lora_a(const LowRank& low, const Shape& shape, Split split) {
    return uniform("lora_a", shape, shape[1], split);
  }
  Value a(const LowRank& low, const Node& weight) {
    return lora_a(low, {low.rank, weight.results[0].shape[1]}, split_of(weight, "row", Split::kRow));
  }
  Value b(const LowRank& low, const Node& weight, const Target& target) {
    const Split split = low.params.size() > 1 ? Split::kNone : split_of(weight, "column", Split::kColumn);
    return b_.param("lora_b", {rows_[target.adapter], low.rank}, {.init = Init::kZeros, .split = split});
  }

  // With a key that no dropout of the whole graph has.
  Value dropped(Value x) {
    if (dropout_ == 0) return x;
    return {b_.emit(Op::kDropout, {x, b_.rng()}, {{"p", dropout_}, {"key", ++key_}}), 0};
  }
  Value scaled(Value x, const LowRank& low) { return low.scale == 1 ? x : b_.scale(x, low.scale); }

  // [T, rank]: one for all linears that share A.
  Value down(const Node& node, const LowRank& low, const Attrs& attrs) {
    const Value x = rewriter_.map(node.inputs[0]);
    const auto [found, added] = down_.try_emplace({low.name, index(x.node), x.result});
    if (added)
      found->second = scaled(b_.matmul(dropped(x), a(low, old_.node(node.inputs[1])), false, true, {}, attrs), low);
    return found->second;
  }

  static Attrs attrs_of_router(const Node& node) {
    Attrs attrs;
    if (node.attr<bool>("float32")) attrs.set("float32", true);
    return attrs;
  }

  Value delta(const Node& node, const LowRank& low, const Target& target) {
    const Attrs attrs = attrs_of_router(node);
    const Value z = down(node, low, attrs);
    return b_.matmul(z, part(target, b(low, old_.node(node.inputs[1]), target)), false, true, {}, attrs);
  }

  Value embedding_delta(const Node& node, const LowRank& low) {
    const Shape& table = old_.node(node.inputs[1]).results[0].shape;
    const Value a = b_.param("lora_a", {low.rank, table[0]}, {.init = Init::kZeros});
    const Value b = b_.param("lora_b", {table[1], low.rank}, {.std = 1});
    const Value z = b_.embedding(rewriter_.map(node.inputs[0]), b_.transpose(a));
    return b_.matmul(scaled(z, low), b, false, true);
  }

  // Of experts whose A is shared, as gate and up in one tensor, each expert's rows of B are those of its parameters.
  Value grouped_delta(const Node& node, const LowRank& low, const Target& target) {
    const Shape& weight = old_.node(node.inputs[1]).results[0].shape;
    const int64_t experts = old_.shape(node.inputs[2])[0] - 1, all = rows_[target.adapter];
    const Value offsets = rewriter_.map(node.inputs[2]);
    const auto product = [&](Value rows, Value w) {
      return Value{b_.emit(Op::kGroupedMatmul, {rows, w, offsets}, {{"trans_b", true}}), 0};
    };
    const Value x = rewriter_.map(node.inputs[0]);
    const auto [z, added] = down_.try_emplace({low.name, index(x.node), x.result});
    if (added) z->second = scaled(product(dropped(x), lora_a(low, {experts * low.rank, weight[1]}, Split::kNone)), low);
    Value b = b_.param("lora_b", {all, low.rank}, {.init = Init::kZeros});
    if (low.params.size() > 1) {
      b = b_.slice(b_.reshape(b, {experts, all / experts * low.rank}), 1, target.begin / experts * low.rank,
                   target.end / experts * low.rank);
      b = b_.reshape(b, {target.end - target.begin, low.rank});
    }
    return product(z->second, b);
  }

  Value look_up(Value ids, Value table, int64_t first) {
    return {b_.emit(Op::kEmbedding, {ids, table}, {{"first", first}}), 0};
  }

  // fn(first row of the table, rows [begin, end) of those that are trained) for runs of neighbours.
  template <typename Fn>
  void for_each_run(const Fn& fn) const {
    const std::vector<int64_t>& rows = spec_.token_rows;
    for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
      for (end = begin + 1; end < rows.size() && rows[end] == rows[end - 1] + 1;) ++end;
      fn(rows[begin], static_cast<int64_t>(begin), static_cast<int64_t>(end));
    }
  }
  Value token_rows(int64_t hidden) {
    return b_.param("embed.token_rows", {std::ssize(spec_.token_rows), hidden}, {.std = 0.02});
  }

  // Trained rows in place of the table's: y - the table's + the trained ones, to the bit. Ids beyond the vocabulary are
  // those of virtual tokens.
  void add_rows(NodeId id) {
    const Node& node = old_.node(id);
    const Shape& table = old_.shape(node.inputs[1]);
    const Value ids = rewriter_.map(node.inputs[0]), w = rewriter_.map(node.inputs[1]);
    Value y = rewriter_.map({id, 0});
    for_each_run([&](int64_t first, int64_t begin, int64_t end) {
      const Value trained = b_.slice(token_rows(table[1]), 0, begin, end);
      y = b_.sub(y, look_up(ids, b_.slice(w, 0, first, first + end - begin), first));
      y = b_.add(y, look_up(ids, trained, first));
    });
    if (spec_.virtual_tokens > 0) {
      rewriter_.graph().mutable_node(rewriter_.map({id, 0}).node).attrs.set("first", int64_t{0});
      y = b_.add(y, look_up(ids, build_prompt(b_, spec_, table[1]), table[0]));
      has_prompt_ = true;
    }
    rewriter_.set({id, 0}, y);
  }

  // Of a head that is the table: its columns of the trained rows are these rows' products.
  void replace_columns(NodeId id) {
    const Node& node = old_.node(id);
    const Value x = rewriter_.map(node.inputs[0]), y = rewriter_.map({id, 0});
    std::vector<Value> parts;
    int64_t column = 0;
    const auto keep = [&](int64_t end) {
      if (end > column) parts.push_back(b_.slice(y, 1, column, end));
    };
    for_each_run([&](int64_t first, int64_t begin, int64_t end) {
      keep(first);
      parts.push_back(b_.matmul(x, b_.slice(token_rows(old_.shape(node.inputs[1])[1]), 0, begin, end), false, true));
      column = first + end - begin;
    });
    if (parts.empty()) return;
    keep(old_.shape({id, 0})[1]);
    rewriter_.set({id, 0}, parts.size() == 1 ? parts[0] : b_.concat(parts, 1));
  }

  // [out]: magnitude / |rows of W + scale B A|, by the rstd of an RMS norm: 1 / |row| = rstd / sqrt(in).
  Value dora_factor(const Node& node, const LowRank& low, const Target& target) {
    const Node& weight = old_.node(node.inputs[1]);
    const int64_t in = weight.results[0].shape[1];
    const Value rows = b_.matmul(scaled(part(target, b(low, weight, target)), low), a(low, weight), false, false,
                                 rewriter_.map(node.inputs[1]), attrs_of_router(node));
    const Value rstd = b_.rms_norm(rows, b_.constant(1, {in}), 0).rstd;
    const Value inverse{
        b_.emit(Op::kScale, {rstd}, {{"value", 1 / std::sqrt(static_cast<double>(in))}, {"detached", true}}), 0};
    const Split split = low.params.size() > 1 ? Split::kNone : split_of(weight, "column", Split::kColumn);
    const Value magnitude = b_.param("magnitude", {rows_[target.adapter]}, {.init = Init::kOnes, .split = split});
    return b_.mul(part(target, magnitude), inverse);
  }

  const Graph& old_;
  const AdapterSpec& spec_;
  Rewriter rewriter_;
  Builder& b_;
  double dropout_;
  int64_t key_ = 0;
  bool has_prompt_ = false;
  std::multimap<std::string, Target> targets_;  // by parameter
  std::set<std::string> linears_;               // that are held in NF4 where they are frozen
  std::vector<int64_t> rows_;                   // of B, of each LowRank
  std::map<std::tuple<std::string, int32_t, int32_t>, Value> down_;
};

}  // namespace

Graph adapt(const Graph& model, const AdapterSpec& adapter) { return AdaptedGraph(model, adapter).run(); }

}  // namespace octet
