// Falcon. Three generations: RW (ALiBi, one sublayer after the other), 7B (one key/value head, one norm for both
// sublayers) and 40B (grouped heads, a norm for each sublayer, or one).
#include <cmath>

#include "model/families/shared.h"

namespace octet {
namespace {

void fields(ConfigFields& f, ModelConfig& c) {
  f.required({"vocab_size"}, c.vocab_size);
  f.required({"hidden_size"}, c.hidden);
  f.required({"num_hidden_layers", "n_layer"}, c.layers);
  f.required({"num_attention_heads", "n_head"}, c.heads);
  f.nullable({"ffn_hidden_size"}, c.intermediate);
  if (f.reading()) c.max_positions = 2048;
  f.optional({"max_position_embeddings"}, c.max_positions);
  layer_norm_fields(f, c);
  f.dropout({"hidden_dropout", "attention_dropout"}, c.dropout);
  f.activation({"activation"}, c.activation);
  f.optional({"bias"}, c.bias.qkv);
  c.bias.out = c.bias.mlp = c.bias.qkv;

  int64_t kv_heads = c.kv_head_count(), norms = c.residual == Residual::kParallel ? 2 : 1;
  bool grouped = norms == 2 || (kv_heads != 1 && kv_heads != c.heads), multi_query = kv_heads == 1;
  bool parallel = c.residual != Residual::kSequential, alibi = c.positions == Positions::kAlibi;
  if (f.reading()) grouped = false, multi_query = parallel = true, kv_heads = c.heads;  // where the file says nothing
  f.optional({"new_decoder_architecture"}, grouped);
  f.optional({"multi_query"}, multi_query);
  f.optional({"parallel_attn"}, parallel);
  f.optional({"num_kv_heads", "n_head_kv"}, kv_heads);
  if (f.reading()) norms = grouped ? 2 : 1;
  f.optional({"num_ln_in_parallel_attn"}, norms);
  f.optional({"alibi"}, alibi);
  c.kv_heads = grouped ? kv_heads : multi_query ? 1 : c.heads;
  c.residual = grouped && norms == 2 ? Residual::kParallel
               : grouped || parallel ? Residual::kParallelShared
                                     : Residual::kSequential;
  c.positions = alibi ? Positions::kAlibi : Positions::kRotary;
  if (alibi && c.heads > 0) {
    double usual = 1 / std::sqrt(static_cast<double>(c.head_size()));  // biases are scaled with the scores
    if (f.reading()) c.alibi_scale = usual;
    if (f.reading() || c.alibi_scale != usual) f.optional({"alibi_scale"}, c.alibi_scale);  // only Octet knows it
  }
  f.rope(c);
}

// transformers adds the linear biases twice, once more inside the causal mask.
std::optional<ModelConfig> eager(const ModelConfig& c) {
  if (c.positions != Positions::kAlibi) return std::nullopt;
  ModelConfig reference = c;
  reference.alibi_scale *= 2;
  return reference;
}

}  // namespace

Family falcon_family() {
  ModelConfig facts = gpt_facts(Positions::kRotary, {.qkv = false, .out = false, .mlp = false},
                                Residual::kParallelShared, Activation::kGelu, true);
  facts.kv_heads = 1;
  TensorNames tensors = bloom_tensors();
  tensors.parallel_norm1 = "ln_attn", tensors.parallel_norm2 = "ln_mlp";
  return {"falcon", "FalconForCausalLM", facts, fields, tensors, eager};
}

}  // namespace octet
