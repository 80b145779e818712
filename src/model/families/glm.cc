// GLM-4, and GLM-4-0414 (glm4): the same with a norm behind each branch.
#include "model/families/shared.h"

namespace octet {

namespace {

Family family(const char* name, const char* class_name) {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    llama_fields(f, c,
                 {.max_positions = 131072, .kv_heads = 2, .head_dim = 128, .norm_eps = 1.5625e-7, .partial = 0.5});
    f.optional({"attention_bias"}, c.bias.qkv);
  };
  ModelConfig facts = llama_facts({.out = false, .mlp = false, .norm = false});
  facts.rope.interleaved = true;
  TensorNames tensors = llama_tensors();
  tensors.gate_up = "mlp.gate_up_proj";
  return {name, class_name, facts, fields, tensors};
}

}  // namespace

Family glm_family() { return family("glm", "GlmForCausalLM"); }

Family glm4_family() {
  Family glm4 = family("glm4", "Glm4ForCausalLM");
  glm4.facts.residual = Residual::kSandwich;
  glm4.tensors.post_norm1 = "post_self_attn_layernorm", glm4.tensors.post_norm2 = "post_mlp_layernorm";
  return glm4;
}

}  // namespace octet
