#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "model/families.h"
#include "model/hugging_face.h"

namespace octet {
namespace {

using Json = nlohmann::json;

Json parse(const std::string& text, const std::string& where) {
  Json json = parse_json(text, where);
  check(json.is_object(), ErrorCode::kCorrupt, "{}: not a JSON object", where);
  return json;
}

// Which tensors a checkpoint of a model has, from its family's names and its config.
class TensorList {
 public:
  explicit TensorList(const ModelConfig& config) : c_(config), names_(family_of(config.architecture).tensors) {}

  std::vector<CheckpointTensor> all() {
    const std::string prefix = names_.prefix;
    add({.name = prefix + names_.embed, .params = {"embed"}}, false);
    if (c_.positions == Positions::kLearned) add({.name = prefix + names_.positions, .params = {"pos_embed"}}, false);
    if (c_.token_types > 0) add({.name = prefix + names_.types, .params = {"type_embed"}}, false);
    if (c_.embed_norm) norm(prefix + names_.embed_norm, "embed_norm");
    for (int64_t i = 0; i < c_.layers; ++i)
      layer(i, prefix + names_.layer + std::to_string(i) + ".", "layers." + std::to_string(i) + ".");
    if (c_.residual != Residual::kPostNorm) norm(prefix + names_.norm, "norm");
    heads(prefix);
    if (c_.head == Head::kNone) return std::move(list_);
    if (!c_.tie_embeddings) list_.push_back({.name = head(".weight"), .params = {"head.weight"}});
    if (c_.bias.head) list_.push_back({.name = head(".bias"), .params = {"head.bias"}});
    return std::move(list_);
  }

 private:
  void heads(const std::string& prefix) {
    if (c_.head == Head::kMaskedLm) {
      linear(names_.transform, "transform", true);
      norm(names_.transform_norm, "transform_norm");
    }
    const bool classifies = c_.labels > 0 && c_.head == Head::kNone, own = classifies && names_.class_dense != nullptr;
    if (c_.pooler) linear(own ? names_.class_dense : prefix + names_.pooler, "pooler", true);
    if (c_.labels > 0) linear(classifies ? names_.classes : names_.next_sentence, "classifier", true);
  }
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
    add({.name = name, .params = {param}}, c_.norm == NormKind::kLayer && c_.bias.norm);
  }
  void linear(const std::string& name, const std::string& param, bool bias) {
    add({.name = name, .transposed = names_.transposed, .params = {param}}, bias);
  }

  void layer(int64_t index, const std::string& from, const std::string& to) {
    const bool two = c_.residual == Residual::kParallel && names_.parallel_norm1 != nullptr;
    norm(from + (two ? names_.parallel_norm1 : names_.norm1), to + "norm1");
    attention(from, to + "attn.");
    if (c_.residual != Residual::kParallelShared)
      norm(from + (two ? names_.parallel_norm2 : names_.norm2), to + "norm2");
    if (c_.residual == Residual::kSandwich) {
      norm(from + names_.post_norm1, to + "post_norm1");
      norm(from + names_.post_norm2, to + "post_norm2");
    }
    const bool mixture = c_.experts.count > 0 && std::ranges::find(c_.dense_layers, index) == c_.dense_layers.end();
    mixture ? experts(from, to + "mlp.") : dense(from, to + "mlp.");
  }

  void dense(const std::string& from, const std::string& to) {
    if (names_.gate_up != nullptr) {
      int64_t rows = c_.intermediate_size();
      add({.name = from + names_.gate_up, .params = {to + "gate", to + "up"}, .rows = {rows, rows}}, c_.bias.mlp);
    } else {
      if (c_.gated) linear(from + names_.gate, to + "gate", c_.bias.mlp);
      linear(from + names_.up, to + "up", c_.bias.mlp);
    }
    linear(from + names_.down, to + "down", c_.bias.mlp);
  }

  void experts(const std::string& from, const std::string& to) {
    check(names_.experts != nullptr, ErrorCode::kUnsupported, "model.experts: family {} has no experts",
          c_.architecture);
    linear(from + names_.router, to + "router", false);
    const std::pair<const char*, const char*> linears[] = {
        {names_.expert_gate, "gate"}, {names_.expert_up, "up"}, {names_.expert_down, "down"}};
    for (const auto& [name, param] : linears)
      for (int64_t e = 0; e < c_.experts.count; ++e)
        add({.name = from + names_.experts + std::to_string(e) + "." + name,
             .params = {to + "experts." + param},
             .part = e,
             .parts = c_.experts.count},
            false);
    if (c_.experts.shared_intermediate == 0) return;
    check(names_.shared != nullptr, ErrorCode::kUnsupported,
          "model.shared_intermediate: family {} has no shared expert", c_.architecture);
    linear(from + names_.shared_router, to + "shared_router", false);
    linear(from + names_.shared + names_.expert_gate, to + "shared.gate", c_.bias.mlp);
    linear(from + names_.shared + names_.expert_up, to + "shared.up", c_.bias.mlp);
    linear(from + names_.shared + names_.expert_down, to + "shared.down", c_.bias.mlp);
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
  const TensorNames& names_;
  std::vector<CheckpointTensor> list_;
};

constexpr const char* kIsCausal = "is_causal";  // false: a decoder made an encoder

// "Qwen3Model" of "Qwen3ForCausalLM": the class without a head.
std::string bare_class(const Family& family) {
  std::string name = family.class_name;
  for (const std::string_view suffix : {"ForCausalLM", "LMHeadModel"})
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size()) + "Model";
  return name;
}

}  // namespace

