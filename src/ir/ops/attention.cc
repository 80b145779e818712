// Attention within segments of a token-flattened batch, causal unless the attribute says otherwise. q is [T, heads
// head_dim], k and v [T, kv_heads head_dim]; segments i32[S+1] holds the start of every segment and then the end of the
// last one, repeated.
#include <algorithm>

#include "ir/builder.h"
#include "ir/ops/layouts.h"

namespace octet::ops {

HeadDims head_dims(const Node& node) {
  HeadDims dims{node.attr<int64_t>("heads"), node.attr<int64_t>("kv_heads"), node.attr<int64_t>("head_dim")};
  require(dims.heads % dims.kv_heads == 0, node, "heads {} is not a multiple of kv_heads {}", dims.heads,
          dims.kv_heads);
  double scale = node.attr<double>("scale"), alibi = node.attr<double>("alibi");
  require(alibi == 0 || scale > 0, node, "alibi {} needs a positive scale, has {}", alibi, scale);
  return dims;
}

void require_heads(const Graph& graph, const Node& node, size_t i, int64_t tokens, int64_t width) {
  require_arithmetic(graph, node, i);
  const Shape& shape = input_shape(graph, node, i);
  require(shape == Shape{tokens, width}, node, "input {} is {} (want [{},{}]: tokens, heads x head_dim)", i, shape,
          tokens, width);
}

void require_ints(const Graph& graph, const Node& node, size_t i, int rank, const char* what) {
  const TensorType& type = input_type(graph, node, i);
  require(type.dtype == DType::kI32 && type.shape.rank() == rank, node, "{} is {} (want i32 of rank {})", what, type,
          rank);
}

void require_segments(const Graph& graph, const Node& node, size_t i) {
  require_ints(graph, node, i, 1, "segments");
  require(input_shape(graph, node, i)[0] >= 2, node, "segments is {} (want at least 2: a start and an end)",
          input_shape(graph, node, i));
}

// Heads lie on any axes, rows are whole. Every rank holds the key heads of its queries; one key head may be shared by
// ranks, which hold copies: those along the inner axes of its queries.
Layout heads_layout(const Graph& graph, const Node& node, size_t first_key, size_t last_key) {
  const Layout& q = input_layout(graph, node, 0);
  require_layout(q == q.only(1), graph, node, 0, "cut along heads (dim 1) alone, nothing pending");
  const AxisList axes = q.cut_axes(1);
  for (size_t i = first_key; i <= last_key; ++i) {
    const AxisList own = input_layout(graph, node, i).cut_axes(1);
    const bool shared = node.attr<int64_t>("kv_heads") == 1 && own.size() < axes.size() &&
                        std::equal(own.begin(), own.end(), axes.begin());
    require_is(graph, node, i, shared ? Layout().with(1, own) : q, "heads as those of q");
  }
  return q;
}

void arrange_heads(LayoutRequest& request) {
  Node& node = request.node();
  const int64_t head_dim = node.attr<int64_t>("head_dim");
  for (size_t i : {0, 1, 2}) {
    request.reduce(i);
    const AxisList rows = request.layout(i).cut_axes(0);
    AxisList axes = request.layout(i).cut_axes(1);
    if (i == 0 || request.shape(i)[1] / head_dim % request.graph().mesh().parts(rows) == 0)
      axes.insert(axes.end(), rows.begin(), rows.end());
    request.redistribute(i, Layout().with(1, axes));
  }
  if (node.op == Op::kAttentionGrad)
    for (size_t i : {4, 5, 6}) request.redistribute(i, request.layout(0));
  node.attrs.set("heads", request.shape(0)[1] / head_dim);
  node.attrs.set("kv_heads", request.shape(1)[1] / head_dim);
}

}  // namespace octet::ops

