// What families of one kind share: facts, config.json fields, tensor names.
#pragma once

#include "model/families.h"

namespace octet {

// Layer norms and an ungated MLP of 4 * hidden; biases and positions differ.
ModelConfig gpt_facts(Positions positions, Biases bias, Residual residual, Activation activation, bool tied);
// RMS norms, rotary positions and a gated MLP.
ModelConfig llama_facts(Biases bias = Biases::all(false));

// hidden_size and what most families name as they name it; max_positions where the file says nothing.
void hidden_fields(ConfigFields& f, ModelConfig& c, int64_t max_positions);
// What older families with layer norms name alike.
void layer_norm_fields(ConfigFields& f, ModelConfig& c);
// GPT-2's names, kept by GPT-J and GPT-BigCode.
void gpt_fields(ConfigFields& f, ModelConfig& c, double dropout);
// Llama's names, and what transformers takes where the file says nothing; 0 = heads, hidden / heads.
struct LlamaDefaults {
  int64_t max_positions = 2048, kv_heads = 0, head_dim = 0;
  double norm_eps = 1e-6, partial = 1;  // of a head that turns; below 1: the family names it
  const char* tanh_name = "gelu_new";   // of gelu's tanh form
};
void llama_fields(ConfigFields& f, ModelConfig& c, const LlamaDefaults& defaults);
// The experts of a mixture and those of a token; `count`: the names of their number. router_aux_loss_coef and
// output_router_logits are of training, where settings say what is done.
void experts_fields(ConfigFields& f, ModelConfig& c, ConfigFields::Names count);
// Widths of an expert, and which layers are dense, as Qwen's mixtures write them.
void sparse_layer_fields(ConfigFields& f, ModelConfig& c);
// sliding_window, of all layers; `window` where the file says nothing.
void one_window_field(ConfigFields& f, ModelConfig& c, int64_t window);
// The same where use_sliding_window is true.
void used_window_field(ConfigFields& f, ModelConfig& c, int64_t window);
// Windows of some layers, as Qwen writes them. Where layer_types does not say which: has_window(layer,
// max_window_layers), of Qwen2 and Qwen3 the layers from max_window_layers on.
void layer_window_fields(
    ConfigFields& f, ModelConfig& c,
    bool (*has_window)(int64_t, int64_t) = [](int64_t layer, int64_t full) { return layer >= full; });

TensorNames gpt2_tensors(), bloom_tensors(), llama_tensors(), experts_tensors();

}  // namespace octet
