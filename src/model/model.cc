#include "model/model.h"

#include <algorithm>

#include "base/error.h"

namespace octet {
namespace {

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
  if (rope.scaling == "linear") return;
  check_constant("rope.low_freq_factor", rope.low_freq_factor, kMaxScale);
  check_constant("rope.high_freq_factor", rope.high_freq_factor, kMaxScale);
  check(rope.original_max_positions > 0 && rope.original_max_positions <= kMaxPositions, ErrorCode::kInvalidArgument,
        "model.rope.original_max_positions: {} (want 1 to {})", rope.original_max_positions, kMaxPositions);
  check(rope.high_freq_factor >= rope.low_freq_factor, ErrorCode::kInvalidArgument,
        "model.rope.high_freq_factor: {} (want low_freq_factor, {}, or more)", rope.high_freq_factor,
        rope.low_freq_factor);
  if (rope.scaling != "yarn") return;
  check_constant("rope.attention_factor", rope.attention_factor, kMaxScale);
  check(rope.theta > 1, ErrorCode::kInvalidArgument, "model.rope.theta: {} (yarn wants more than 1)", rope.theta);
}

void validate_experts(const ModelConfig& c) {
  const ExpertsSpec& e = c.experts;
  check(e.count >= 0 && e.count <= kMaxExperts, ErrorCode::kInvalidArgument, "model.experts: {} (want 0 to {})",
        e.count, kMaxExperts);
  if (e.count == 0) return;
  check(e.per_token > 0 && e.per_token <= e.count, ErrorCode::kInvalidArgument,
        "model.experts_per_token: {} of {} experts (want 1 to {})", e.per_token, e.count, e.count);
  for (const auto& [field, value] :
       {std::pair("expert_intermediate", e.intermediate), std::pair("shared_intermediate", e.shared_intermediate)})
    check(value >= 0 && value <= 4 * kMaxWidth, ErrorCode::kInvalidArgument, "model.{}: {} (want 0 to {})", field,
          value, 4 * kMaxWidth);
  for (const auto& [field, value] : {std::pair("balance_loss", e.balance_loss), std::pair("z_loss", e.z_loss)})
    check(value >= 0 && value <= kMaxScale, ErrorCode::kInvalidArgument, "model.{}: {} (want 0 to {})", field, value,
          kMaxScale);
  for (int64_t layer : c.dense_layers)
    check(layer >= 0 && layer < c.layers, ErrorCode::kInvalidArgument, "model: dense layer {} of {}", layer, c.layers);
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
  validate_experts(c);
  within("token_types", c.token_types + 1, kMaxPositions);
  within("labels", c.labels + 1, kMaxWidth);
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
  embedding = {c.vocab_size, c.positions == Positions::kLearned, c.position_offset, c.embed_norm, c.scale_embeddings,
               c.token_types};
  residual = c.residual, dropout = c.dropout, dropout_bits = c.dropout_bits, init_std = c.init_std;
  norm = {c.norm, c.norm_eps, c.bias.norm, c.norm_plus_one};
  head = {c.tie_embeddings, c.bias.head, c.head, c.pooler, c.labels};
  LayerSpec layer{.mixer = {c.intermediate_size(), c.activation, c.gated, c.bias.mlp}};
  AttentionSpec& a = layer.attention;
  a.heads = c.heads, a.kv_heads = c.kv_head_count(), a.head_dim = c.head_size(), a.scale = c.attention_scale;
  a.causal = c.causal;
  if (c.positions == Positions::kRotary && c.rotary_size() > 0) a.rope = c.rope;
  if (c.positions == Positions::kAlibi) a.alibi = c.alibi, a.alibi_scale = c.alibi_scale;
  a.qk_norm = c.qk_norm, a.qk_norm_whole = c.qk_norm_whole, a.qkv_bias = c.bias.qkv, a.out_bias = c.bias.out;
  layer.mixer.experts = c.experts;
  if (c.experts.intermediate == 0) layer.mixer.experts.intermediate = c.intermediate_size();
  const size_t windows = std::max<size_t>(c.window.size(), 1);
  pattern.assign(c.dense_layers.empty() ? windows : static_cast<size_t>(c.layers), layer);
  for (size_t i = 0; i < pattern.size() && !c.window.empty(); ++i) pattern[i].attention.window = c.window[i % windows];
  for (int64_t dense : c.dense_layers) pattern[static_cast<size_t>(dense)].mixer.experts.count = 0;
}

}  // namespace octet
