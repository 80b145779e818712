// GPT-2, and GPT-3's shapes.
#include "model/families/shared.h"

namespace octet {

Family gpt2_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    gpt_fields(f, c, 0.1);
    bool bias = c.bias.qkv;  // false: written by Octet; transformers takes absent biases as zero
    f.optional({"bias"}, bias);
    c.bias = Biases::all(bias);
    f.only("scale_attn_by_inverse_layer_idx", false);
    f.only("scale_attn_weights", true);
    f.only("add_cross_attention", false);
  };
  TensorNames tensors = gpt2_tensors();
  tensors.transposed = true;
  return {"gpt2", "GPT2LMHeadModel", {}, fields, tensors};
}

}  // namespace octet
