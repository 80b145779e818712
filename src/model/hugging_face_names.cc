#include <string_view>

#include "base/error.h"
#include "model/hugging_face.h"

namespace octet {
namespace {

std::vector<CheckpointTensor> gpt2_tensors(const ModelConfig& c) {
  std::vector<CheckpointTensor> t = {{"transformer.wte.weight", false, {"embed.weight"}},
                                     {"transformer.wpe.weight", false, {"pos_embed.weight"}}};
  auto affine = [&](const std::string& name, const std::string& param) {
    t.push_back({name + ".weight", false, {param + ".weight"}});
    if (c.bias) t.push_back({name + ".bias", false, {param + ".bias"}});
  };
  auto conv = [&](const std::string& name, const std::vector<std::string>& params) {
    CheckpointTensor weight{name + ".weight", true, {}}, bias{name + ".bias", false, {}};
    for (const auto& param : params) weight.params.push_back(param + ".weight"), bias.params.push_back(param + ".bias");
    t.push_back(weight);
    if (c.bias) t.push_back(bias);
  };
  for (int64_t i = 0; i < c.layers; ++i) {
    std::string from = fmt::format("transformer.h.{}.", i), to = fmt::format("layers.{}.", i);
    affine(from + "ln_1", to + "norm1");
    conv(from + "attn.c_attn", {to + "attn.q", to + "attn.k", to + "attn.v"});
    conv(from + "attn.c_proj", {to + "attn.o"});
    affine(from + "ln_2", to + "norm2");
    conv(from + "mlp.c_fc", {to + "mlp.up"});
    conv(from + "mlp.c_proj", {to + "mlp.down"});
  }
  affine("transformer.ln_f", "norm");
  if (!c.tie_embeddings) t.push_back({"lm_head.weight", false, {"head.weight"}});
  return t;
}

std::vector<CheckpointTensor> llama_tensors(const ModelConfig& c) {
  std::vector<CheckpointTensor> t = {{"model.embed_tokens.weight", false, {"embed.weight"}}};
  for (int64_t i = 0; i < c.layers; ++i) {
    std::string from = fmt::format("model.layers.{}.", i), to = fmt::format("layers.{}.", i);
    auto one = [&](const char* name, const char* param) {
      t.push_back({from + name + ".weight", false, {to + param + ".weight"}});
    };
    one("input_layernorm", "norm1");
    one("self_attn.q_proj", "attn.q");
    one("self_attn.k_proj", "attn.k");
    one("self_attn.v_proj", "attn.v");
    one("self_attn.o_proj", "attn.o");
    one("post_attention_layernorm", "norm2");
    one("mlp.gate_proj", "mlp.gate");
    one("mlp.up_proj", "mlp.up");
    one("mlp.down_proj", "mlp.down");
  }
  t.push_back({"model.norm.weight", false, {"norm.weight"}});
  if (!c.tie_embeddings) t.push_back({"lm_head.weight", false, {"head.weight"}});
  return t;
}

}  // namespace

std::vector<CheckpointTensor> checkpoint_tensors(const ModelConfig& config) {
  return config.architecture == "gpt2" ? gpt2_tensors(config) : llama_tensors(config);
}

bool is_ignored_tensor(const ModelConfig& config, const std::string& name) {
  for (std::string_view suffix : {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"})
    if (name.size() >= suffix.size() && name.ends_with(suffix)) return true;
  return config.tie_embeddings && name == "lm_head.weight";  // a copy of the tied table
}

std::string canonical_tensor_name(const ModelConfig& config, const std::string& name) {
  std::string prefix = config.architecture == "gpt2" ? "transformer." : "model.";
  return name.starts_with(prefix) || name.starts_with("lm_head.") ? name : prefix + name;
}

}  // namespace octet
