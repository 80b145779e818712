// Qwen2 and Qwen2.5.
#include "model/families/shared.h"

namespace octet {

Family qwen2_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    llama_fields(f, c, {.max_positions = 32768, .kv_heads = 32});
    layer_window_fields(f, c);
  };
  return {"qwen2", "Qwen2ForCausalLM", llama_facts({.out = false, .mlp = false, .norm = false}), fields,
          llama_tensors()};
}

}  // namespace octet
