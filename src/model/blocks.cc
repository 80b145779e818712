// Sources: GPT-2 (Radford et al. 2019), Llama (arXiv 2302.13971, 2307.09288), parallel residuals (GPT-J; GPT-NeoX,
// arXiv 2204.06745), rotary positions (arXiv 2104.09864), ALiBi (arXiv 2108.12409), multi-query (arXiv 1911.02150) and
// grouped-query attention (arXiv 2305.13245), gated units (arXiv 2002.05202), encoders (BERT, arXiv 1810.04805).
#include <algorithm>
#include <cmath>

#include "base/error.h"

#include "model/model.h"

namespace octet {
namespace {

LinearOptions input_projection(const ModelSpec& m, bool bias) {
  return {.bias = bias, .std = m.init_std, .split = Split::kColumn};
}

// Projections that end in the residual stream start at std / sqrt(2 layers), as in GPT-2's released code; where a norm
// follows each sum, as in BERT's, at std.
LinearOptions residual_projection(const ModelSpec& m, bool bias) {
  const double sums = m.residual == Residual::kPostNorm ? 1 : 2.0 * static_cast<double>(m.layers);
  return {.bias = bias, .std = m.init_std / std::sqrt(sums), .split = Split::kRow};
}

Value activate(Builder& b, Value x, Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh: return b.gelu(x, /*approximate=*/true);
    case Activation::kGelu: return b.gelu(x, /*approximate=*/false);
    case Activation::kRelu: return b.relu(x);
    case Activation::kSilu: return b.silu(x);
  }
  return x;
}

// Parameters of a norm over x's last dim, "<name>.weight" and ".bias".
Value norm(Builder& b, Value x, const std::string& name, const NormSpec& spec) {
  auto scope = b.scope(name);
  int64_t width = b.shape(x).cols();
  Value weight = b.param("weight", {width}, {.init = spec.plus_one ? Init::kZeros : Init::kOnes});
  if (spec.plus_one) weight = b.add(weight, b.constant(1));
  if (spec.kind == NormKind::kRms) return b.rms_norm(x, weight, spec.eps).y;
  Value bias = spec.bias ? b.param("bias", {width}, {.init = Init::kZeros}) : b.constant(0, {width});
  return b.layer_norm(x, weight, bias, spec.eps).y;
}

// x [T, heads D] normed per head, one weight [D] for all heads.
Value head_norm(Builder& b, Value x, const std::string& name, int64_t heads, const NormSpec& spec) {
  Shape rows = b.shape(x);
  Value each = b.reshape(x, {rows[0] * heads, rows[1] / heads});
  return b.reshape(norm(b, each, name, spec), rows);
}

// Attention over x with its projections attn.q, k, v, o.
Value attention_block(Builder& b, Value x, Value positions, Value segments, const ModelSpec& m, const AttentionSpec& a,
                      const BatchShape& shape) {
  auto scope = b.scope("attn");
  LinearOptions in = input_projection(m, a.qkv_bias);
  Value q = b.linear(x, "q", a.heads * a.head_dim, in);
  Value k = b.linear(x, "k", a.kv_heads * a.head_dim, in);
  Value v = b.linear(x, "v", a.kv_heads * a.head_dim, in);
  if (a.qk_norm) {
    q = head_norm(b, q, "q_norm", a.qk_norm_whole ? 1 : a.heads, m.norm);
    k = head_norm(b, k, "k_norm", a.qk_norm_whole ? 1 : a.kv_heads, m.norm);
  }
  if (a.rope) {
    RopeOptions rope = *a.rope;
    rope.head_dim = a.head_dim;
    rope.heads = a.heads;
    q = b.rope(q, positions, rope);
    rope.heads = a.kv_heads;
    k = b.rope(k, positions, rope);
  }
  AttentionOptions options{.heads = a.heads,
                           .kv_heads = a.kv_heads,
                           .head_dim = a.head_dim,
                           .scale = a.scale,
                           .causal = a.causal,
                           .window = a.window,
                           .max_length = shape.max_length,
                           .equal_length = shape.equal_length,
                           .dropout = shape.training ? m.dropout : 0.0,
                           .dropout_bits = m.dropout_bits,
                           .alibi = a.alibi,
                           .alibi_scale = a.alibi_scale};
  Value mixed = b.attention(q, k, v, segments, options).out;
  return b.linear(mixed, "o", m.hidden, residual_projection(m, a.out_bias));
}

// "up" and "down", and "gate" where it is gated.
Value dense_mlp(Builder& b, Value x, const ModelSpec& m, const MixerSpec& spec, int64_t intermediate) {
  LinearOptions in = input_projection(m, spec.bias);
  Value gate = spec.gated ? b.linear(x, "gate", intermediate, in) : Value::none();
  Value up = b.linear(x, "up", intermediate, in);
  Value inner = spec.gated ? b.mul(activate(b, gate, spec.activation), up) : activate(b, up, spec.activation);
  return b.linear(inner, "down", m.hidden, residual_projection(m, spec.bias));
}

// Sums over the routers of all layers, of which the losses are made; counts and scores [experts], squares [1].
struct RouterSums {
  Value counts, scores, squares;
  int64_t layers = 0;

