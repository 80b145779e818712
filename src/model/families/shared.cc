#include "model/families/shared.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

namespace octet {

ModelConfig gpt_facts(Positions positions, Biases bias, Residual residual, Activation activation, bool tied) {
  ModelConfig c;
  c.positions = positions, c.bias = bias, c.residual = residual, c.activation = activation, c.tie_embeddings = tied;
  return c;
}

ModelConfig llama_facts(Biases bias) {
  ModelConfig c;
  c.norm = NormKind::kRms, c.positions = Positions::kRotary;
  c.bias = bias, c.tie_embeddings = false, c.activation = Activation::kSilu, c.gated = true;
  return c;
}

void hidden_fields(ConfigFields& f, ModelConfig& c, int64_t max_positions) {
  if (f.reading()) c.max_positions = max_positions;
  f.required({"vocab_size"}, c.vocab_size);
  f.required({"hidden_size"}, c.hidden);
  f.required({"num_hidden_layers"}, c.layers);
  f.required({"num_attention_heads"}, c.heads);
  f.required({"intermediate_size"}, c.intermediate);
  f.optional({"max_position_embeddings"}, c.max_positions);
  f.optional({"initializer_range"}, c.init_std);
  f.optional({"tie_word_embeddings"}, c.tie_embeddings);
}

void layer_norm_fields(ConfigFields& f, ModelConfig& c) {
  f.optional({"layer_norm_epsilon"}, c.norm_eps);
  f.optional({"initializer_range"}, c.init_std);
  f.optional({"tie_word_embeddings"}, c.tie_embeddings);
}

void gpt_fields(ConfigFields& f, ModelConfig& c, double dropout) {
  if (f.reading()) c.dropout = dropout;  // where the file says nothing
  f.required({"vocab_size"}, c.vocab_size);
  f.required({"n_positions"}, c.max_positions);
  f.required({"n_embd"}, c.hidden);
  f.required({"n_layer"}, c.layers);
  f.required({"n_head"}, c.heads);
  f.nullable({"n_inner"}, c.intermediate);
  layer_norm_fields(f, c);
  f.dropout({"resid_pdrop", "attn_pdrop", "embd_pdrop"}, c.dropout);
  f.activation({"activation_function"}, c.activation);
}

void llama_fields(ConfigFields& f, ModelConfig& c, const LlamaDefaults& defaults) {
  if (f.reading()) c.kv_heads = defaults.kv_heads, c.head_dim = defaults.head_dim, c.norm_eps = defaults.norm_eps;
  hidden_fields(f, c, defaults.max_positions);
  f.nullable({"num_key_value_heads"}, c.kv_heads);
  f.nullable({"head_dim"}, c.head_dim);
  f.optional({"rms_norm_eps"}, c.norm_eps);
  f.rope(c, "rope_theta", defaults.partial < 1 ? "partial_rotary_factor" : nullptr, defaults.partial);
  f.activation({"hidden_act"}, c.activation, defaults.tanh_name);
}

void one_window_field(ConfigFields& f, ModelConfig& c, int64_t window) {
  std::vector<int64_t> windows = f.reading() ? std::vector<int64_t>{window} : c.layer_windows();
  if (std::adjacent_find(windows.begin(), windows.end(), std::not_equal_to()) != windows.end())
    f.refuse("model.window", fmt::format("{}", fmt::join(c.window, ",")), "one; qwen2 and qwen3 alternate");
  f.nullable({"sliding_window"}, windows[0]);
  if (f.reading()) c.window = windows;
}

void layer_window_fields(ConfigFields& f, ModelConfig& c, bool (*has_window)(int64_t, int64_t)) {
  const auto type_name = [](bool windowed) { return windowed ? "sliding_attention" : "full_attention"; };
  int64_t window = f.reading() ? 4096 : 0, full_layers = 28;
  std::vector<std::string> types;
  for (int64_t each : f.reading() ? std::vector<int64_t>() : c.layer_windows()) {
    if (each > 0 && window == 0) window = each, full_layers = static_cast<int64_t>(types.size());
    if (each > 0 && each != window)
      f.refuse("model.window", std::to_string(each), fmt::format("0 and {}: one size of windows", window));
    types.emplace_back(type_name(each > 0));
  }
  bool used = !f.reading() && window > 0;
  f.optional({"use_sliding_window"}, used);
  if (!f.reading() && !used) return;
  if (used) f.nullable({"sliding_window"}, window);  // 0 in files of Qwen2-MoE without windows
  f.optional({"max_window_layers"}, full_layers);
  f.optional({"layer_types"}, types);
  if (!f.reading() || c.layers < 1 || c.layers > kMaxLayers) return;  // which validate() refuses
  used &= window != 0;
  if (!types.empty() && static_cast<int64_t>(types.size()) != c.layers)
    f.refuse("layer_types", fmt::format("a list of {}", types.size()), fmt::format("{} layers", c.layers));
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string type =
        types.empty() ? type_name(used && has_window(i, full_layers)) : types[static_cast<size_t>(i)];
    if (type != type_name(false) && (!used || type != type_name(true)))
      f.refuse("layer_types", '"' + type + '"', "full_attention; sliding_attention with use_sliding_window");
    if (used) c.window.push_back(type == type_name(true) ? window : 0);
  }
}

