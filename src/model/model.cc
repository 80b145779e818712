#include "model/model.h"

#include "base/error.h"
#include "model/blocks.h"

namespace octet {
namespace {

// Hidden states after the last norm, and the head on them.
Value decoder_logits(Builder& b, const ModelSpec& m, const BatchShape& shape) {
  double p = shape.training ? m.dropout : 0.0;
  Value positions = b.positions(shape.tokens), segments = b.segments(shape.max_segments), table;
  Value x = embed_tokens(b, positions, table, m, shape);
  for (int64_t i = 0; i < m.layers; ++i) {
    const auto& [attention, mixer] = m.layer(i);
    auto layer = b.layer(static_cast<int>(i));
    Value normed = norm(b, x, "norm1", m.norm);
    Value mixed = b.dropout(attention_block(b, normed, positions, segments, m, attention, shape), p);
    if (m.residual == Residual::kSequential) x = b.add(x, mixed);
    if (m.residual != Residual::kParallelShared) normed = norm(b, x, "norm2", m.norm);
    Value inner = b.dropout(mixer_block(b, normed, m, mixer), p);
    x = m.residual == Residual::kSequential ? b.add(x, inner) : b.add(x, b.add(mixed, inner));
  }
  return output_head(b, norm(b, x, "norm", m.norm), table, m);
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

// Constants a model computes with are normal in float32; values far from any model's come from damaged files.
void check_constant(const char* field, double value, double most) {
  constexpr double kLeast = 1e-30;
  check(value >= kLeast && value <= most, ErrorCode::kInvalidArgument, "model.{}: {} (want {} to {})", field, value,
        kLeast, most);
}

constexpr double kMaxScale = 1e6;  // of factors; a score times it is far below float32's maximum

// Angles of any other values are not finite, or turn the wrong way.
void validate_rope(const ModelConfig& c) {
  const RopeOptions& rope = c.rope;
  const int64_t turned = c.rotary_size();
  check(turned >= 0 && turned % 2 == 0 && turned <= c.head_size(), ErrorCode::kInvalidArgument,
        "model.head_dim: rotary positions turn {} of {} (want an even number of them)", turned, c.head_size());
  check_constant("rope.theta", rope.theta, 1e30);
  if (rope.scaling == "none") return;
  check_constant("rope.factor", rope.factor, kMaxScale);
  if (rope.scaling != "llama3") return;
  check_constant("rope.low_freq_factor", rope.low_freq_factor, kMaxScale);
  check_constant("rope.high_freq_factor", rope.high_freq_factor, kMaxScale);
  check(rope.original_max_positions > 0 && rope.original_max_positions <= kMaxPositions, ErrorCode::kInvalidArgument,
        "model.rope.original_max_positions: {} (want 1 to {})", rope.original_max_positions, kMaxPositions);
  check(rope.high_freq_factor >= rope.low_freq_factor, ErrorCode::kInvalidArgument,
        "model.rope.high_freq_factor: {} (want low_freq_factor, {}, or more)", rope.high_freq_factor,
        rope.low_freq_factor);
}

}  // namespace

void validate(const ModelConfig& c) {
  model_family(c.architecture);
  const auto within = [](const char* field, int64_t value, int64_t most) {
    check(value > 0, ErrorCode::kInvalidArgument, "model.{}: {} (want a positive number)", field, value);
    check(value <= most, ErrorCode::kInvalidArgument, "model.{}: {} (at most {})", field, value, most);
  };
  within("vocab_size", c.vocab_size, INT32_MAX);
  within("max_positions", c.max_positions, kMaxPositions);
  within("hidden", c.hidden, kMaxWidth);
  within("layers", c.layers, kMaxLayers);
  within("heads", c.heads, kMaxWidth);
  for (const auto& [field, value] : {std::pair("head_dim", c.head_dim), std::pair("intermediate", c.intermediate)})
    check(value >= 0, ErrorCode::kInvalidArgument, "model.{}: {} (want a positive number, or 0 for the usual)", field,
          value);
  check(c.head_dim > 0 || c.hidden % c.heads == 0, ErrorCode::kInvalidArgument,
        "model.heads: {} does not divide model.hidden {}; set model.head_dim or change one of them", c.heads, c.hidden);
  within("head_dim", c.head_size(), kMaxWidth / c.heads);
  within("intermediate", c.intermediate_size(), 4 * kMaxWidth);
  check(c.kv_heads >= 0 && c.heads % c.kv_head_count() == 0, ErrorCode::kInvalidArgument,
        "model.kv_heads: {} does not divide model.heads {}", c.kv_heads, c.heads);
  if (c.positions == Positions::kRotary) validate_rope(c);
  check_constant("alibi", c.alibi, 1000);
  check_constant("alibi_scale", c.alibi_scale, kMaxScale);
  if (c.attention_scale != 0) check_constant("attention_scale", c.attention_scale, kMaxScale);
  for (int64_t window : c.window)
    check(window >= 0, ErrorCode::kInvalidArgument, "model.window: {} (want >= 0; 0 = unlimited)", window);
  check(static_cast<int64_t>(c.window.size()) <= c.layers, ErrorCode::kInvalidArgument,
        "model.window: {} windows are listed for {} layers", c.window.size(), c.layers);
  check(c.dropout >= 0 && c.dropout < 1, ErrorCode::kInvalidArgument, "model.dropout: {} (want 0 <= p < 1)", c.dropout);
  check_constant("norm_eps", c.norm_eps, 1);
  check(c.init_std >= 0 && c.init_std <= kMaxScale, ErrorCode::kInvalidArgument, "model.init_std: {} (want 0 to {})",
        c.init_std, kMaxScale);
}

std::vector<int64_t> ModelConfig::layer_windows() const {
  std::vector<int64_t> windows(static_cast<size_t>(layers));
  for (size_t i = 0; i < windows.size() && !window.empty(); ++i) windows[i] = window[i % window.size()];
  return windows;
}

ModelSpec::ModelSpec(const ModelConfig& c) : hidden(c.hidden), layers(c.layers), max_positions(c.max_positions) {
  validate(c);
  embedding = {c.vocab_size, c.positions == Positions::kLearned, c.position_offset, c.embed_norm, c.scale_embeddings};
  residual = c.residual, dropout = c.dropout, init_std = c.init_std;
  norm = {c.norm, c.norm_eps, c.bias.norm, c.norm_plus_one};
  head = {c.tie_embeddings, c.bias.head};
  LayerSpec layer{.mixer = {c.intermediate_size(), c.activation, c.gated, c.bias.mlp}};
  AttentionSpec& a = layer.attention;
  a.heads = c.heads, a.kv_heads = c.kv_head_count(), a.head_dim = c.head_size(), a.scale = c.attention_scale;
  if (c.positions == Positions::kRotary && c.rotary_size() > 0) a.rope = c.rope;
  if (c.positions == Positions::kAlibi) a.alibi = c.alibi, a.alibi_scale = c.alibi_scale;
  a.qk_norm = c.qk_norm, a.qkv_bias = c.bias.qkv, a.out_bias = c.bias.out;
  pattern.assign(std::max<size_t>(c.window.size(), 1), layer);
  for (size_t i = 0; i < c.window.size(); ++i) pattern[i].attention.window = c.window[i];
}

Value build_logits(Builder& b, const ModelSpec& m, const BatchShape& shape) {
  check_pattern(m);
  check(shape.tokens > 0 && shape.max_segments > 0 && shape.max_length > 0, ErrorCode::kInvalidArgument,
        "batch: tokens {}, sequences {}, longest {} (all must be positive)", shape.tokens, shape.max_segments,
        shape.max_length);
  check(m.length_limit() == 0 || shape.max_length <= m.length_limit(), ErrorCode::kInvalidArgument,
        "sequence length {} exceeds model.max_positions {}: shorten data.sequence_length or raise model.max_positions",
        shape.max_length, m.max_positions);
  return decoder_logits(b, m, shape);
}

void build_loss(Builder& b, const ModelSpec& model, const BatchShape& shape) {
  Value logits = build_logits(b, model, shape);
  Builder::Loss loss = b.cross_entropy(logits, b.targets(shape.tokens));
  b.output("loss", b.reduce(loss.per_token, "sum", "all"));
  if (!shape.training) b.output("loss_per_token", loss.per_token);
}

}  // namespace octet
