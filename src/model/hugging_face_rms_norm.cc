// config.json of the families with RMS norms, which share Llama's names. Read in both directions, see config_fields.h.
#include "model/config_fields.h"

namespace octet {
namespace {

void llama_fields(ConfigFields& f, ModelConfig& c) {
  if (!f.reading()) c.kv_heads = c.kv_head_count(), c.head_dim = c.head_size();  // spelled out

  f.required({"vocab_size"}, c.vocab_size);
  f.required({"hidden_size"}, c.hidden);
  f.required({"num_hidden_layers"}, c.layers);
  f.required({"num_attention_heads"}, c.heads);
  f.nullable({"num_key_value_heads"}, c.kv_heads);
  f.nullable({"head_dim"}, c.head_dim);
  f.required({"intermediate_size"}, c.intermediate);
  if (f.reading()) c.max_positions = 2048, c.norm_eps = 1e-6;  // where the file says nothing
  f.optional({"max_position_embeddings"}, c.max_positions);
  f.optional({"rms_norm_eps"}, c.norm_eps);
  f.optional({"initializer_range"}, c.init_std);
  f.optional({"tie_word_embeddings"}, c.tie_embeddings);
}

void llama(ConfigFields& f, ModelConfig& c) {
  llama_fields(f, c);
  f.rope(c);
  f.activation({"hidden_act"}, c.activation);
  f.optional({"attention_bias"}, c.bias.qkv);
  f.optional({"mlp_bias"}, c.bias.mlp);
  c.bias.out = c.bias.qkv;
}

void mistral(ConfigFields& f, ModelConfig& c) {
  llama_fields(f, c);
  f.rope(c);
  f.activation({"hidden_act"}, c.activation);
  if (f.reading()) c.window = 0;
  f.nullable({"sliding_window"}, c.window);
}

void qwen2(ConfigFields& f, ModelConfig& c) {
  llama_fields(f, c);
  f.rope(c);
  f.activation({"hidden_act"}, c.activation);
  f.only("use_sliding_window", false);
}

void qwen3(ConfigFields& f, ModelConfig& c) {
  if (f.reading()) c.head_dim = 128;
  llama_fields(f, c);
  f.rope(c);
  f.activation({"hidden_act"}, c.activation);
  f.optional({"attention_bias"}, c.bias.qkv);
  c.bias.out = c.bias.qkv;
  f.only("use_sliding_window", false);
}

void gemma(ConfigFields& f, ModelConfig& c) {
  if (f.reading()) c.head_dim = 256;
  llama_fields(f, c);
  f.rope(c);
  if (f.reading()) {  // hidden_activation corrects the "gelu" of the first files
    f.activation({"hidden_activation", "hidden_act"}, c.activation);
  } else {
    f.activation({"hidden_act"}, c.activation, "gelu_pytorch_tanh");
  }
  f.optional({"attention_bias"}, c.bias.qkv);
  c.bias.out = c.bias.qkv;
  f.only("use_bidirectional_attention", false);
}

void glm(ConfigFields& f, ModelConfig& c) {
  if (f.reading()) c.head_dim = 128, c.bias.qkv = false;
  llama_fields(f, c);
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
