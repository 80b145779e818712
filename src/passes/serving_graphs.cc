#include "passes/serving_graphs.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "ir/facts.h"
#include "ir/rewrite.h"

namespace octet {

namespace {

NodeId find_head(const Graph& graph) {
  NodeId head = NodeId::kNone;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    if (node.op != Op::kMatmul || !node.attr<bool>("head")) continue;
    check(head == NodeId::kNone, ErrorCode::kUnsupported, "serving: graph {} has two heads: {} and {}", graph.name(),
          describe(graph, head), describe(graph, NodeId{i}));
    head = NodeId{i};
  }
  check(head != NodeId::kNone, ErrorCode::kInvalidArgument, "serving: graph {} has no head", graph.name());
  return head;
}

Value sampled_state(Program& program, Builder& b, const ServingStates& states) {
  return declare_state(
      program, b, {.name = kSampledState, .type = {DType::kI32, {states.sequences, 1}}, .role = StateRole::kBuffer});
}

Value hidden_state(Program& program, Builder& b, int64_t width, const ServingStates& states) {
  return declare_state(
      program, b,
      {.name = kHiddenState, .type = {states.hidden_dtype, {states.rows, width}}, .role = StateRole::kBuffer});
}

// Nodes that `value` needs and that are not needed for `end` alone.
std::vector<bool> nodes_between(const Graph& graph, Value end, Value value) {
  std::vector<bool> needed(static_cast<size_t>(graph.size()), false);
  needed[slot(value.node)] = true;
  for (int32_t i = index(value.node); i >= 0; --i) {
    if (!needed[static_cast<size_t>(i)]) continue;
    for (Value input : graph.node(NodeId{i}).inputs) {
      if (input.exists() && input != end) needed[slot(input.node)] = true;
    }
  }
  return needed;
}

// The logits of the first rows of `hidden`.
Value row_logits(Program& program, Rewriter& rewriter, int64_t rows, const ServingStates& states) {
  const Graph& old = rewriter.old_graph();
  Builder& b = rewriter.builder();
  NodeId head = find_head(old);
  Value hidden = old.node(head).inputs[0], logits = old.output("logits");
  rewriter.set(hidden, b.slice(hidden_state(program, b, old.shape(hidden).cols(), states), 0, 0, rows));
  std::vector<bool> needed = nodes_between(old, hidden, logits);
  for (int32_t i = 0; i < old.size(); ++i) {
    if (!needed[static_cast<size_t>(i)]) continue;
    if (NodeId{i} != head) {
      rewriter.copy(NodeId{i});
      continue;
    }
    Node product = old.node(head);
    for (Value& input : product.inputs) input = rewriter.map(input);
    product.attrs.set("to", "f32");
    rewriter.set({head, 0}, {rewriter.graph().add(std::move(product)), 0});
  }
  return rewriter.map(logits);
}

Value adjusted(Builder& b, Value logits, const SampleGraphOptions& o) {
  if (o.entries == 0) return logits;
  const int64_t words = (b.shape(logits).cols() + 31) / 32;
  std::vector<Value> inputs = {logits, b.input("entries", {DType::kI32, {o.entries, 2}}, {{"pad", -1}}),
                               b.input("values", {DType::kF32, {o.entries, 3}}, {{"pad", 1}})};
  if (o.masks > 0) {
    inputs.push_back(b.input("masks", {DType::kI32, {o.masks, words}}, {{"rest", "any"}}));
    inputs.push_back(b.input("mask_rows", {DType::kI32, {o.rows}}, {{"pad", -1}}));
  }
  return {b.emit(Op::kAdjustLogits, std::move(inputs), {}, "adjust_logits"), 0};
}

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
        .slots = b.of_tokens(group_input("slots", g), tokens, {{"pad", -1}}),
        .block_table = b.input(group_input("block_table", g), {DType::kI32, {o.sequences, o.blocks_per_sequence}},
                               {{"rest", "any"}})};
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

// What attention reads of one side: the cache, and the scales of its slots and heads where it is of i8.
struct Cached {
  Value rows, scale_inv;
};

