// Qwen2-MoE (Qwen1.5-MoE, Qwen2-57B-A14B): experts beside one that is shared; some layers may be dense.
#include "model/families/shared.h"

namespace octet {

Family qwen2_moe_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    llama_fields(f, c, {.max_positions = 32768, .kv_heads = 16});
    f.optional({"qkv_bias"}, c.bias.qkv);
    layer_window_fields(f, c, [](int64_t layer, int64_t most) { return layer % 2 == 0 && layer < most; });
    experts_fields(f, c, {"num_experts", "num_local_experts"});
    sparse_layer_fields(f, c);
    f.optional({"shared_expert_intermediate_size"}, c.experts.shared_intermediate);
  };
  ModelConfig facts = llama_facts({.out = false, .mlp = false, .norm = false});
  facts.experts = {.count = 60, .per_token = 4, .intermediate = 1408, .shared_intermediate = 5632};
  TensorNames tensors = experts_tensors();
  tensors.shared = "mlp.shared_expert.", tensors.shared_router = "mlp.shared_expert_gate";
  return {"qwen2_moe", "Qwen2MoeForCausalLM", facts, fields, tensors};
}

}  // namespace octet
