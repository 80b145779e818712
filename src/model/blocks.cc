// Sources: GPT-2 (Radford et al. 2019), Llama (arXiv 2302.13971, 2307.09288), parallel residuals (GPT-J; GPT-NeoX,
// arXiv 2204.06745), rotary positions (arXiv 2104.09864), ALiBi (arXiv 2108.12409), multi-query (arXiv 1911.02150) and
// grouped-query attention (arXiv 2305.13245), gated units (arXiv 2002.05202).
#include <cmath>

#include "model/blocks.h"

namespace octet {
namespace {

LinearOptions input_projection(const ModelSpec& m, bool bias) {
  return {.bias = bias, .std = m.init_std, .split = Split::kColumn};
}

// Projections that end in the residual stream start at std / sqrt(2 layers), as in GPT-2's released code.
LinearOptions residual_projection(const ModelSpec& m, bool bias) {
  return {.bias = bias, .std = m.init_std / std::sqrt(2.0 * static_cast<double>(m.layers)), .split = Split::kRow};
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

// x [T, heads D] normed per head, one weight [D] for all heads.
Value head_norm(Builder& b, Value x, const std::string& name, int64_t heads, const NormSpec& spec) {
  Shape rows = b.shape(x);
  Value each = b.reshape(x, {rows[0] * heads, rows[1] / heads});
  return b.reshape(norm(b, each, name, spec), rows);
}

}  // namespace

Value norm(Builder& b, Value x, const std::string& name, const NormSpec& spec) {
  auto scope = b.scope(name);
  int64_t width = b.shape(x).cols();
  Value weight = b.param("weight", {width}, {.init = spec.plus_one ? Init::kZeros : Init::kOnes});
  if (spec.plus_one) weight = b.add(weight, b.constant(1));
  if (spec.kind == NormKind::kRms) return b.rms_norm(x, weight, spec.eps).y;
  Value bias = spec.bias ? b.param("bias", {width}, {.init = Init::kZeros}) : b.constant(0, {width});
  return b.layer_norm(x, weight, bias, spec.eps).y;
}

Value attention_block(Builder& b, Value x, Value positions, Value segments, const ModelSpec& m, const AttentionSpec& a,
                      const BatchShape& shape) {
  auto scope = b.scope("attn");
  LinearOptions in = input_projection(m, a.qkv_bias);
  Value q = b.linear(x, "q", a.heads * a.head_dim, in);
  Value k = b.linear(x, "k", a.kv_heads * a.head_dim, in);
  Value v = b.linear(x, "v", a.kv_heads * a.head_dim, in);
  if (a.qk_norm) {
    q = head_norm(b, q, "q_norm", a.heads, m.norm);
    k = head_norm(b, k, "k_norm", a.kv_heads, m.norm);
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
                           .alibi = a.alibi,
                           .alibi_scale = a.alibi_scale};
  Value mixed = b.attention(q, k, v, segments, options).out;
  return b.linear(mixed, "o", m.hidden, residual_projection(m, a.out_bias));
}

Value mixer_block(Builder& b, Value x, const ModelSpec& m, const MixerSpec& spec) {
  auto scope = b.scope("mlp");
  LinearOptions in = input_projection(m, spec.bias);
  Value gate = spec.gated ? b.linear(x, "gate", spec.intermediate, in) : Value::none();
  Value up = b.linear(x, "up", spec.intermediate, in);
  Value inner = spec.gated ? b.mul(activate(b, gate, spec.activation), up) : activate(b, up, spec.activation);
  return b.linear(inner, "down", m.hidden, residual_projection(m, spec.bias));
}

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
  if (places.exists()) x = b.add(x, b.embedding(positions, places));
  if (spec.norm) x = norm(b, x, "embed_norm", m.norm);
  return b.dropout(x, shape.training ? m.dropout : 0.0);
}

Value output_head(Builder& b, Value hidden, Value table, const ModelSpec& m) {
  const int64_t vocab = m.embedding.vocab_size;
  if (!m.head.tied) table = b.param("head.weight", {vocab, m.hidden}, {.std = m.init_std, .split = Split::kVocab});
  Value logits = b.head(hidden, table, "head");
  if (!m.head.bias) return logits;
  return b.add(logits, b.param("head.bias", {vocab}, {.init = Init::kZeros, .split = Split::kVocab}));
}

}  // namespace octet