namespace octet::facts {
namespace {

using namespace ops;

// Checks of q, k, v, segments and dropout, shared with the gradient.
HeadDims check_attention(const Graph& graph, const Node& node) {
  HeadDims dims = head_dims(node);
  require_rank(graph, node, 0, 2);
  int64_t tokens = input_shape(graph, node, 0)[0];
  require_heads(graph, node, 0, tokens, dims.heads * dims.head_dim);
  require_heads(graph, node, 1, tokens, dims.kv_heads * dims.head_dim);
  require_heads(graph, node, 2, tokens, dims.kv_heads * dims.head_dim);
  require_segments(graph, node, 3);
  if (double p = node.attr<double>("dropout"); p > 0) {
    require(node.operand("rng").exists(), node, "dropout {} needs the rng input", p);
    require_optional(graph, node, "rng", {DType::kI64, {3}});
    require_dropout_bits(node, p);
    require(node.attr<int64_t>("max_length") > 0 && node.attrs.has("key"), node, "dropout {} needs max_length and key",
            p);
  }
  return dims;
}

Types attention_type(const Graph& graph, const Node& node) {
  HeadDims dims = check_attention(graph, node);
  return {input_type(graph, node, 0), f32({input_shape(graph, node, 0)[0], dims.heads})};
}

Types attention_grad_type(const Graph& graph, const Node& node) {
  HeadDims dims = check_attention(graph, node);
  int64_t tokens = input_shape(graph, node, 0)[0];
  require_heads(graph, node, 4, tokens, dims.heads * dims.head_dim);
  require_type(graph, node, 5, f32({tokens, dims.heads}));
  require_heads(graph, node, 6, tokens, dims.heads * dims.head_dim);
  return {input_type(graph, node, 0), input_type(graph, node, 1), input_type(graph, node, 2)};
}

Layouts place_attention(const Graph& graph, const Node& node) {
  const Layout q = heads_layout(graph, node, 1, 2);
  require_copies(graph, node, 3);
  require_copies(graph, node, 4);
  return {q, q};
}

// Queries of several ranks add to the gradients of keys that they share.
Layouts place_attention_grad(const Graph& graph, const Node& node) {
  const Layout q = heads_layout(graph, node, 1, 2);
  for (size_t i : {4, 5, 6}) require_is(graph, node, i, q, "heads as those of q");
  require_copies(graph, node, 3);
  require_copies(graph, node, 7);
  const auto keys = [&](size_t i) {
    const Layout& k = input_layout(graph, node, i);
    return k.with_pending(Pending::kSum, q.cut_axes() - k.cut_axes());
  };
  return {q, keys(1), keys(2)};
}

// Visible (query, key) pairs less what a window hides: L keys a query for segments of L, causal L/2.
double visible_pairs(const Graph& graph, const Node& node) {
  int64_t tokens = input_shape(graph, node, 0)[0];
  int64_t length = node.attr<int64_t>("equal_length");
  if (length <= 0) length = node.attr<int64_t>("max_length");
  if (length <= 0) length = tokens;
  int64_t window = node.attr<int64_t>("window");
  auto l = static_cast<double>(std::min(length, tokens));
  double w = window > 0 ? std::min(static_cast<double>(window), l) : l;
  return static_cast<double>(tokens) * (w - w * w / (2 * l)) * (node.attr<bool>("causal") ? 1 : 2);
}

// kProducts matrix products of head_dim multiply-adds a pair: 2 forward, 5 backward (scores once more, dp, dv, dq, dk).
template <int kProducts>
Cost attention_cost(const Graph& graph, const Node& node) {
  double width = static_cast<double>(input_shape(graph, node, 0)[1]);
  return {2.0 * kProducts * width * visible_pairs(graph, node), moved_bytes(graph, node)};
}

void attention_gradient(GradientContext& context) {
  require_no_gradient(context, 1, "the log-sum-exp of attention");
  std::vector<Value> inputs = {context.input(0),  context.input(1),  context.input(2),   context.input(3),
                               context.result(0), context.result(1), context.gradient(0)};
  if (context.node().operand("rng").exists()) inputs.push_back(context.input(operand_index(Op::kAttention, "rng")));
  Value dq = emit_gradient(context, Op::kAttentionGrad, std::move(inputs), context.node().attrs);
  for (int i = 0; i < 3; ++i) context.add_gradient(i, {dq.node, i});
}

}  // namespace

const OpFacts attention = {
    .infer = attention_type,
    .layouts = {place_attention, arrange_heads, rows_of<0b111>},
    .gradient = attention_gradient,
    .cost = attention_cost<2>,
    .precision = {ResultPrecision::kComputeType, ResultPrecision::kFloat32},
    .meaning =
        "softmax(scale q k^T) v per head within segments, with causal only of keys at or before the query; tokens past "
        "the last segment give 0; lse before dropout; alibi > 0 adds alibi_scale x slope(head) x -|query - key| to the "
        "scaled score, the slopes ending at 2^-alibi"};
const OpFacts attention_grad = {.infer = attention_grad_type,
                                .layouts = {place_attention_grad, arrange_heads, rows_of<0b111>},
                                .no_gradient = "is a gradient",
                                .cost = attention_cost<5>,
                                .meaning =
                                    "with P = exp(s - lse): dv = P^T dout, ds = P (dout v^T - rowsum(dout out)), "
                                    "dq = scale ds k, dk = scale ds^T q"};

}  // namespace octet::facts
