// Llama 1 to 3.
#include "model/families/shared.h"

namespace octet {

Family llama_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    llama_fields(f, c, {});
    f.optional({"attention_bias"}, c.bias.qkv);
    f.optional({"mlp_bias"}, c.bias.mlp);
    c.bias.out = c.bias.qkv;
  };
  return {"llama", "LlamaForCausalLM", llama_facts(), fields, llama_tensors()};
}

}  // namespace octet
