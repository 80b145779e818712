// config.json of the families with RMS norms, which share Llama's names. Read in both directions, see config_fields.h.
#include "model/config_fields.h"

namespace octet {
namespace {

// What transformers takes where the file says nothing; 0 = heads, hidden / heads.
struct Defaults {
  int64_t max_positions = 2048, kv_heads = 0, head_dim = 0;
  double norm_eps = 1e-6;
};

void llama_fields(ConfigFields& f, ModelConfig& c, const Defaults& defaults) {
  if (f.reading()) {
    c.max_positions = defaults.max_positions, c.kv_heads = defaults.kv_heads, c.head_dim = defaults.head_dim;
    c.norm_eps = defaults.norm_eps;
  }
  f.required({"vocab_size"}, c.vocab_size);
  f.required({"hidden_size"}, c.hidden);
  f.required({"num_hidden_layers"}, c.layers);
  f.required({"num_attention_heads"}, c.heads);
  f.nullable({"num_key_value_heads"}, c.kv_heads);
  f.nullable({"head_dim"}, c.head_dim);
  f.required({"intermediate_size"}, c.intermediate);
  f.optional({"max_position_embeddings"}, c.max_positions);
  f.optional({"rms_norm_eps"}, c.norm_eps);
  f.optional({"initializer_range"}, c.init_std);
  f.optional({"tie_word_embeddings"}, c.tie_embeddings);
}

void llama(ConfigFields& f, ModelConfig& c) {
  llama_fields(f, c, {});
  f.rope(c);
  f.activation({"hidden_act"}, c.activation);
  f.optional({"attention_bias"}, c.bias.qkv);
  f.optional({"mlp_bias"}, c.bias.mlp);
  c.bias.out = c.bias.qkv;
}

void mistral(ConfigFields& f, ModelConfig& c) {
  llama_fields(f, c, {.max_positions = 131072, .kv_heads = 8});
  f.rope(c);
  f.activation({"hidden_act"}, c.activation);
  if (f.reading()) c.window = 4096;
  f.nullable({"sliding_window"}, c.window);
}

void qwen2(ConfigFields& f, ModelConfig& c) {
  llama_fields(f, c, {.max_positions = 32768, .kv_heads = 32});
  f.rope(c);
  f.activation({"hidden_act"}, c.activation);
  f.only("use_sliding_window", false);
}

void qwen3(ConfigFields& f, ModelConfig& c) {
  llama_fields(f, c, {.max_positions = 32768, .kv_heads = 32, .head_dim = 128});
  f.rope(c);
  f.activation({"hidden_act"}, c.activation);
  f.optional({"attention_bias"}, c.bias.qkv);
  c.bias.out = c.bias.qkv;
  f.only("use_sliding_window", false);
}

void gemma(ConfigFields& f, ModelConfig& c) {
  llama_fields(f, c, {.max_positions = 8192, .kv_heads = 16, .head_dim = 256});
  f.rope(c);
  if (!f.reading() && c.activation == Activation::kGelu)
    f.refuse("hidden_act", "exact GELU", "gelu_pytorch_tanh: the tanh form is what a Gemma's \"gelu\" means");
  f.activation({"hidden_act"}, c.activation, "gelu_pytorch_tanh");
  if (c.activation == Activation::kGelu) c.activation = Activation::kGeluTanh;  // "gelu" of the first files
  f.optional({"attention_bias"}, c.bias.qkv);
  c.bias.out = c.bias.qkv;
  f.only("use_bidirectional_attention", false);
}

void glm(ConfigFields& f, ModelConfig& c) {
  llama_fields(f, c, {.max_positions = 131072, .kv_heads = 2, .head_dim = 128, .norm_eps = 1.5625e-7});
  f.rope(c, "rope_theta", "partial_rotary_factor", 0.5);
  f.activation({"hidden_act"}, c.activation);
  f.optional({"attention_bias"}, c.bias.qkv);
}

}  // namespace

std::span<const HuggingFaceFamily> rms_norm_families() {
  static constexpr HuggingFaceFamily kRows[] = {
      {"llama", "LlamaForCausalLM", llama}, {"mistral", "MistralForCausalLM", mistral},
      {"qwen2", "Qwen2ForCausalLM", qwen2}, {"qwen3", "Qwen3ForCausalLM", qwen3},
      {"gemma", "GemmaForCausalLM", gemma}, {"glm", "GlmForCausalLM", glm},
  };
  return kRows;
}

}  // namespace octet
