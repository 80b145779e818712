// Qwen3.
#include "model/families/shared.h"

namespace octet {

Family qwen3_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    llama_fields(f, c, {.max_positions = 32768, .kv_heads = 32, .head_dim = 128});
    f.optional({"attention_bias"}, c.bias.qkv);
    c.bias.out = c.bias.qkv;
    layer_window_fields(f, c);
  };
  ModelConfig facts = llama_facts();
  facts.qk_norm = true;
  return {"qwen3", "Qwen3ForCausalLM", facts, fields, llama_tensors()};
}

}  // namespace octet
