// GPT-NeoX, Pythia.
#include "model/families/shared.h"

namespace octet {

Family gpt_neox_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    hidden_fields(f, c, 2048);
    f.optional({"layer_norm_eps"}, c.norm_eps);
    f.dropout({"hidden_dropout", "attention_dropout"}, c.dropout);
    f.activation({"hidden_act"}, c.activation);
    bool parallel = c.residual == Residual::kParallel, bias = c.bias.qkv;
    f.optional({"use_parallel_residual"}, parallel);
    f.optional({"attention_bias"}, bias);
    c.residual = parallel ? Residual::kParallel : Residual::kSequential;
    c.bias.qkv = c.bias.out = bias;
    f.rope(c, "rotary_emb_base", "rotary_pct", 0.25);
  };
  TensorNames t;
  t.prefix = "gpt_neox.", t.layer = "layers.", t.embed = "embed_in", t.norm = "final_layer_norm", t.head = "embed_out",
  t.norm1 = "input_layernorm", t.norm2 = "post_attention_layernorm", t.qkv = "attention.query_key_value",
  t.o = "attention.dense", t.up = "mlp.dense_h_to_4h", t.down = "mlp.dense_4h_to_h", t.by_kv_head = true;
  const ModelConfig facts = gpt_facts(Positions::kRotary, {}, Residual::kParallel, Activation::kGelu, false);
  return {"gpt_neox", "GPTNeoXForCausalLM", facts, fields, t};
}

}  // namespace octet
