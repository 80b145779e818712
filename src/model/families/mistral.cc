// Mistral.
#include "model/families/shared.h"

namespace octet {

Family mistral_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    llama_fields(f, c, {.max_positions = 131072, .kv_heads = 8});
    one_window_field(f, c, 4096);
  };
  return {"mistral", "MistralForCausalLM", llama_facts(), fields, llama_tensors()};
}

}  // namespace octet
