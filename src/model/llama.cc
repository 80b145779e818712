// The Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.
// Source: Touvron et al. 2023, arXiv 2302.13971 and 2307.09288; Llama 3's rope scaling, arXiv 2407.21783.
#include <cmath>

#include "model/families.h"

namespace octet {
namespace {

Value scaled_norm(Builder& b, Value x, const std::string& name, const ModelConfig& config) {
  auto scope = b.scope(name);
  Value weight = b.param("weight", {b.shape(x).cols()}, {.init = Init::kOnes});
  return b.rms_norm(x, weight, config.norm_eps).y;
}

Value attention_block(Builder& b, Value x, Value positions, Value segments, const ModelConfig& config,
                      const BatchShape& shape) {
  auto scope = b.scope("attn");
  int64_t query_width = config.heads * config.head_size(), kv_width = config.kv_head_count() * config.head_size();
  LinearOptions in{.bias = config.bias, .std = config.init_std, .split = Split::kColumn};
  LinearOptions out{.std = config.init_std / std::sqrt(2.0 * static_cast<double>(config.layers)), .split = Split::kRow};
  RopeOptions rope = config.rope;
  rope.head_dim = config.head_size();
  Value q = b.linear(x, "q", query_width, in);
  Value k = b.linear(x, "k", kv_width, in);
  Value v = b.linear(x, "v", kv_width, in);
  rope.heads = config.heads;
  q = b.rope(q, positions, rope);
  rope.heads = config.kv_head_count();
  k = b.rope(k, positions, rope);
  Value mixed = b.attention(q, k, v, segments, attention_options(config, shape)).out;
  return b.linear(mixed, "o", config.hidden, out);
}

Value mlp_block(Builder& b, Value x, const ModelConfig& config) {
  auto scope = b.scope("mlp");
  LinearOptions in{.std = config.init_std, .split = Split::kColumn};
  LinearOptions out{.std = config.init_std / std::sqrt(2.0 * static_cast<double>(config.layers)), .split = Split::kRow};
  Value gate = b.linear(x, "gate", config.intermediate_size(), in);
  Value up = b.linear(x, "up", config.intermediate_size(), in);
  return b.linear(b.mul(b.silu(gate), up), "down", config.hidden, out);
}

}  // namespace

Value llama_logits(Builder& b, const ModelConfig& config, const BatchShape& shape) {
  double p = shape.training ? config.dropout : 0.0;
  Value ids = b.token_ids(shape.tokens), positions = b.positions(shape.tokens);
  Value segments = b.segments(shape.max_segments);
  ParamOptions table_options{.std = config.init_std, .split = Split::kVocab};
  Value table = b.param("embed.weight", {config.vocab_size, config.hidden}, table_options);
  Value x = b.dropout(b.embedding(ids, table), p);
  for (int64_t i = 0; i < config.layers; ++i) {
    auto layer = b.layer(static_cast<int>(i));
    Value normed = scaled_norm(b, x, "norm1", config);
    x = b.add(x, b.dropout(attention_block(b, normed, positions, segments, config, shape), p));
    x = b.add(x, b.dropout(mlp_block(b, scaled_norm(b, x, "norm2", config), config), p));
  }
  x = scaled_norm(b, x, "norm", config);
  return output_head(b, x, table, config);
}

}  // namespace octet
