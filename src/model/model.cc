#include "model/model.h"

#include <cmath>

#include "base/error.h"
#include "model/families.h"

namespace octet {
namespace {

constexpr int64_t kMaxLayers = 10'000;  // ten times any known model: a damaged config must not be compiled for hours

// Hidden states after the last norm, and the head on them.
Value decoder_logits(Builder& b, const ModelConfig& c, const BatchShape& shape) {
  double p = shape.training ? c.dropout : 0.0;
  Value positions = b.positions(shape.tokens), segments = b.segments(shape.max_segments), table;
  Value x = embed_tokens(b, positions, table, c, shape);
  for (int64_t i = 0; i < c.layers; ++i) {
    auto layer = b.layer(static_cast<int>(i));
    Value normed = norm(b, x, "norm1", c);
    Value mixed = b.dropout(attention_block(b, normed, positions, segments, c, shape), p);
    if (c.residual == Residual::kSequential) x = b.add(x, mixed);
    if (c.residual != Residual::kParallelShared) normed = norm(b, x, "norm2", c);
    Value inner = b.dropout(mlp_block(b, normed, c), p);
    x = c.residual == Residual::kSequential ? b.add(x, inner) : b.add(x, b.add(mixed, inner));
  }
  return output_head(b, norm(b, x, "norm", c), table, c);
}

// Angles of any other values are not finite, or turn the wrong way.
void validate_rope(const RopeOptions& rope) {
  auto positive = [](const char* field, double value) {
    check(value > 0 && std::isfinite(value), ErrorCode::kInvalidArgument, "model.rope.{}: {} (want > 0)", field, value);
  };
  positive("theta", rope.theta);
  if (rope.scaling == "none") return;
  positive("factor", rope.factor);
  if (rope.scaling != "llama3") return;
  positive("low_freq_factor", rope.low_freq_factor);
  positive("original_max_positions", static_cast<double>(rope.original_max_positions));
  check(rope.high_freq_factor >= rope.low_freq_factor && std::isfinite(rope.high_freq_factor),
        ErrorCode::kInvalidArgument, "model.rope.high_freq_factor: {} (want low_freq_factor, {}, or more)",
        rope.high_freq_factor, rope.low_freq_factor);
}

}  // namespace

void validate(const ModelConfig& c) {
  model_family(c.architecture);
  auto positive = [](const char* field, int64_t value) {
    check(value > 0, ErrorCode::kInvalidArgument, "model.{}: {} (want a positive number)", field, value);
  };
  positive("vocab_size", c.vocab_size);
  positive("max_positions", c.max_positions);
  positive("hidden", c.hidden);
  positive("layers", c.layers);
  positive("heads", c.heads);
  for (const auto& [field, value] : {std::pair("head_dim", c.head_dim), std::pair("intermediate", c.intermediate)})
    check(value >= 0, ErrorCode::kInvalidArgument, "model.{}: {} (want a positive number, or 0 for the usual)", field,
          value);
  check(c.layers <= kMaxLayers, ErrorCode::kInvalidArgument, "model.layers: {} (at most {})", c.layers, kMaxLayers);
  check(c.vocab_size <= INT32_MAX, ErrorCode::kInvalidArgument, "model.vocab_size: {} exceeds int32", c.vocab_size);
  check(c.head_dim > 0 || c.hidden % c.heads == 0, ErrorCode::kInvalidArgument,
        "model.heads: {} does not divide model.hidden {}; set model.head_dim or change one of them", c.heads, c.hidden);
  check(c.kv_heads >= 0 && c.heads % c.kv_head_count() == 0, ErrorCode::kInvalidArgument,
        "model.kv_heads: {} does not divide model.heads {}", c.kv_heads, c.heads);
  int64_t rotary = c.rope.rotary_dim > 0 ? c.rope.rotary_dim : c.head_size();
  check(c.positions != Positions::kRotary || (rotary % 2 == 0 && rotary <= c.head_size()), ErrorCode::kInvalidArgument,
        "model.head_dim: rotary positions turn {} of {} (want an even number of them)", rotary, c.head_size());
  if (c.positions == Positions::kRotary) validate_rope(c.rope);
  check(c.positions != Positions::kAlibi || c.alibi > 0, ErrorCode::kInvalidArgument, "model.alibi: {} (want > 0)",
        c.alibi);
  check(c.window >= 0, ErrorCode::kInvalidArgument, "model.window: {} (want >= 0; 0 = unlimited)", c.window);
  check(c.dropout >= 0 && c.dropout < 1, ErrorCode::kInvalidArgument, "model.dropout: {} (want 0 <= p < 1)", c.dropout);
  check(c.norm_eps > 0, ErrorCode::kInvalidArgument, "model.norm_eps: {} (want > 0)", c.norm_eps);
}

Value build_logits(Builder& b, const ModelConfig& config, const BatchShape& shape) {
  validate(config);
  check(shape.tokens > 0 && shape.max_segments > 0 && shape.max_length > 0, ErrorCode::kInvalidArgument,
        "batch: tokens {}, sequences {}, longest {} (all must be positive)", shape.tokens, shape.max_segments,
        shape.max_length);
  check(config.length_limit() == 0 || shape.max_length <= config.length_limit(), ErrorCode::kInvalidArgument,
        "sequence length {} exceeds model.max_positions {}: shorten data.sequence_length or raise model.max_positions",
        shape.max_length, config.max_positions);
  return decoder_logits(b, config, shape);
}

void build_loss(Builder& b, const ModelConfig& config, const BatchShape& shape) {
  Value logits = build_logits(b, config, shape);
  Builder::Loss loss = b.cross_entropy(logits, b.targets(shape.tokens));
  b.output("loss", b.reduce(loss.per_token, "sum", "all"));
  if (!shape.training) b.output("loss_per_token", loss.per_token);
}

}  // namespace octet
