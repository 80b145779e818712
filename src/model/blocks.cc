// Sources: GPT-2 (Radford et al. 2019), Llama (arXiv 2302.13971, 2307.09288), parallel residuals (GPT-J; GPT-NeoX,
// arXiv 2204.06745), rotary positions (arXiv 2104.09864), ALiBi (arXiv 2108.12409), multi-query (arXiv 1911.02150) and
// grouped-query attention (arXiv 2305.13245), gated units (arXiv 2002.05202).
#include <cmath>

#include "model/families.h"

namespace octet {
namespace {

LinearOptions input_projection(const ModelConfig& c, bool bias) {
  return {.bias = bias, .std = c.init_std, .split = Split::kColumn};
}

// Projections that end in the residual stream start at std / sqrt(2 layers), as in GPT-2's released code.
LinearOptions residual_projection(const ModelConfig& c, bool bias) {
  return {.bias = bias, .std = c.init_std / std::sqrt(2.0 * static_cast<double>(c.layers)), .split = Split::kRow};
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
Value head_norm(Builder& b, Value x, const std::string& name, int64_t heads, const ModelConfig& c) {
  Shape rows = b.shape(x);
  Value each = b.reshape(x, {rows[0] * heads, rows[1] / heads});
  return b.reshape(norm(b, each, name, c), rows);
}

}  // namespace

Value norm(Builder& b, Value x, const std::string& name, const ModelConfig& c) {
  auto scope = b.scope(name);
  int64_t width = b.shape(x).cols();
  Value weight = b.param("weight", {width}, {.init = c.norm_plus_one ? Init::kZeros : Init::kOnes});
  if (c.norm_plus_one) weight = b.add(weight, b.constant(1));
  if (c.norm == Norm::kRms) return b.rms_norm(x, weight, c.norm_eps).y;
  Value bias = c.bias.norm ? b.param("bias", {width}, {.init = Init::kZeros}) : b.constant(0, {width});
  return b.layer_norm(x, weight, bias, c.norm_eps).y;
}

Value attention_block(Builder& b, Value x, Value positions, Value segments, const ModelConfig& c,
                      const BatchShape& shape) {
  auto scope = b.scope("attn");
  int64_t heads = c.heads, kv_heads = c.kv_head_count(), dim = c.head_size();
  LinearOptions in = input_projection(c, c.bias.qkv);
  Value q = b.linear(x, "q", heads * dim, in);
  Value k = b.linear(x, "k", kv_heads * dim, in);
  Value v = b.linear(x, "v", kv_heads * dim, in);
  if (c.qk_norm) {
    q = head_norm(b, q, "q_norm", heads, c);
    k = head_norm(b, k, "k_norm", kv_heads, c);
  }
  if (c.positions == Positions::kRotary && c.rotary_size() > 0) {
    RopeOptions rope = c.rope;
    rope.head_dim = dim;
    rope.heads = heads;
    q = b.rope(q, positions, rope);
    rope.heads = kv_heads;
    k = b.rope(k, positions, rope);
  }
  AttentionOptions options{.heads = heads,
                           .kv_heads = kv_heads,
                           .head_dim = dim,
                           .scale = c.attention_scale,
                           .window = c.window,
                           .max_length = shape.max_length,
                           .equal_length = shape.equal_length,
                           .dropout = shape.training ? c.dropout : 0.0};
  if (c.positions == Positions::kAlibi) options.alibi = c.alibi, options.alibi_scale = c.alibi_scale;
  Value mixed = b.attention(q, k, v, segments, options).out;
  return b.linear(mixed, "o", c.hidden, residual_projection(c, c.bias.out));
}

Value mlp_block(Builder& b, Value x, const ModelConfig& c) {
  auto scope = b.scope("mlp");
  LinearOptions in = input_projection(c, c.bias.mlp);
  Value gate = c.gated ? b.linear(x, "gate", c.intermediate_size(), in) : Value::none();
  Value up = b.linear(x, "up", c.intermediate_size(), in);
  Value inner = c.gated ? b.mul(activate(b, gate, c.activation), up) : activate(b, up, c.activation);
  return b.linear(inner, "down", c.hidden, residual_projection(c, c.bias.mlp));
}

Value embed_tokens(Builder& b, Value positions, Value& table, const ModelConfig& c, const BatchShape& shape) {
  Value ids = b.token_ids(shape.tokens);
  table = b.param("embed.weight", {c.vocab_size, c.hidden}, {.std = c.init_std, .split = Split::kVocab});
  Value places;
  if (c.positions == Positions::kLearned) {
    int64_t rows = c.max_positions + c.position_offset;
    places = b.param("pos_embed.weight", {rows, c.hidden}, {.std = c.init_std});
    if (c.position_offset > 0) places = b.slice(places, 0, c.position_offset, rows);
  }
  Value x = b.embedding(ids, table);
  if (c.scale_embeddings) x = b.scale(x, std::sqrt(static_cast<double>(c.hidden)));
  if (places.exists()) x = b.add(x, b.embedding(positions, places));
  if (c.embed_norm) x = norm(b, x, "embed_norm", c);
  return b.dropout(x, shape.training ? c.dropout : 0.0);
}

Value output_head(Builder& b, Value hidden, Value table, const ModelConfig& c) {
  if (!c.tie_embeddings)
    table = b.param("head.weight", {c.vocab_size, c.hidden}, {.std = c.init_std, .split = Split::kVocab});
  Value logits = b.head(hidden, table, "head");
  if (!c.bias.head) return logits;
  Value bias = b.param("head.bias", {c.vocab_size}, {.init = Init::kZeros, .split = Split::kVocab});
  return b.add(logits, bias);
}

}  // namespace octet
