// Names of checkpoint tensors, a row of names for each family. Which of them a model has follows from its config.
#include <string_view>

#include "base/error.h"
#include "model/hugging_face.h"

namespace octet {
namespace {

struct Names {
  const char* architecture;
  const char* prefix;  // of all but the head
  const char* layer;   // behind the prefix, in front of the layer's number
  const char *embed, *norm;
  const char* head = "lm_head";
  const char *norm1, *norm2 = nullptr;
  const char* qkv = nullptr;  // one tensor, or three:
  const char *q = nullptr, *k = nullptr, *v = nullptr;
  const char *o, *up, *down;
  const char *gate = nullptr, *gate_up = nullptr;
  const char *positions = nullptr, *embed_norm = nullptr;
  bool by_kv_head =
      false;  // qkv holds [queries, key, value] of one key/value head after the other, else all queries...
  bool transposed = false;  // linears are [in, out]
};

constexpr Names llama_names(const char* architecture) {
  return {.architecture = architecture,
          .prefix = "model.",
          .layer = "layers.",
          .embed = "embed_tokens",
          .norm = "norm",
          .norm1 = "input_layernorm",
          .norm2 = "post_attention_layernorm",
          .q = "self_attn.q_proj",
          .k = "self_attn.k_proj",
          .v = "self_attn.v_proj",
          .o = "self_attn.o_proj",
          .up = "mlp.up_proj",
          .down = "mlp.down_proj",
          .gate = "mlp.gate_proj"};
}

constexpr Names glm_names() {
  Names names = llama_names("glm");
  names.gate_up = "mlp.gate_up_proj";
  return names;
}

constexpr Names gpt2_names(const char* architecture) {
  return {.architecture = architecture,
          .prefix = "transformer.",
          .layer = "h.",
          .embed = "wte",
          .norm = "ln_f",
          .norm1 = "ln_1",
          .norm2 = "ln_2",
          .qkv = "attn.c_attn",
          .o = "attn.c_proj",
          .up = "mlp.c_fc",
          .down = "mlp.c_proj",
          .positions = "wpe",
          .by_kv_head = std::string_view(architecture) == "gpt_bigcode",
          .transposed = std::string_view(architecture) == "gpt2"};
}

constexpr Names bloom_names(const char* architecture) {
  return {.architecture = architecture,
          .prefix = "transformer.",
          .layer = "h.",
          .embed = "word_embeddings",
          .norm = "ln_f",
          .norm1 = "input_layernorm",
          .norm2 = "post_attention_layernorm",
          .qkv = "self_attention.query_key_value",
          .o = "self_attention.dense",
          .up = "mlp.dense_h_to_4h",
          .down = "mlp.dense_4h_to_h",
          .embed_norm = "word_embeddings_layernorm",
          .by_kv_head = true};
}

constexpr Names kNames[] = {
    gpt2_names("gpt2"),
    gpt2_names("gpt_bigcode"),
    {.architecture = "gptj",
     .prefix = "transformer.",
     .layer = "h.",
     .embed = "wte",
     .norm = "ln_f",
     .norm1 = "ln_1",
     .q = "attn.q_proj",
     .k = "attn.k_proj",
     .v = "attn.v_proj",
     .o = "attn.out_proj",
     .up = "mlp.fc_in",
     .down = "mlp.fc_out"},
    {.architecture = "gpt_neox",
     .prefix = "gpt_neox.",
     .layer = "layers.",
     .embed = "embed_in",
     .norm = "final_layer_norm",
     .head = "embed_out",
     .norm1 = "input_layernorm",
     .norm2 = "post_attention_layernorm",
     .qkv = "attention.query_key_value",
     .o = "attention.dense",
     .up = "mlp.dense_h_to_4h",
     .down = "mlp.dense_4h_to_h",
     .by_kv_head = true},
    {.architecture = "opt",
     .prefix = "model.decoder.",
     .layer = "layers.",
     .embed = "embed_tokens",
     .norm = "final_layer_norm",
     .norm1 = "self_attn_layer_norm",
     .norm2 = "final_layer_norm",
     .q = "self_attn.q_proj",
     .k = "self_attn.k_proj",
     .v = "self_attn.v_proj",
     .o = "self_attn.out_proj",
     .up = "fc1",
     .down = "fc2",
     .positions = "embed_positions"},
    bloom_names("bloom"),
    bloom_names("falcon"),
    {.architecture = "mpt",
     .prefix = "transformer.",
     .layer = "blocks.",
     .embed = "wte",
     .norm = "norm_f",
     .norm1 = "norm_1",
     .norm2 = "norm_2",
     .qkv = "attn.Wqkv",
     .o = "attn.out_proj",
     .up = "ffn.up_proj",
     .down = "ffn.down_proj",
     .positions = "wpe"},
    {.architecture = "phi",
     .prefix = "model.",
     .layer = "layers.",
     .embed = "embed_tokens",
     .norm = "final_layernorm",
     .norm1 = "input_layernorm",
     .q = "self_attn.q_proj",
     .k = "self_attn.k_proj",
     .v = "self_attn.v_proj",
     .o = "self_attn.dense",
     .up = "mlp.fc1",
     .down = "mlp.fc2"},
    llama_names("llama"),
    llama_names("mistral"),
    llama_names("qwen2"),
    llama_names("qwen3"),
    llama_names("gemma"),
    glm_names(),
};

Names find_names(const ModelConfig& c) {
  for (Names names : kNames) {
    if (c.architecture != names.architecture) continue;
    if (c.architecture == "falcon" && c.residual == Residual::kParallel)
      names.norm1 = "ln_attn", names.norm2 = "ln_mlp";
    return names;
  }
  fail(ErrorCode::kInternal, "no names of checkpoint tensors are known for architecture {}", c.architecture);
}

class TensorList {
 public:
  TensorList(const ModelConfig& config, const Names& names) : c_(config), names_(names) {}

