// GPT-J.
#include "model/families/shared.h"

namespace octet {

Family gptj_family() {
  const auto fields = [](ConfigFields& f, ModelConfig& c) {
    gpt_fields(f, c, 0);
    int64_t turned = f.reading() ? 64 : c.rotary_size();
    f.nullable({"rotary_dim"}, turned);
    c.rope.rotary_dim = turned > 0 ? turned : RopeOptions::kWholeHead;
  };
  ModelConfig facts = gpt_facts(Positions::kRotary, {.qkv = false, .out = false, .head = true},
                                Residual::kParallelShared, Activation::kGeluTanh, false);
  facts.rope.interleaved = true;
  TensorNames t;
  t.prefix = "transformer.", t.layer = "h.", t.embed = "wte", t.norm = "ln_f", t.norm1 = "ln_1", t.q = "attn.q_proj",
  t.k = "attn.k_proj", t.v = "attn.v_proj", t.o = "attn.out_proj", t.up = "mlp.fc_in", t.down = "mlp.fc_out";
  return {"gptj", "GPTJForCausalLM", facts, fields, t};
}

}  // namespace octet
