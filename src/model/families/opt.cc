// OPT.
#include "model/families/shared.h"

namespace octet {

Family opt_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    if (f.reading()) c.dropout = 0.1;
    f.required({"vocab_size"}, c.vocab_size);
    f.required({"hidden_size"}, c.hidden);
    f.required({"num_hidden_layers"}, c.layers);
    f.required({"num_attention_heads"}, c.heads);
    f.required({"ffn_dim"}, c.intermediate);
    f.required({"max_position_embeddings"}, c.max_positions);
    f.optional({"init_std"}, c.init_std);
    f.dropout({"dropout", "attention_dropout"}, c.dropout);
    f.optional({"tie_word_embeddings"}, c.tie_embeddings);
    f.activation({"activation_function"}, c.activation);
    bool bias = c.bias.qkv;
    f.optional({"enable_bias"}, bias);
    c.bias.qkv = c.bias.out = c.bias.mlp = bias;
    f.only("do_layer_norm_before", true);
    f.only("_remove_final_layer_norm", false);
    f.only("layer_norm_elementwise_affine", true);
    f.only("word_embed_proj_dim", c.hidden);
  };
  ModelConfig facts;
  facts.activation = Activation::kRelu;
  facts.position_offset = 2;
  TensorNames t;
  t.prefix = "model.decoder.", t.layer = "layers.", t.embed = "embed_tokens", t.norm = "final_layer_norm",
  t.norm1 = "self_attn_layer_norm", t.norm2 = "final_layer_norm", t.q = "self_attn.q_proj", t.k = "self_attn.k_proj",
  t.v = "self_attn.v_proj", t.o = "self_attn.out_proj", t.up = "fc1", t.down = "fc2", t.positions = "embed_positions";
  return {"opt", "OPTForCausalLM", facts, fields, t};
}

}  // namespace octet
