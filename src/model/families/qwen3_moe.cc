// Qwen3-MoE: Qwen3's attention, a mixture in every layer that is not dense.
#include "model/families/shared.h"

namespace octet {

Family qwen3_moe_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    llama_fields(f, c, {.max_positions = 32768, .kv_heads = 4});
    f.optional({"attention_bias"}, c.bias.qkv);
    c.bias.out = c.bias.qkv;
    used_window_field(f, c, 4096);
    experts_fields(f, c, {"num_experts", "num_local_experts"});
    sparse_layer_fields(f, c);
  };
  ModelConfig facts = llama_facts();
  facts.qk_norm = true, facts.experts = {.count = 128, .per_token = 8, .intermediate = 768};
  return {"qwen3_moe", "Qwen3MoeForCausalLM", facts, fields, experts_tensors()};
}

}  // namespace octet
