#include "passes/serving_graphs.h"

#include <map>
#include <set>

#include "base/error.h"
#include "ir/rewrite.h"

namespace octet {
namespace {

struct CacheGroupInputs {
  int64_t blocks = 0;
  Value slots, block_table;
};
struct CacheInputs {
  Value kv_lengths;
  std::map<int64_t, CacheGroupInputs> groups;  // by window
};

CacheInputs add_inputs(Builder& b, int64_t tokens, const std::vector<int64_t>& windows, const KvCacheOptions& o) {
  CacheInputs inputs{.kv_lengths = b.input("kv_lengths", {DType::kI32, {o.sequences}})};
  for (size_t g = 0; g < windows.size(); ++g) {
    inputs.groups[windows[g]] = {
        .blocks = o.blocks[g],
        .slots = b.input(group_input("slots", g), {DType::kI32, {tokens}}),
        .block_table = b.input(group_input("block_table", g), {DType::kI32, {o.sequences, o.blocks_per_sequence}})};
  }
  return inputs;
}

// Declares what one side (k or v) of a layer's cache has.
Value cache_state(Program& program, Builder& b, StateRole role, const std::string& attention, CacheSide side,
                  TensorType type = {DType::kF32, {1}}) {
  return declare_state(program, b,
                       {.type = std::move(type),
                        .role = role,
                        .param = attention,
                        .index = side,
                        .initial = role == StateRole::kKvCache ? 0.0 : 1.0});
}

// Appends this step's rows to one side, returns the cache to read.
Value append(Program& program, Builder& b, const std::string& attention, CacheSide side, Value rows,
             const CacheGroupInputs& group, const KvCacheOptions& o) {
  Value cache = cache_state(program, b, StateRole::kKvCache, attention, side,
                            {o.cache_dtype, {group.blocks * o.block_size, b.shape(rows).cols()}});
  std::vector<Value> inputs = {cache, rows, group.slots};
  if (o.scales) inputs.push_back(cache_state(program, b, StateRole::kCacheScale, attention, side));
  const std::string name = b.graph().node(cache).name;
  Value appended{b.emit(Op::kScatterRows, std::move(inputs), {}, name), 0};
  b.update(name, appended);
  return appended;
}

void rewrite_attention(Program& program, Rewriter& rewriter, NodeId id, const CacheInputs& inputs,
                       const KvCacheOptions& o) {
  const Graph& old = rewriter.old_graph();
  const Node& node = old.node(id);
  check(node.attr<double>("dropout") == 0, ErrorCode::kInvalidArgument,
        "kv_cache: {} has dropout; build the graph with training = false", describe(old, id));
  check(node.attr<bool>("causal"), ErrorCode::kUnsupported,
        "kv_cache: {} is not causal: later tokens would change cached keys and values; run the whole sequence as one "
        "graph",
        describe(old, id));
  Builder& b = rewriter.builder();
  b.set_layer(node.layer);
  int64_t window = node.attr<int64_t>("window");
  const CacheGroupInputs& group = inputs.groups.at(window);
  const Value k = append(program, b, node.name, kKeys, rewriter.map(node.inputs[1]), group, o);
  const Value v = append(program, b, node.name, kValues, rewriter.map(node.inputs[2]), group, o);
  Attrs attrs = attrs_for(Op::kPagedAttention, node.attrs);
  attrs.set("block_size", o.block_size);
  if (o.max_query_len > 0) attrs.set("max_query_len", o.max_query_len);
  std::vector<Value> operands = {
      rewriter.map(node.inputs[0]), k, v, rewriter.map(node.inputs[3]), inputs.kv_lengths, group.block_table};
  if (o.scales) {
    for (CacheSide side : {kKeys, kValues})
      operands.push_back(cache_state(program, b, StateRole::kCacheScaleInv, node.name, side));
  }
  NodeId paged = b.emit(Op::kPagedAttention, std::move(operands), attrs, node.name);
  rewriter.set({id, 0}, {paged, 0});
}

}  // namespace

std::string group_input(const char* name, size_t group) { return fmt::format("{}.{}", name, group); }

std::vector<int64_t> attention_windows(const Graph& graph) {
  std::set<int64_t> windows;
  for (const Node& node : graph.nodes()) {
    if (node.op == Op::kAttention) windows.insert(node.attr<int64_t>("window"));
  }
  return {windows.begin(), windows.end()};
}

Graph add_kv_cache(Program& program, const Graph& graph, const KvCacheOptions& options) {
  check(!options.scales || is_fp8(options.cache_dtype), ErrorCode::kInvalidArgument,
        "kv_cache: a cache of {} takes no scales; they are of e4m3 and e5m2 caches", dtype_name(options.cache_dtype));
  Rewriter rewriter(graph);
  Builder& b = rewriter.builder();
  Value ids = graph.find_leaf(Op::kInput, "ids");
  check(ids.exists(), ErrorCode::kInvalidArgument, "kv_cache: graph {} has no input \"ids\"", graph.name());
  std::vector<int64_t> windows = attention_windows(graph);
  check(options.blocks.size() == windows.size(), ErrorCode::kInvalidArgument,
        "kv_cache: graph {} has {} cache groups, blocks are given for {}", graph.name(), windows.size(),
        options.blocks.size());
  CacheInputs inputs = add_inputs(b, graph.shape(ids)[0], windows, options);
  for (int32_t i = 0; i < graph.size(); ++i) {
    NodeId id{i};
    const Node& node = graph.node(id);
    if (node.op == Op::kAttention) {
      rewrite_attention(program, rewriter, id, inputs, options);
    } else if (node.op == Op::kMatmul && node.attr<bool>("head")) {
      Value rows =
          b.select_rows(rewriter.map(node.inputs[0]), b.input("logit_rows", {DType::kI32, {options.logit_rows}}));
      rewriter.set(node.inputs[0], rows);
      rewriter.copy(id);
    } else {
      rewriter.copy(id);
    }
  }
  return rewriter.finish();
}

}  // namespace octet