// Appends this step's rows to one side.
Cached append(Program& program, Builder& b, const Node& attention, CacheSide side, Value rows,
              const CacheGroupInputs& group, const KvCacheOptions& o) {
  const int64_t slots = group.blocks * o.block_size;
  const Value cache = cache_state(program, b, StateRole::kKvCache, attention.name, side,
                                  {o.cache_dtype, {slots, b.shape(rows).cols()}});
  std::vector<Value> inputs = {cache, rows, group.slots};
  const std::string name = b.graph().node(cache).name;
  const auto updated = [&](NodeId append, int32_t result, Value state) {
    b.update(b.graph().node(state).name, {append, result});
    return Value{append, result};
  };
  if (o.cache_dtype == DType::kI8) {
    const CacheSide side_scales = side == kKeys ? kKeyScales : kValueScales;
    const Value scales = cache_state(program, b, StateRole::kKvCache, attention.name, side_scales,
                                     {DType::kF32, {slots, attention.attr<int64_t>("kv_heads")}});
    inputs.push_back(scales);
    const NodeId append = b.emit(Op::kScatterCodes, std::move(inputs), {}, name);
    return {updated(append, 0, cache), updated(append, 1, scales)};
  }
  if (o.scales) inputs.push_back(cache_state(program, b, StateRole::kCacheScale, attention.name, side));
  return {updated(b.emit(Op::kScatterRows, std::move(inputs), {}, name), 0, cache), {}};
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
  const Cached k = append(program, b, node, kKeys, rewriter.map(node.inputs[1]), group, o);
  const Cached v = append(program, b, node, kValues, rewriter.map(node.inputs[2]), group, o);
  Attrs attrs = attrs_for(Op::kPagedAttention, node.attrs);
  attrs.set("block_size", o.block_size);
  if (o.max_query_len > 0) attrs.set("max_query_len", o.max_query_len);
  std::vector<Value> operands = {
      rewriter.map(node.inputs[0]), k.rows, v.rows, rewriter.map(node.inputs[3]), inputs.kv_lengths, group.block_table};
  if (k.scale_inv.exists()) operands.insert(operands.end(), {k.scale_inv, v.scale_inv});
  if (o.scales) {
    for (CacheSide side : {kKeys, kValues})
      operands.push_back(cache_state(program, b, StateRole::kCacheScaleInv, node.name, side));
  }
  NodeId paged = b.emit(Op::kPagedAttention, std::move(operands), attrs, node.name);
  rewriter.set({id, 0}, {paged, 0});
}

}  // namespace

Graph forward_graph(Program& program, const std::string& name, const Graph& logits, const KvCacheOptions& cache,
                    const ServingStates& states) {
  NodeId head = find_head(logits);
  Value ids = logits.find_leaf(Op::kInput, "ids");
  check(ids.exists(), ErrorCode::kInvalidArgument, "serving: graph {} has no input \"ids\"", logits.name());
  const int64_t tokens = logits.shape(ids)[0];
  Rewriter rewriter(logits);
  Builder& b = rewriter.builder();
  for (int32_t i = 0; i < index(head); ++i) {
    rewriter.copy(NodeId{i});
    if (NodeId{i} != ids.node) continue;
    std::vector<Value> inputs = {rewriter.map(ids), sampled_state(program, b, states),
                                 b.of_tokens("from", tokens, {{"pad", -1}})};
    rewriter.set(ids, {b.emit(Op::kSelectTokenIds, std::move(inputs), {}, "select_token_ids"), 0});
  }
  b.set_layer(-1);
  Value rows = rewriter.map(logits.node(head).inputs[0]);
  std::vector<Value> inputs = {hidden_state(program, b, b.shape(rows).cols(), states), rows,
                               b.of_tokens("hidden_rows", tokens, {{"pad", -1}})};
  b.update(kHiddenState, {b.emit(Op::kScatterRows, std::move(inputs), {}, kHiddenState), 0});
  Graph body = std::move(rewriter.graph());
  remove_dead_nodes(body);
  body.set_role(GraphRole::kForward, name);
  return add_kv_cache(program, body, cache);
}

Graph sample_graph(Program& program, const std::string& name, const Graph& logits, const SampleGraphOptions& o,
                   const ServingStates& states) {
  check(o.rows > 0 && o.rows <= states.rows && (o.masks == 0 || o.entries > 0), ErrorCode::kInvalidArgument,
        "serving: sampling {} rows of {}, {} masks and {} entries", o.rows, states.rows, o.masks, o.entries);
  Rewriter rewriter(logits);
  Builder& b = rewriter.builder();
  Value raw = row_logits(program, rewriter, o.rows, states);
  b.set_layer(-1);
  const Value chosen_from = adjusted(b, raw, o);
  std::vector<Value> inputs = {chosen_from, b.input("params", {DType::kF32, {o.rows, 3}}),
                               b.input("top_k", {DType::kI32, {o.rows}}), b.input("seeds", {DType::kI64, {o.rows, 3}})};
  if (o.entries > 0) inputs.push_back(raw);
  NodeId sample = b.emit(Op::kSample, std::move(inputs), {}, "sample");
  b.output("ids", {sample, 0});
  b.output("logprobs", {sample, 1});
  inputs = {sampled_state(program, b, states), b.reshape({sample, 0}, {o.rows, 1}),
            b.input("store", {DType::kI32, {o.rows}}, {{"pad", -1}})};
  b.update(kSampledState, {b.emit(Op::kScatterRows, std::move(inputs), {}, kSampledState), 0});
  if (o.top_logprobs > 0) {
    const auto add_top = [&](const char* name, const char* ids, Value logits) {
      const NodeId top = b.emit(Op::kTopLogprobs, {logits}, {{"k", o.top_logprobs}}, name);
      b.output(name, {top, 0});
      b.output(ids, {top, 1});
    };
    add_top("top_logprobs", "top_ids", raw);
    if (o.entries > 0) add_top("adjusted_logprobs", "adjusted_ids", chosen_from);
  }
  Graph graph = std::move(rewriter.graph());
  graph.set_role(GraphRole::kSample, name);
  return graph;
}

