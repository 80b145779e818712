// Phi 1 and 2.
#include "model/families/shared.h"

namespace octet {

Family phi_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    hidden_fields(f, c, 2048);
    f.nullable({"num_key_value_heads"}, c.kv_heads);
    f.optional({"layer_norm_eps"}, c.norm_eps);
    f.dropout({"resid_pdrop", "embd_pdrop", "attention_dropout"}, c.dropout);
    f.activation({"hidden_act"}, c.activation);
    f.only("qk_layernorm", false);
    f.rope(c, "rope_theta", "partial_rotary_factor", 0.5);
  };
  TensorNames t;
  t.prefix = "model.", t.layer = "layers.", t.embed = "embed_tokens", t.norm = "final_layernorm",
  t.norm1 = "input_layernorm", t.q = "self_attn.q_proj", t.k = "self_attn.k_proj", t.v = "self_attn.v_proj",
  t.o = "self_attn.dense", t.up = "mlp.fc1", t.down = "mlp.fc2";
  const ModelConfig facts =
      gpt_facts(Positions::kRotary, {.head = true}, Residual::kParallelShared, Activation::kGeluTanh, false);
  return {"phi", "PhiForCausalLM", facts, fields, t};
}

}  // namespace octet
