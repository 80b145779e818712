// BLOOM.
#include "model/families/shared.h"

namespace octet {

Family bloom_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    f.required({"vocab_size"}, c.vocab_size);
    f.required({"hidden_size", "n_embed"}, c.hidden);
    f.required({"n_layer", "num_hidden_layers"}, c.layers);
    f.required({"n_head", "num_attention_heads"}, c.heads);
    if (f.reading()) c.max_positions = 2048;
    f.optional({"seq_length"}, c.max_positions);
    layer_norm_fields(f, c);
    f.dropout({"hidden_dropout", "attention_dropout"}, c.dropout);
    f.only("apply_residual_connection_post_layernorm", false);
    if (c.intermediate != 0 && c.intermediate != 4 * c.hidden)
      f.refuse("model.intermediate", std::to_string(c.intermediate), "4 x hidden_size, the one width of a BLOOM MLP");
  };
  ModelConfig facts = gpt_facts(Positions::kAlibi, {}, Residual::kSequential, Activation::kGeluTanh, true);
  facts.embed_norm = true;
  return {"bloom", "BloomForCausalLM", facts, fields, bloom_tensors()};
}

}  // namespace octet
