// GLM-4.
#include "model/families/shared.h"

namespace octet {

Family glm_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    llama_fields(f, c,
                 {.max_positions = 131072, .kv_heads = 2, .head_dim = 128, .norm_eps = 1.5625e-7, .partial = 0.5});
    f.optional({"attention_bias"}, c.bias.qkv);
  };
  ModelConfig facts = llama_facts({.out = false, .mlp = false, .norm = false});
  facts.rope.interleaved = true;
  TensorNames tensors = llama_tensors();
  tensors.gate_up = "mlp.gate_up_proj";
  return {"glm", "GlmForCausalLM", facts, fields, tensors};
}

}  // namespace octet