  void add(Builder& b, const Builder::Routing& routing, const Builder::Groups& groups) {
    const auto sum = [&](Value& all, Value more) { all = all.exists() ? b.add(all, more) : more; };
    sum(counts, groups.counts);
    sum(scores, b.reduce(routing.scores, "sum", "rows"));
    sum(squares, b.reduce(b.mul(routing.lse, routing.lse), "sum", "all"));
    ++layers;
  }
};

// In float32 under every recipe: which experts a token goes to must not hang on a rounding.
Value router_logits(Builder& b, Value x, const std::string& name, int64_t experts, const ModelSpec& m) {
  Value weight = b.param(name + ".weight", {experts, m.hidden}, {.std = m.init_std});
  return b.matmul(x, weight, false, true, {}, {{"float32", true}});
}

// mlp.router, mlp.experts.gate, up and down: rows of tokens sorted by expert, then weighted and summed by token.
Value experts_block(Builder& b, Value x, const ModelSpec& m, const MixerSpec& spec, RouterSums* sums) {
  const ExpertsSpec& e = spec.experts;
  Builder::Routing routing = b.top_k(router_logits(b, x, "router", e.count, m), e.per_token, "softmax", e.renormalize);
  Builder::Groups groups = b.group_rows(routing.experts, e.count);
  if (sums != nullptr) sums->add(b, routing, groups);
  Value rows = b.dispatch_rows(x, groups.places);
  {
    auto scope = b.scope("experts");
    Value gate = b.grouped_linear(rows, groups.offsets, "gate", e.intermediate, m.init_std);
    Value up = b.grouped_linear(rows, groups.offsets, "up", e.intermediate, m.init_std);
    rows = b.grouped_linear(b.mul(activate(b, gate, spec.activation), up), groups.offsets, "down", m.hidden,
                            residual_projection(m, false).std);
  }
  Value y = b.combine_rows(rows, groups.places, routing.weights);
  if (e.shared_intermediate == 0) return y;
  // The shared expert is one that every token goes to, with a sigmoid for a weight.
  Builder::Routing all = b.top_k(router_logits(b, x, "shared_router", 1, m), 1, "sigmoid", false);
  auto scope = b.scope("shared");
  Value shared = dense_mlp(b, x, m, spec, e.shared_intermediate);
  return b.add(y, b.combine_rows(shared, b.group_rows(all.experts, 1).places, all.weights));
}

Value mixer_block(Builder& b, Value x, const ModelSpec& m, const MixerSpec& spec, RouterSums* sums) {
  auto scope = b.scope("mlp");
  return spec.experts.count > 0 ? experts_block(b, x, m, spec, sums) : dense_mlp(b, x, m, spec, spec.intermediate);
}

// Hidden states of the tokens in front of the first layer; `table` receives the embedding table.
Value embed_tokens(Builder& b, Value positions, Value& table, const ModelSpec& m, const BatchShape& shape) {
  const EmbeddingSpec& spec = m.embedding;
  Value ids = b.token_ids(shape.tokens);
  table = b.param("embed.weight", {spec.vocab_size, m.hidden}, {.std = m.init_std, .split = Split::kVocab});
  Value places;
  if (spec.learned_positions) {
    int64_t rows = m.max_positions + spec.position_offset;
    places = b.param("pos_embed.weight", {rows, m.hidden}, {.std = m.init_std});
    if (spec.position_offset > 0) places = b.slice(places, 0, spec.position_offset, rows);
  }
  Value x = b.embedding(ids, table);
  if (spec.scaled) x = b.scale(x, std::sqrt(static_cast<double>(m.hidden)));
  if (spec.token_types > 0) {
    Value types = b.param("type_embed.weight", {spec.token_types, m.hidden}, {.std = m.init_std});
    x = b.add(x, spec.token_types == 1
                     ? b.reshape(types, {m.hidden})
                     : b.embedding(b.of_tokens("token_types", shape.tokens, {{"optional", true}}), types));
  }
  if (places.exists()) x = b.add(x, b.embedding(positions, places));
  if (spec.norm) x = norm(b, x, "embed_norm", m.norm);
  return b.dropout(x, shape.training ? m.dropout : 0.0, m.dropout_bits);
}

// x W^T + bias beside the layers: in the compute type under every recipe.
Value dense(Builder& b, Value x, const std::string& name, int64_t out, const ModelSpec& m) {
  Value weight = b.param(name + ".weight", {out, m.hidden}, {.std = m.init_std});
  return b.add(b.matmul(x, weight, false, true), b.param(name + ".bias", {out}, {.init = Init::kZeros}));
}

// Logits from the last hidden states: the embedding table when tied, else "head.weight"; and "head.bias".
Value output_head(Builder& b, Value hidden, Value table, const ModelSpec& m, const BatchShape& shape) {
  const int64_t vocab = m.embedding.vocab_size;
  if (m.head.kind == Head::kNone) return Value::none();
  if (m.head.kind == Head::kMaskedLm) {
    if (shape.predictions > 0)
      hidden = b.select_rows(hidden, b.input("masked_rows", {DType::kI32, {shape.predictions}}));
    hidden = activate(b, dense(b, hidden, "transform", m.hidden, m), m.layer(0).mixer.activation);
    hidden = norm(b, hidden, "transform_norm", m.norm);
  }
  if (!m.head.tied) table = b.param("head.weight", {vocab, m.hidden}, {.std = m.init_std, .split = Split::kVocab});
  Value logits = b.head(hidden, table, "head");
  if (!m.head.bias) return logits;
  return b.add(logits, b.param("head.bias", {vocab}, {.init = Init::kZeros, .split = Split::kVocab}));
}

ModelOutputs layers_and_heads(Builder& b, const ModelSpec& m, const BatchShape& shape, RouterSums* sums) {
  double p = shape.training ? m.dropout : 0.0;
  Value positions = b.positions(shape.tokens), segments = b.segments(shape.max_segments), table;
  Value x = embed_tokens(b, positions, table, m, shape);
  for (int64_t i = 0; i < m.layers; ++i) {
    const auto& [attention, mixer] = m.layer(i);
    auto layer = b.layer(static_cast<int>(i));
    const bool post_norm = m.residual == Residual::kPostNorm;
    Value normed = post_norm ? x : norm(b, x, "norm1", m.norm);
    Value mixed = b.dropout(attention_block(b, normed, positions, segments, m, attention, shape), p, m.dropout_bits);
    if (post_norm) {
      x = norm(b, b.add(x, mixed), "norm1", m.norm);
      x = norm(b, b.add(x, b.dropout(mixer_block(b, x, m, mixer, sums), p, m.dropout_bits)), "norm2", m.norm);
      continue;
    }
    const bool sandwich = m.residual == Residual::kSandwich, in_turn = sandwich || m.residual == Residual::kSequential;
    if (sandwich) mixed = norm(b, mixed, "post_norm1", m.norm);
    if (in_turn) x = b.add(x, mixed);
    if (m.residual != Residual::kParallelShared) normed = norm(b, x, "norm2", m.norm);
    Value inner = b.dropout(mixer_block(b, normed, m, mixer, sums), p, m.dropout_bits);
    if (sandwich) inner = norm(b, inner, "post_norm2", m.norm);
    x = in_turn ? b.add(x, inner) : b.add(x, b.add(mixed, inner));
  }
  ModelOutputs out{.hidden = m.residual == Residual::kPostNorm ? x : norm(b, x, "norm", m.norm)};
  out.logits = output_head(b, out.hidden, table, m, shape);
  if (m.head.pooler) {
    Value first = b.select_rows(out.hidden, b.input("rows", {DType::kI32, {shape.max_segments}}));
    out.pooled = b.tanh(dense(b, first, "pooler", m.hidden, m));
  }
  const bool pretrains = m.head.kind != Head::kNone;  // a next-sentence head, which is trained without dropout
  if (m.head.labels > 0)
    out.classes = dense(b, b.dropout(out.pooled, pretrains ? 0.0 : p, m.dropout_bits), "classifier", m.head.labels, m);
  return out;
}

// What no op's own checks say.
void check_pattern(const ModelSpec& m) {
  const auto listed = static_cast<int64_t>(m.pattern.size());
  check(listed > 0 && listed <= m.layers, ErrorCode::kInvalidArgument,
        "model: {} layers are listed for {} (want 1 to that many)", listed, m.layers);
  for (int64_t i = 0; i < listed; ++i)
    check(!m.layer(i).attention.cross, ErrorCode::kUnsupported,
          "layer {}: cross attention is not supported: op attention takes queries, keys and values of one sequence; "
          "set AttentionSpec::cross = false",
          i);
}

ModelOutputs checked_outputs(Builder& b, const ModelSpec& m, const BatchShape& shape, RouterSums* sums) {
  check_pattern(m);
  check(shape.tokens > 0 && shape.max_segments > 0 && shape.max_length > 0, ErrorCode::kInvalidArgument,
        "batch: tokens {}, sequences {}, longest {} (all must be positive)", shape.tokens, shape.max_segments,
        shape.max_length);
  check(m.length_limit() == 0 || shape.max_length <= m.length_limit(), ErrorCode::kInvalidArgument,
        "sequence length {} exceeds model.max_positions {}: shorten data.sequence_length or raise model.max_positions",
        shape.max_length, m.max_positions);
  return layers_and_heads(b, m, shape, sums);
}

// Added to the sum of the tokens' losses, so times the tokens. With R rows, the tokens of all layers: the
// load-balancing loss is E sum_e counts_e / R x scores_e / R (Switch Transformer, arXiv 2101.03961, equations 4-6, over
// all layers as transformers computes it), the z-loss the mean of lse^2 (ST-MoE, arXiv 2202.08906, equation 5).
Value with_router_losses(Builder& b, Value loss, const RouterSums& sums, const ExpertsSpec& e, int64_t tokens) {
  const auto rows = static_cast<double>(tokens * sums.layers);
  if (e.balance_loss > 0) {
    Value balance = b.reduce(b.mul(sums.scores, sums.counts), "sum", "all");
    const double factor = e.balance_loss * static_cast<double>(e.count * tokens) / (rows * rows);
    loss = b.add(loss, b.scale(balance, factor));
  }
  if (e.z_loss > 0) loss = b.add(loss, b.scale(sums.squares, e.z_loss * static_cast<double>(tokens) / rows));
  return loss;
}

Value token_losses(Builder& b, const ModelSpec& model, const BatchShape& shape, RouterSums* sums) {
  check(model.head.kind == Head::kNextToken && model.pattern[0].attention.causal, ErrorCode::kUnsupported,
        "losses are of next tokens, which this model does not predict{}: encoders are trained by workload=bert and "
        "workload=classify",
        model.head.kind == Head::kNextToken ? " (\"is_causal\": false)" : "");
  const Value logits = checked_outputs(b, model, shape, sums).logits;
  return b.cross_entropy(logits, b.targets(shape.tokens)).per_token;
}

}  // namespace

