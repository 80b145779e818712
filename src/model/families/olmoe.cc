// OLMoE: a mixture of many small experts; one norm for all heads of q, one for those of k.
#include "model/families/shared.h"

namespace octet {

Family olmoe_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    llama_fields(f, c, {.max_positions = 4096, .norm_eps = 1e-5});
    f.optional({"attention_bias"}, c.bias.qkv);
    c.bias.out = c.bias.qkv;
    f.only_null("clip_qkv");
    experts_fields(f, c, {"num_experts", "num_local_experts"});
    f.optional({"norm_topk_prob"}, c.experts.renormalize);
  };
  ModelConfig facts = llama_facts();
  facts.qk_norm = facts.qk_norm_whole = true, facts.experts = {.count = 64, .per_token = 8};
  return {"olmoe", "OlmoeForCausalLM", facts, fields, experts_tensors()};
}

}  // namespace octet