ModelConfig parse_hugging_face_config(const std::string& json_text, const std::string& where) {
  Json json = parse(json_text, where);
  ConfigFields fields = ConfigFields::reader(json, where);
  std::string type;
  fields.optional({"model_type"}, type);
  const Family& family = family_of(type, where + ": model_type");
  ModelConfig config = model_family(type);
  family.fields(fields, config);
  std::vector<std::string> classes;
  fields.optional({"architectures"}, classes);
  if (family.facts.causal && !classes.empty() && classes[0] == bare_class(family)) config.head = Head::kNone;
  if (family.facts.causal) fields.optional({kIsCausal}, config.causal);
  const bool windows = std::ranges::any_of(config.window, [](int64_t window) { return window > 0; });
  if (family.facts.causal && !config.causal && (config.positions == Positions::kAlibi || windows))
    fields.refuse(kIsCausal, "false", windows ? "true, as there are windows" : "true, as there are linear biases");
  try {
    validate(config);
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", where, error.message());
  }
  return config;
}

std::optional<ModelConfig> eager_reference(const ModelConfig& config) {
  const Family& family = family_of(config.architecture);
  return family.eager != nullptr ? family.eager(config) : std::nullopt;
}

void SpecialTokens::add_ends(const std::vector<int64_t>& more) {
  for (int64_t id : more)
    if (std::ranges::find(eos, id) == eos.end()) eos.push_back(id);
}

SpecialTokens parse_special_tokens(const std::string& json_text, const std::string& where) {
  Json json = parse(json_text, where);
  auto ids = [&](const char* key) {  // one id or a list of them
    std::vector<int64_t> found;
    const Json value = json.value(key, Json());
    for (const Json& id : value.is_array() ? value : Json::array({value})) {
      if (id.is_number_float()) fail_json_member(json, key, where);
      if (id.is_number_integer() && id.get<int64_t>() >= 0) found.push_back(id.get<int64_t>());
    }
    return found;
  };
  auto first = [&](const char* key) {
    const std::vector<int64_t> found = ids(key);
    return found.empty() ? -1 : found[0];
  };
  SpecialTokens special{.bos = first("bos_token_id"), .pad = first("pad_token_id")};
  special.add_ends(ids("eos_token_id"));
  return special;
}

std::string to_hugging_face_config(const ModelConfig& config, const SpecialTokens& special, const std::string& dtype) {
  const Family& family = family_of(config.architecture);
  Json json = {{"model_type", family.name},
               {"architectures", {config.head == Head::kNone ? bare_class(family) : family.class_name}},
               {"dtype", dtype},
               {"torch_dtype", dtype},  // read by transformers < 5
               {"use_cache", true}};
  ModelConfig written = config;  // every size spelled out
  written.kv_heads = config.kv_head_count(), written.head_dim = config.head_size();
  written.intermediate = config.intermediate_size();
  ConfigFields fields = ConfigFields::writer(json);
  family.fields(fields, written);
  if (family.facts.causal && !config.causal) json[kIsCausal] = false;
  // null where there is none: the defaults of transformers' classes are ids of one published vocabulary.
  const auto id_or_null = [](int64_t id) { return id >= 0 ? Json(id) : Json(nullptr); };
  json["bos_token_id"] = id_or_null(special.bos);
  json["eos_token_id"] =
      special.eos.size() > 1 ? Json(special.eos) : id_or_null(special.eos.empty() ? -1 : special.eos[0]);
  json["pad_token_id"] = id_or_null(special.pad);
  return json.dump(2) + "\n";
}

std::vector<CheckpointTensor> checkpoint_tensors(const ModelConfig& config) { return TensorList(config).all(); }

std::string head_tensor(const ModelConfig& config) {
  return std::string(family_of(config.architecture).tensors.head) + ".weight";
}

std::string embedding_tensor(const ModelConfig& config) {
  const TensorNames& names = family_of(config.architecture).tensors;
  return std::string(names.prefix) + names.embed + ".weight";
}

bool is_ignored_tensor(const ModelConfig& config, const std::string& name) {
  for (std::string_view suffix :
       {".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"})
    if (name.size() >= suffix.size() && name.ends_with(suffix)) return true;
  // Tensors of heads that the class has not are no part of it, as in transformers.
  if (!family_of(config.architecture).facts.causal) {
    const std::string prefix = family_of(config.architecture).tensors.prefix;
    const std::string bare = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    return bare.ends_with("position_ids") || !(bare.starts_with("embeddings.") || bare.starts_with("encoder."));
  }
  const bool no_head = config.head == Head::kNone;
  return (config.tie_embeddings || no_head) && name == head_tensor(config);  // a copy of the tied table
}

std::string canonical_tensor_name(const ModelConfig& config, const std::string& name) {
  const TensorNames& names = family_of(config.architecture).tensors;
  std::string prefix = names.prefix, head = names.head;
  prefix.resize(prefix.find('.') + 1);
  return name.starts_with(prefix) || name.starts_with(head + ".") ? name : prefix + name;
}

}  // namespace octet
