// GPT-BigCode: StarCoder, SantaCoder.
#include "model/families/shared.h"

namespace octet {

Family gpt_bigcode_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    gpt_fields(f, c, 0.1);
    bool multi_query = c.kv_heads == 1;
    f.optional({"multi_query"}, multi_query);
    c.kv_heads = multi_query ? 1 : 0;
    f.only("scale_attn_weights", true);
    f.only("add_cross_attention", false);
  };
  ModelConfig facts;
  facts.kv_heads = 1;
  TensorNames tensors = gpt2_tensors();
  tensors.by_kv_head = true;
  return {"gpt_bigcode", "GPTBigCodeForCausalLM", facts, fields, tensors};
}

}  // namespace octet
