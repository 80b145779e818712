#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/hugging_face.h"

namespace octet {
namespace {

using Json = nlohmann::json;

Json parse(const std::string& text, const std::string& where) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  check(json.is_object(), ErrorCode::kCorrupt, "{}: not a JSON object", where);
  return json;
}

template <typename T>
T field(const Json& json, const char* key, T fallback, const std::string& where) {
  auto it = json.find(key);
  if (it == json.end() || it->is_null()) return fallback;
  try {
    return it->get<T>();
  } catch (const Json::exception&) {
    fail(ErrorCode::kCorrupt, "{}: \"{}\" is {}, of the wrong type", where, key, it->dump());
  }
}

int64_t required(const Json& json, const char* key, const std::string& where) {
  check(json.contains(key), ErrorCode::kCorrupt, "{}: \"{}\" is missing", where, key);
  return field<int64_t>(json, key, 0, where);
}

void refuse(bool condition, const std::string& where, const char* what) {
  check(!condition, ErrorCode::kUnsupported, "{}: {} is not supported", where, what);
}

ModelConfig gpt2_config(const Json& json, const std::string& where) {
  ModelConfig c;
  c.architecture = "gpt2";
  c.vocab_size = required(json, "vocab_size", where);
  c.max_positions = required(json, "n_positions", where);
  c.hidden = required(json, "n_embd", where);
  c.layers = required(json, "n_layer", where);
  c.heads = required(json, "n_head", where);
  c.intermediate = field<int64_t>(json, "n_inner", 0, where);
  c.norm_eps = field<double>(json, "layer_norm_epsilon", 1e-5, where);
  c.init_std = field<double>(json, "initializer_range", 0.02, where);
  c.dropout = field<double>(json, "resid_pdrop", 0.1, where);
  c.tie_embeddings = field<bool>(json, "tie_word_embeddings", true, where);
  c.bias = field<bool>(json, "bias", true, where);  // false: written by Octet; transformers takes absent biases as zero
  auto activation = field<std::string>(json, "activation_function", "gelu_new", where);
  check(activation == "gelu_new" || activation == "gelu_pytorch_tanh", ErrorCode::kUnsupported,
        "{}: activation_function \"{}\" (gpt2 runs gelu_new)", where, activation);
  refuse(field<bool>(json, "scale_attn_by_inverse_layer_idx", false, where), where, "scale_attn_by_inverse_layer_idx");
  refuse(!field<bool>(json, "scale_attn_weights", true, where), where, "scale_attn_weights = false");
  refuse(field<bool>(json, "add_cross_attention", false, where), where, "add_cross_attention");
  return c;
}

RopeOptions rope_options(const Json& json, const std::string& where) {
  RopeOptions rope;
  Json parameters = Json::object();  // transformers >= 5: rope_parameters; before: rope_theta and rope_scaling
  if (auto it = json.find("rope_parameters"); it != json.end() && it->is_object()) parameters = *it;
  if (auto it = json.find("rope_scaling"); it != json.end() && it->is_object()) parameters.update(*it);
  rope.theta = field<double>(parameters, "rope_theta", field<double>(json, "rope_theta", 10000.0, where), where);
  auto type =
      field<std::string>(parameters, "rope_type", field<std::string>(parameters, "type", "default", where), where);
  if (type == "default") return rope;
  rope.factor = field<double>(parameters, "factor", 1.0, where);
  if (type == "linear") {
    rope.scaling = "linear";
  } else if (type == "llama3") {
    rope.scaling = "llama3";
    rope.low_freq_factor = field<double>(parameters, "low_freq_factor", 1.0, where);
    rope.high_freq_factor = field<double>(parameters, "high_freq_factor", 4.0, where);
    rope.original_max_positions = field<int64_t>(parameters, "original_max_position_embeddings", 8192, where);
  } else {
    fail(ErrorCode::kUnsupported, "{}: rope_type \"{}\" (supported: default, linear, llama3)", where, type);
  }
  return rope;
}

ModelConfig llama_config(const Json& json, const std::string& where) {
  ModelConfig c;
  c.architecture = "llama";
  c.vocab_size = required(json, "vocab_size", where);
  c.hidden = required(json, "hidden_size", where);
  c.layers = required(json, "num_hidden_layers", where);
  c.heads = required(json, "num_attention_heads", where);
  c.kv_heads = field<int64_t>(json, "num_key_value_heads", 0, where);
  c.head_dim = field<int64_t>(json, "head_dim", 0, where);
  c.intermediate = required(json, "intermediate_size", where);
  c.max_positions = field<int64_t>(json, "max_position_embeddings", 2048, where);
  c.norm_eps = field<double>(json, "rms_norm_eps", 1e-6, where);
  c.init_std = field<double>(json, "initializer_range", 0.02, where);
  c.tie_embeddings = field<bool>(json, "tie_word_embeddings", false, where);
  c.bias = false;
  c.rope = rope_options(json, where);
  refuse(field<bool>(json, "attention_bias", false, where), where, "attention_bias = true");
  refuse(field<bool>(json, "mlp_bias", false, where), where, "mlp_bias = true");
  auto activation = field<std::string>(json, "hidden_act", "silu", where);
  check(activation == "silu", ErrorCode::kUnsupported, "{}: hidden_act \"{}\" (llama runs silu)", where, activation);
  return c;
}

Json rope_json(const RopeOptions& rope) {
  Json json = {{"rope_theta", rope.theta}, {"rope_type", rope.scaling == "none" ? "default" : rope.scaling}};
  if (rope.scaling != "none") json["factor"] = rope.factor;
  if (rope.scaling == "llama3") {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
    json["original_max_position_embeddings"] = rope.original_max_positions;
  }
  return json;
}

}  // namespace

