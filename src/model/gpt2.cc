// The GPT-2 family: learned positions, pre-layer-norm, GELU (tanh form), biases everywhere.
// Source: Radford et al. 2019; residual projections start at std / sqrt(2 * layers), as in the released code.
#include <cmath>

#include "model/families.h"

namespace octet {
namespace {

Value affine_norm(Builder& b, Value x, const std::string& name, const ModelConfig& config) {
  auto scope = b.scope(name);
  int64_t width = b.shape(x).cols();
  Value weight = b.param("weight", {width}, {.init = Init::kOnes});
  Value bias = config.bias ? b.param("bias", {width}, {.init = Init::kZeros}) : b.constant(0, {width});
  return b.layer_norm(x, weight, bias, config.norm_eps).y;
}

Value attention_block(Builder& b, Value x, Value segments, const ModelConfig& config, const BatchShape& shape) {
  auto scope = b.scope("attn");
  int64_t width = config.heads * config.head_size();
  LinearOptions in{.bias = config.bias, .std = config.init_std, .split = Split::kColumn};
  LinearOptions out{.bias = config.bias,
                    .std = config.init_std / std::sqrt(2.0 * static_cast<double>(config.layers)),
                    .split = Split::kRow};
  Value q = b.linear(x, "q", width, in);
  Value k = b.linear(x, "k", width, in);
  Value v = b.linear(x, "v", width, in);
  Value mixed = b.attention(q, k, v, segments, attention_options(config, shape)).out;
  return b.linear(mixed, "o", config.hidden, out);
}

Value mlp_block(Builder& b, Value x, const ModelConfig& config) {
  auto scope = b.scope("mlp");
  LinearOptions in{.bias = config.bias, .std = config.init_std, .split = Split::kColumn};
  LinearOptions out{.bias = config.bias,
                    .std = config.init_std / std::sqrt(2.0 * static_cast<double>(config.layers)),
                    .split = Split::kRow};
  Value inner = b.gelu(b.linear(x, "up", config.intermediate_size(), in), /*approximate=*/true);
  return b.linear(inner, "down", config.hidden, out);
}

}  // namespace

Value gpt2_logits(Builder& b, const ModelConfig& config, const BatchShape& shape) {
  double p = shape.training ? config.dropout : 0.0;
  Value ids = b.token_ids(shape.tokens), positions = b.positions(shape.tokens);
  Value segments = b.segments(shape.max_segments);
  ParamOptions table_options{.std = config.init_std, .split = Split::kVocab};
  Value table = b.param("embed.weight", {config.vocab_size, config.hidden}, table_options);
  Value places = b.param("pos_embed.weight", {config.max_positions, config.hidden}, {.std = config.init_std});
  Value x = b.dropout(b.add(b.embedding(ids, table), b.embedding(positions, places)), p);
  for (int64_t i = 0; i < config.layers; ++i) {
    auto layer = b.layer(static_cast<int>(i));
    Value mixed = attention_block(b, affine_norm(b, x, "norm1", config), segments, config, shape);
    x = b.add(x, b.dropout(mixed, p));
    x = b.add(x, b.dropout(mlp_block(b, affine_norm(b, x, "norm2", config), config), p));
  }
  x = affine_norm(b, x, "norm", config);
  return output_head(b, x, table, config);
}

}  // namespace octet
