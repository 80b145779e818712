// config.json of the families with layer norms. Each function is read in both directions, see config_fields.h.
#include <fmt/format.h>

#include <cmath>

#include "model/config_fields.h"

namespace octet {
namespace {

// GPT-2's names, kept by GPT-J and GPT-BigCode.
void gpt_fields(ConfigFields& f, ModelConfig& c, double dropout) {
  if (f.reading()) c.dropout = dropout;  // where the file says nothing
  f.required({"vocab_size"}, c.vocab_size);
  f.required({"n_positions"}, c.max_positions);
  f.required({"n_embd"}, c.hidden);
  f.required({"n_layer"}, c.layers);
  f.required({"n_head"}, c.heads);
  f.nullable({"n_inner"}, c.intermediate);
  f.optional({"layer_norm_epsilon"}, c.norm_eps);
  f.optional({"initializer_range"}, c.init_std);
  f.dropout({"resid_pdrop", "attn_pdrop", "embd_pdrop"}, c.dropout);
  f.optional({"tie_word_embeddings"}, c.tie_embeddings);
  f.activation({"activation_function"}, c.activation);
}

void gpt2(ConfigFields& f, ModelConfig& c) {
  gpt_fields(f, c, 0.1);
  bool bias = c.bias.qkv;  // false: written by Octet; transformers takes absent biases as zero
  f.optional({"bias"}, bias);
  c.bias = Biases::all(bias);
  f.only("scale_attn_by_inverse_layer_idx", false);
  f.only("scale_attn_weights", true);
  f.only("add_cross_attention", false);
}

void gpt_bigcode(ConfigFields& f, ModelConfig& c) {
  gpt_fields(f, c, 0.1);
  bool multi_query = c.kv_heads == 1;
  f.optional({"multi_query"}, multi_query);
  c.kv_heads = multi_query ? 1 : 0;
  f.only("scale_attn_weights", true);
  f.only("add_cross_attention", false);
}

void gptj(ConfigFields& f, ModelConfig& c) {
  gpt_fields(f, c, 0);
  int64_t turned = f.reading() ? 64 : c.rotary_size();
  f.nullable({"rotary_dim"}, turned);
  c.rope.rotary_dim = turned > 0 ? turned : RopeOptions::kWholeHead;
}

void gpt_neox(ConfigFields& f, ModelConfig& c) {
  f.required({"vocab_size"}, c.vocab_size);
  f.required({"hidden_size"}, c.hidden);
  f.required({"num_hidden_layers"}, c.layers);
  f.required({"num_attention_heads"}, c.heads);
  f.required({"intermediate_size"}, c.intermediate);
  if (f.reading()) c.max_positions = 2048;
  f.optional({"max_position_embeddings"}, c.max_positions);
  f.optional({"layer_norm_eps"}, c.norm_eps);
  f.optional({"initializer_range"}, c.init_std);
  f.dropout({"hidden_dropout", "attention_dropout"}, c.dropout);
  f.optional({"tie_word_embeddings"}, c.tie_embeddings);
  f.activation({"hidden_act"}, c.activation);
  bool parallel = c.residual == Residual::kParallel, bias = c.bias.qkv;
  f.optional({"use_parallel_residual"}, parallel);
  f.optional({"attention_bias"}, bias);
  c.residual = parallel ? Residual::kParallel : Residual::kSequential;
  c.bias.qkv = c.bias.out = bias;
  f.rope(c, "rotary_emb_base", "rotary_pct", 0.25);
}

void opt(ConfigFields& f, ModelConfig& c) {
  if (f.reading()) c.dropout = 0.1;
  f.required({"vocab_size"}, c.vocab_size);
  f.required({"hidden_size"}, c.hidden);
  f.required({"num_hidden_layers"}, c.layers);
  f.required({"num_attention_heads"}, c.heads);
  f.required({"ffn_dim"}, c.intermediate);
  f.required({"max_position_embeddings"}, c.max_positions);
  f.optional({"init_std"}, c.init_std);
  f.dropout({"dropout", "attention_dropout"}, c.dropout);
  f.optional({"tie_word_embeddings"}, c.tie_embeddings);
  f.activation({"activation_function"}, c.activation);
  bool bias = c.bias.qkv;
  f.optional({"enable_bias"}, bias);
  c.bias.qkv = c.bias.out = c.bias.mlp = bias;
  f.only("do_layer_norm_before", true);
  f.only("_remove_final_layer_norm", false);
  f.only("layer_norm_elementwise_affine", true);
  f.only("word_embed_proj_dim", c.hidden);
}

void bloom(ConfigFields& f, ModelConfig& c) {
  f.required({"vocab_size"}, c.vocab_size);
  f.required({"hidden_size", "n_embed"}, c.hidden);
  f.required({"n_layer", "num_hidden_layers"}, c.layers);
  f.required({"n_head", "num_attention_heads"}, c.heads);
  if (f.reading()) c.max_positions = 2048;
  f.optional({"seq_length"}, c.max_positions);
  f.optional({"layer_norm_epsilon"}, c.norm_eps);
  f.optional({"initializer_range"}, c.init_std);
  f.dropout({"hidden_dropout", "attention_dropout"}, c.dropout);
  f.optional({"tie_word_embeddings"}, c.tie_embeddings);
  f.only("apply_residual_connection_post_layernorm", false);
  if (c.intermediate != 0 && c.intermediate != 4 * c.hidden)
    f.refuse("model.intermediate", std::to_string(c.intermediate), "4 x hidden_size, the one width of a BLOOM MLP");
}

// Three generations: RW (ALiBi, one sublayer after the other), 7B (one key/value head, one norm for both sublayers) and
// 40B (grouped heads, a norm for each sublayer, or one).
void falcon(ConfigFields& f, ModelConfig& c) {
  f.required({"vocab_size"}, c.vocab_size);
  f.required({"hidden_size"}, c.hidden);
  f.required({"num_hidden_layers", "n_layer"}, c.layers);
  f.required({"num_attention_heads", "n_head"}, c.heads);
  f.nullable({"ffn_hidden_size"}, c.intermediate);
  if (f.reading()) c.max_positions = 2048;
  f.optional({"max_position_embeddings"}, c.max_positions);
  f.optional({"layer_norm_epsilon"}, c.norm_eps);
  f.optional({"initializer_range"}, c.init_std);
  f.dropout({"hidden_dropout", "attention_dropout"}, c.dropout);
  f.optional({"tie_word_embeddings"}, c.tie_embeddings);
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

// transformers wants whole numbers for these two; reading takes any.
void mpt_expansion(ConfigFields& f, ModelConfig& c) {
  if (f.reading()) {
    double ratio = 4;
    f.optional({"expansion_ratio"}, ratio);
    if (c.hidden < 1 || c.hidden > kMaxWidth) return;  // which validate() refuses
    const double width = ratio * static_cast<double>(c.hidden);
    if (!(width >= 1 && width <= static_cast<double>(4 * kMaxWidth)))
      f.refuse("expansion_ratio", fmt::format("{}", ratio), fmt::format("MLPs of 1 to {} channels", 4 * kMaxWidth));
    c.intermediate = std::lround(width);
    return;
  }
  int64_t ratio = c.intermediate_size() / c.hidden;
  if (ratio * c.hidden != c.intermediate_size()) {
    const std::string below = ratio > 0 ? fmt::format("{} or ", ratio * c.hidden) : "";
    f.refuse("model.intermediate", std::to_string(c.intermediate),
             fmt::format("{}{}: whole multiples of the width in an MPT MLP", below, (ratio + 1) * c.hidden));
  }
  f.required({"expansion_ratio"}, ratio);
}

void mpt_alibi(ConfigFields& attention, ModelConfig& c) {
  if (attention.reading()) {
    attention.optional({"alibi_bias_max"}, c.alibi);
    return;
  }
  auto whole = static_cast<int64_t>(c.alibi);
  if (static_cast<double>(whole) != c.alibi)
    attention.refuse("alibi_bias_max", fmt::format("{}", c.alibi), "whole numbers");
  attention.required({"alibi_bias_max"}, whole);
}

void mpt(ConfigFields& f, ModelConfig& c) {
  f.required({"vocab_size"}, c.vocab_size);
  f.required({"d_model"}, c.hidden);
  f.required({"n_layers"}, c.layers);
  f.required({"n_heads"}, c.heads);
  f.required({"max_seq_len"}, c.max_positions);
  mpt_expansion(f, c);
  f.optional({"layer_norm_epsilon"}, c.norm_eps);
  f.optional({"initializer_range"}, c.init_std);
  f.dropout({"resid_pdrop", "emb_pdrop"}, c.dropout);
  f.optional({"tie_word_embeddings"}, c.tie_embeddings);
  f.only("no_bias", true);
  f.only("learned_pos_emb", true);
  f.only("embedding_fraction", 1.0);
  f.only_null("logit_scale");
  ConfigFields attention = f.nested("attn_config");
  bool alibi = c.positions == Positions::kAlibi;
  attention.optional({"alibi"}, alibi);
  c.positions = alibi ? Positions::kAlibi : Positions::kLearned;
  mpt_alibi(attention, c);
  if (!f.reading()) attention.only("attn_pdrop", int64_t{0});  // a whole number there; resid_pdrop has ours
  attention.only("attn_type", "multihead_attention");
  attention.only("qk_ln", false);
  attention.only("prefix_lm", false);
  attention.only_null("clip_qkv");
  if (!f.reading() && c.attention_scale == 0) return;
  if (attention.optional({"softmax_scale"}, c.attention_scale) && c.attention_scale == 0)
    attention.refuse("softmax_scale", "0", "a positive number, or null for 1 / sqrt(head size)");
}

void phi(ConfigFields& f, ModelConfig& c) {
  f.required({"vocab_size"}, c.vocab_size);
  f.required({"hidden_size"}, c.hidden);
  f.required({"num_hidden_layers"}, c.layers);
  f.required({"num_attention_heads"}, c.heads);
  f.nullable({"num_key_value_heads"}, c.kv_heads);
  f.required({"intermediate_size"}, c.intermediate);
  if (f.reading()) c.max_positions = 2048;
  f.optional({"max_position_embeddings"}, c.max_positions);
  f.optional({"layer_norm_eps"}, c.norm_eps);
  f.optional({"initializer_range"}, c.init_std);
  f.dropout({"resid_pdrop", "embd_pdrop", "attention_dropout"}, c.dropout);
  f.optional({"tie_word_embeddings"}, c.tie_embeddings);
  f.activation({"hidden_act"}, c.activation);
  f.only("qk_layernorm", false);
  f.rope(c, "rope_theta", "partial_rotary_factor", 0.5);
}

}  // namespace

std::span<const HuggingFaceFamily> layer_norm_families() {
  static constexpr HuggingFaceFamily kRows[] = {
      {"gpt2", "GPT2LMHeadModel", gpt2},       {"gpt_bigcode", "GPTBigCodeForCausalLM", gpt_bigcode},
      {"gptj", "GPTJForCausalLM", gptj},       {"gpt_neox", "GPTNeoXForCausalLM", gpt_neox},
      {"opt", "OPTForCausalLM", opt},          {"bloom", "BloomForCausalLM", bloom},
      {"falcon", "FalconForCausalLM", falcon}, {"mpt", "MptForCausalLM", mpt},
      {"phi", "PhiForCausalLM", phi},
  };
  return kRows;
}

}  // namespace octet
