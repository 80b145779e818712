// MPT.
#include <fmt/format.h>

#include <cmath>

#include "model/families/shared.h"

namespace octet {
namespace {

// transformers wants whole numbers for these two; reading takes any.
void expansion_field(ConfigFields& f, ModelConfig& c) {
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

void alibi_field(ConfigFields& attention, ModelConfig& c) {
  if (attention.reading()) {
    attention.optional({"alibi_bias_max"}, c.alibi);
    return;
  }
  auto whole = static_cast<int64_t>(c.alibi);
  if (static_cast<double>(whole) != c.alibi)
    attention.refuse("alibi_bias_max", fmt::format("{}", c.alibi), "whole numbers");
  attention.required({"alibi_bias_max"}, whole);
}

void fields(ConfigFields& f, ModelConfig& c) {
  f.required({"vocab_size"}, c.vocab_size);
  f.required({"d_model"}, c.hidden);
  f.required({"n_layers"}, c.layers);
  f.required({"n_heads"}, c.heads);
  f.required({"max_seq_len"}, c.max_positions);
  expansion_field(f, c);
  layer_norm_fields(f, c);
  f.dropout({"resid_pdrop", "emb_pdrop"}, c.dropout);
  f.only("no_bias", true);
  f.only("learned_pos_emb", true);
  f.only("embedding_fraction", 1.0);
  f.only_null("logit_scale");
  ConfigFields attention = f.nested("attn_config");
  bool alibi = c.positions == Positions::kAlibi;
  attention.optional({"alibi"}, alibi);
  c.positions = alibi ? Positions::kAlibi : Positions::kLearned;
  alibi_field(attention, c);
  if (!f.reading()) attention.only("attn_pdrop", int64_t{0});  // a whole number there; resid_pdrop has ours
  attention.only("attn_type", "multihead_attention");
  attention.only("qk_ln", false);
  attention.only("prefix_lm", false);
  attention.only_null("clip_qkv");
  if (!f.reading() && c.attention_scale == 0) return;
  if (attention.optional({"softmax_scale"}, c.attention_scale) && c.attention_scale == 0)
    attention.refuse("softmax_scale", "0", "a positive number, or null for 1 / sqrt(head size)");
}

// transformers gives every MPT linear biases up to 8, whatever attn_config says.
std::optional<ModelConfig> eager(const ModelConfig& c) {
  if (c.positions == Positions::kAlibi && c.alibi == 8) return std::nullopt;
  ModelConfig reference = c;
  reference.positions = Positions::kAlibi, reference.alibi = 8;
  return reference;
}

}  // namespace

Family mpt_family() {
  TensorNames t;
  t.prefix = "transformer.", t.layer = "blocks.", t.embed = "wte", t.norm = "norm_f", t.norm1 = "norm_1",
  t.norm2 = "norm_2", t.qkv = "attn.Wqkv", t.o = "attn.out_proj", t.up = "ffn.up_proj", t.down = "ffn.down_proj",
  t.positions = "wpe";
  const ModelConfig facts =
      gpt_facts(Positions::kAlibi, Biases::all(false), Residual::kSequential, Activation::kGelu, true);
  return {"mpt", "MptForCausalLM", facts, fields, t, eager};
}

}  // namespace octet