ModelOutputs build_outputs(Builder& b, const ModelSpec& m, const BatchShape& shape) {
  return checked_outputs(b, m, shape, nullptr);
}

Value build_logits(Builder& b, const ModelSpec& m, const BatchShape& shape) {
  Value logits = build_outputs(b, m, shape).logits;
  check(logits.exists(), ErrorCode::kUnsupported,
        "the model has no head that gives logits of tokens: it gives hidden states, for embeddings (octet embed)");
  return logits;
}

Value build_token_losses(Builder& b, const ModelSpec& model, const BatchShape& shape) {
  return token_losses(b, model, shape, nullptr);
}

void build_loss(Builder& b, const ModelSpec& model, const BatchShape& shape) {
  const auto is_weighed = [](const LayerSpec& layer) {
    const ExpertsSpec& e = layer.mixer.experts;
    return e.count > 0 && (e.balance_loss > 0 || e.z_loss > 0);
  };
  const auto weighed = std::ranges::find_if(model.pattern, is_weighed);
  const bool router_losses = shape.training && weighed != model.pattern.end();
  RouterSums sums;
  const Value per_token = token_losses(b, model, shape, router_losses ? &sums : nullptr);
  Value total = b.reduce(per_token, "sum", "all");
  if (router_losses) total = with_router_losses(b, total, sums, weighed->mixer.experts, shape.tokens);
  b.output("loss", total);
  if (!shape.training) b.output("loss_per_token", per_token);
}

}  // namespace octet