ModelConfig parse_hugging_face_config(const std::string& json_text, const std::string& where) {
  Json json = parse(json_text, where);
  auto type = field<std::string>(json, "model_type", "", where);
  ModelConfig config;
  if (type == "gpt2") {
    config = gpt2_config(json, where);
  } else if (type == "llama") {
    config = llama_config(json, where);
  } else {
    fail(ErrorCode::kUnsupported, "{}: model_type \"{}\" (supported: gpt2, llama)", where, type);
  }
  validate(config);
  return config;
}

SpecialTokens parse_special_tokens(const std::string& json_text) {
  Json json = parse(json_text, "config.json");
  auto id = [&](const char* key) -> int64_t {
    auto it = json.find(key);
    if (it == json.end()) return -1;
    if (it->is_array() && !it->empty()) return it->front().is_number_integer() ? it->front().get<int64_t>() : -1;
    return it->is_number_integer() ? it->get<int64_t>() : -1;
  };
  return {.bos = id("bos_token_id"), .eos = id("eos_token_id"), .pad = id("pad_token_id")};
}

std::string to_hugging_face_config(const ModelConfig& c, const SpecialTokens& special, const std::string& dtype) {
  Json json = {{"vocab_size", c.vocab_size},  {"tie_word_embeddings", c.tie_embeddings}, {"dtype", dtype},
               {"torch_dtype", dtype},        {"initializer_range", c.init_std},         {"use_cache", true},
               {"model_type", c.architecture}};
  if (c.architecture == "gpt2") {
    json["architectures"] = {"GPT2LMHeadModel"};
    json["n_positions"] = c.max_positions;
    json["n_ctx"] = c.max_positions;
    json["n_embd"] = c.hidden;
    json["n_layer"] = c.layers;
    json["n_head"] = c.heads;
    json["n_inner"] = c.intermediate > 0 ? Json(c.intermediate) : Json(nullptr);
    json["activation_function"] = "gelu_new";
    json["layer_norm_epsilon"] = c.norm_eps;
    if (!c.bias) json["bias"] = false;
    for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) json[key] = c.dropout;
  } else {
    json["architectures"] = {"LlamaForCausalLM"};
    json["hidden_size"] = c.hidden;
    json["intermediate_size"] = c.intermediate_size();
    json["num_hidden_layers"] = c.layers;
    json["num_attention_heads"] = c.heads;
    json["num_key_value_heads"] = c.kv_head_count();
    json["head_dim"] = c.head_size();
    json["max_position_embeddings"] = c.max_positions;
    json["rms_norm_eps"] = c.norm_eps;
    json["hidden_act"] = "silu";
    json["attention_bias"] = false;
    json["mlp_bias"] = false;
    json["rope_parameters"] = rope_json(c.rope);
    json["rope_theta"] = c.rope.theta;  // read by transformers < 5
    if (c.rope.scaling != "none") json["rope_scaling"] = rope_json(c.rope);
  }
  if (special.bos >= 0) json["bos_token_id"] = special.bos;
  if (special.eos >= 0) json["eos_token_id"] = special.eos;
  if (special.pad >= 0) json["pad_token_id"] = special.pad;
  return json.dump(2) + "\n";
}

}  // namespace octet
