// Gemma 1.
#include "model/families/shared.h"

namespace octet {

Family gemma_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    if (!f.reading() && c.activation == Activation::kGelu)
      f.refuse("hidden_act", "exact GELU", "gelu_pytorch_tanh: the tanh form is what a Gemma's \"gelu\" means");
    llama_fields(f, c, {.max_positions = 8192, .kv_heads = 16, .head_dim = 256, .tanh_name = "gelu_pytorch_tanh"});
    if (c.activation == Activation::kGelu) c.activation = Activation::kGeluTanh;  // "gelu" of the first files
    f.optional({"attention_bias"}, c.bias.qkv);
    c.bias.out = c.bias.qkv;
    f.only("use_bidirectional_attention", false);
  };
  ModelConfig facts = llama_facts();
  facts.activation = Activation::kGeluTanh;
  facts.norm_plus_one = facts.scale_embeddings = facts.tie_embeddings = true;
  return {"gemma", "GemmaForCausalLM", facts, fields, llama_tensors()};
}

}  // namespace octet