  std::vector<CheckpointTensor> all() {
    const std::string prefix = names_.prefix;
    add({.name = prefix + names_.embed, .params = {"embed"}}, false);
    if (c_.positions == Positions::kLearned) add({.name = prefix + names_.positions, .params = {"pos_embed"}}, false);
    if (c_.embed_norm) norm(prefix + names_.embed_norm, "embed_norm");
    for (int64_t i = 0; i < c_.layers; ++i)
      layer(prefix + names_.layer + std::to_string(i) + ".", "layers." + std::to_string(i) + ".");
    norm(prefix + names_.norm, "norm");
    if (!c_.tie_embeddings) list_.push_back({.name = head(".weight"), .params = {"head.weight"}});
    if (c_.bias.head) list_.push_back({.name = head(".bias"), .params = {"head.bias"}});
    return std::move(list_);
  }

 private:
  std::string head(const char* part) const { return std::string(names_.head) + part; }

  // The weight and, where there is one, the bias: names without ".weight" and ".bias".
  void add(const CheckpointTensor& both, bool bias) {
    for (const char* part : {".weight", ".bias"}) {
      CheckpointTensor tensor = both;
      tensor.name += part;
      for (std::string& param : tensor.params) param += part;
      tensor.transposed = both.transposed && part == std::string_view(".weight");
      if (bias || part == std::string_view(".weight")) list_.push_back(std::move(tensor));
    }
  }
  void norm(const std::string& name, const std::string& param) {
    add({.name = name, .params = {param}}, c_.norm == Norm::kLayer && c_.bias.norm);
  }
  void linear(const std::string& name, const std::string& param, bool bias) {
    add({.name = name, .transposed = names_.transposed, .params = {param}}, bias);
  }

  void layer(const std::string& from, const std::string& to) {
    norm(from + names_.norm1, to + "norm1");
    attention(from, to + "attn.");
    if (c_.residual != Residual::kParallelShared) norm(from + names_.norm2, to + "norm2");
    if (names_.gate_up != nullptr) {
      int64_t rows = c_.intermediate_size();
      add({.name = from + names_.gate_up, .params = {to + "mlp.gate", to + "mlp.up"}, .rows = {rows, rows}},
          c_.bias.mlp);
    } else {
      if (c_.gated) linear(from + names_.gate, to + "mlp.gate", c_.bias.mlp);
      linear(from + names_.up, to + "mlp.up", c_.bias.mlp);
    }
    linear(from + names_.down, to + "mlp.down", c_.bias.mlp);
  }

  void attention(const std::string& from, const std::string& to) {
    if (names_.qkv != nullptr) {
      int64_t groups = names_.by_kv_head ? c_.kv_head_count() : 1, dim = c_.head_size();
      int64_t keys = c_.kv_head_count() * dim / groups;
      add({.name = from + names_.qkv,
           .transposed = names_.transposed,
           .params = {to + "q", to + "k", to + "v"},
           .groups = groups,
           .rows = {c_.heads * dim / groups, keys, keys}},
          c_.bias.qkv);
    } else {
      linear(from + names_.q, to + "q", c_.bias.qkv);
      linear(from + names_.k, to + "k", c_.bias.qkv);
      linear(from + names_.v, to + "v", c_.bias.qkv);
    }
    if (c_.qk_norm) {
      norm(from + "self_attn.q_norm", to + "q_norm");
      norm(from + "self_attn.k_norm", to + "k_norm");
    }
    linear(from + names_.o, to + "o", c_.bias.out);
  }

  const ModelConfig& c_;
  const Names& names_;
  std::vector<CheckpointTensor> list_;
};

}  // namespace

std::vector<CheckpointTensor> checkpoint_tensors(const ModelConfig& config) {
  const Names names = find_names(config);
  return TensorList(config, names).all();
}

std::string head_tensor(const ModelConfig& config) { return std::string(find_names(config).head) + ".weight"; }

std::string embedding_tensor(const ModelConfig& config) {
  const Names names = find_names(config);
  return std::string(names.prefix) + names.embed + ".weight";
}

bool is_ignored_tensor(const ModelConfig& config, const std::string& name) {
  for (std::string_view suffix :
       {".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"})
    if (name.size() >= suffix.size() && name.ends_with(suffix)) return true;
  return config.tie_embeddings && name == head_tensor(config);  // a copy of the tied table
}

std::string canonical_tensor_name(const ModelConfig& config, const std::string& name) {
  const Names names = find_names(config);
  std::string prefix = names.prefix, head = names.head;
  prefix.resize(prefix.find('.') + 1);
  return name.starts_with(prefix) || name.starts_with(head + ".") ? name : prefix + name;
}

}  // namespace octet
