// Mixtral: Mistral's blocks with a mixture of experts in every layer.
#include "model/families/shared.h"

namespace octet {

Family mixtral_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    llama_fields(f, c, {.max_positions = 131072, .kv_heads = 8, .norm_eps = 1e-5});
    one_window_field(f, c, 0);
    experts_fields(f, c, {"num_local_experts", "num_experts"});
    f.only("router_jitter_noise", 0.0);
  };
  ModelConfig facts = llama_facts();
  facts.experts = {.count = 8, .per_token = 2, .renormalize = true}, facts.rope.theta = 1e6;
  TensorNames tensors = experts_tensors();
  tensors.router = "block_sparse_moe.gate", tensors.experts = "block_sparse_moe.experts.";
  tensors.expert_gate = "w1", tensors.expert_up = "w3", tensors.expert_down = "w2";
  return {"mixtral", "MixtralForCausalLM", facts, fields, tensors};
}

}  // namespace octet