void used_window_field(ConfigFields& f, ModelConfig& c, int64_t window) {
  bool used = !f.reading() && std::ranges::any_of(c.window, [](int64_t each) { return each > 0; });
  f.optional({"use_sliding_window"}, used);
  if (used) one_window_field(f, c, window);
}

void experts_fields(ConfigFields& f, ModelConfig& c, ConfigFields::Names count) {
  f.optional(count, c.experts.count);
  f.optional({"num_experts_per_tok"}, c.experts.per_token);
  if (f.reading() && c.experts.count < 1) f.refuse(*count.begin(), std::to_string(c.experts.count), "1 or more");
}

void sparse_layer_fields(ConfigFields& f, ModelConfig& c) {
  ExpertsSpec& e = c.experts;
  if (!f.reading() && e.intermediate == 0) e.intermediate = c.intermediate_size();
  f.optional({"moe_intermediate_size"}, e.intermediate);
  f.optional({"norm_topk_prob"}, e.renormalize);
  int64_t step = 1;
  f.optional({"decoder_sparse_step"}, step);
  if (step < 1) f.refuse("decoder_sparse_step", std::to_string(step), "1 or more");
  f.optional({"mlp_only_layers"}, c.dense_layers);
  if (step == 1 || c.layers > kMaxLayers) return;
  for (int64_t i = 0; i < c.layers; ++i)
    if ((i + 1) % step != 0 && std::ranges::find(c.dense_layers, i) == c.dense_layers.end())
      c.dense_layers.push_back(i);
}

TensorNames experts_tensors() {
  TensorNames t = llama_tensors();
  t.router = "mlp.gate", t.experts = "mlp.experts.";
  return t;
}

TensorNames gpt2_tensors() {
  TensorNames t;
  t.prefix = "transformer.", t.layer = "h.", t.embed = "wte", t.norm = "ln_f", t.norm1 = "ln_1", t.norm2 = "ln_2",
  t.qkv = "attn.c_attn", t.o = "attn.c_proj", t.up = "mlp.c_fc", t.down = "mlp.c_proj", t.positions = "wpe";
  return t;
}

TensorNames bloom_tensors() {
  TensorNames t;
  t.prefix = "transformer.", t.layer = "h.", t.embed = "word_embeddings", t.norm = "ln_f", t.norm1 = "input_layernorm",
  t.norm2 = "post_attention_layernorm", t.qkv = "self_attention.query_key_value", t.o = "self_attention.dense",
  t.up = "mlp.dense_h_to_4h", t.down = "mlp.dense_4h_to_h", t.embed_norm = "word_embeddings_layernorm",
  t.by_kv_head = true;
  return t;
}

TensorNames llama_tensors() {
  TensorNames t;
  t.prefix = "model.", t.layer = "layers.", t.embed = "embed_tokens", t.norm = "norm", t.norm1 = "input_layernorm",
  t.norm2 = "post_attention_layernorm", t.q = "self_attn.q_proj", t.k = "self_attn.k_proj", t.v = "self_attn.v_proj",
  t.o = "self_attn.o_proj", t.up = "mlp.up_proj", t.down = "mlp.down_proj", t.gate = "mlp.gate_proj";
  return t;
}

}  // namespace octet