Graph copy_blocks_graph(const std::string& name, const Graph& forward, size_t group, int64_t block_size,
                        int64_t pairs) {
  Graph graph(name, GraphRole::kCopyBlocks);
  Builder b(graph);
  Value list = b.input("pairs", {DType::kI32, {pairs, 2}}, {{"pad", -1}});
  for (const auto& [state, member] : cache_groups(forward)) {
    if (member != group) continue;
    const Node& cache = forward.node(forward.find_leaf(Op::kState, state));
    b.set_layer(cache.layer);
    Value copied{b.emit(Op::kCopyBlocks, {b.state(cache.name, cache.results[0]), list}, {{"block_size", block_size}},
                        cache.name),
                 0};
    b.update(cache.name, copied);
  }
  return graph;
}

std::map<std::string, size_t> cache_groups(const Graph& forward) {
  std::map<std::string, size_t> groups;
  std::map<int32_t, size_t> slots;  // by input node
  for (size_t g = 0;; ++g) {
    Value input = forward.find_leaf(Op::kInput, group_input("slots", g));
    if (!input.exists()) break;
    slots[index(input.node)] = g;
  }
  for (const Node& node : forward.nodes()) {
    if (!is_scatter(node.op)) continue;
    auto group = slots.find(index(node.inputs[2].node));
    if (group == slots.end()) continue;
    for (int table : op_facts(node.op).must_alias)
      groups[forward.node(node.inputs[static_cast<size_t>(table)]).name] = group->second;
  }
  return groups;
}

namespace {

// The rows of a leaf that is a cache, else 0; `input`: how many input leaves come before it.
using CacheRows = std::function<int64_t(const Node& leaf, size_t input)>;

// Gives caches, and the results that stand in their place, other numbers of rows: in fusions' bodies too.
void resize_caches(Graph& graph, const CacheRows& cache_rows) {
  std::unordered_map<Value, int64_t, ValueHash> rows;
  const auto rows_of = [&](Value value) {
    const auto found = rows.find(value);
    return found == rows.end() ? 0 : found->second;
  };
  size_t inputs = 0;
  for (int32_t i = 0; i < graph.size(); ++i) {
    Node& node = graph.mutable_node(NodeId{i});
    for (int32_t r = 0; r < static_cast<int32_t>(node.results.size()); ++r) {
      const int aliased = must_alias(node, r);
      const int64_t count = aliased >= 0          ? rows_of(node.inputs[static_cast<size_t>(aliased)])
                            : node.inputs.empty() ? cache_rows(node, inputs)
                                                  : 0;
      if (count == 0) continue;
      rows[{NodeId{i}, r}] = count;
      node.results[static_cast<size_t>(r)].shape[0] = count;
    }
    if (node.op == Op::kInput) ++inputs;
    const auto reads_cache = [&](Value value) { return rows_of(value) > 0; };
    if (node.op != Op::kFusion || std::ranges::none_of(node.inputs, reads_cache)) continue;
    auto body = std::make_shared<Graph>(*node.body);
    resize_caches(
        *body, [&](const Node& leaf, size_t input) { return leaf.op == Op::kInput ? rows_of(node.inputs[input]) : 0; });
    node.body = std::move(body);
  }
}

}  // namespace

void set_cache_blocks(Plan& plan, const std::map<std::string, size_t>& groups, const std::vector<int64_t>& blocks,
                      int64_t block_size) {
  const int64_t alignment = std::max<int64_t>(plan.target.buffer_alignment, 64);
  auto aligned = [&](int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
  auto slots = [&](const std::string& state) { return blocks.at(groups.at(state)) * block_size; };
  for (StateEntry& entry : plan.program.states()) {
    if (!groups.contains(entry.name)) continue;
    plan.state_bytes -= aligned(entry.type.bytes());
    entry.type.shape[0] = slots(entry.name);
    plan.state_bytes += aligned(entry.type.bytes());
  }
  for (Graph& graph : plan.program.graphs()) {
    resize_caches(graph, [&](const Node& leaf, size_t) {
      return leaf.op == Op::kState && groups.contains(leaf.name) ? slots(leaf.name) : 0;
    });
  }
}

DType parse_cache_dtype(const std::string& name) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kE4M3, DType::kI8})
    if (name == cache_dtype_name(dtype)) return dtype;
  fail(ErrorCode::kInvalidArgument, "kv_cache: \"{}\" (want f32, bf16, e4m3 or int8)", name);
}

const char* cache_dtype_name(DType cache) { return cache == DType::kI8 ? "int8" : dtype_name(cache); }

int64_t cached_head_bytes(int64_t head_dim, DType cache) {
  return head_dim * dtype_bytes(cache) + (cache == DType::kI8 ? dtype_bytes(DType::kF32) : 0);
}

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
