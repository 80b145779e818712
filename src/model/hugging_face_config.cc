#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/config_fields.h"
#include "model/hugging_face.h"

namespace octet {
namespace {

using Json = nlohmann::json;

Json parse(const std::string& text, const std::string& where) {
  try {
    Json json = Json::parse(text);
    check(json.is_object(), ErrorCode::kCorrupt, "{}: not a JSON object", where);
    return json;
  } catch (const Json::parse_error& error) {
    fail(ErrorCode::kCorrupt, "{}: not valid JSON: {}", where, error.what());
  }
}

const HuggingFaceFamily& find_family(const std::string& type, const std::string& where) {
  for (auto families : {layer_norm_families(), rms_norm_families()})
    for (const HuggingFaceFamily& family : families)
      if (type == family.model_type) return family;
  fail(ErrorCode::kUnsupported, "{}: model_type \"{}\" (supported: {})", where, type, fmt::join(architectures(), ", "));
}

}  // namespace

ModelConfig parse_hugging_face_config(const std::string& json_text, const std::string& where) {
  Json json = parse(json_text, where);
  ConfigFields fields = ConfigFields::reader(json, where);
  std::string type;
  fields.optional({"model_type"}, type);
  const HuggingFaceFamily& family = find_family(type, where);
  ModelConfig config = model_family(type);
  family.fields(fields, config);
  try {
    validate(config);
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", where, error.message());
  }
  return config;
}

ModelConfig eager_reference(const ModelConfig& config) {
  ModelConfig reference = config;
  if (config.architecture == "falcon" && config.positions == Positions::kAlibi) reference.alibi_scale *= 2;
  return reference;
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

std::string to_hugging_face_config(const ModelConfig& config, const SpecialTokens& special, const std::string& dtype) {
  const HuggingFaceFamily& family = find_family(config.architecture, "config.json");
  Json json = {{"model_type", family.model_type},
               {"architectures", {family.class_name}},
               {"dtype", dtype},
               {"torch_dtype", dtype},  // read by transformers < 5
               {"use_cache", true}};
  ModelConfig written = config;
  ConfigFields fields = ConfigFields::writer(json);
  family.fields(fields, written);
  if (special.bos >= 0) json["bos_token_id"] = special.bos;
  if (special.eos >= 0) json["eos_token_id"] = special.eos;
  if (special.pad >= 0) json["pad_token_id"] = special.pad;
  return json.dump(2) + "\n";
}

}  // namespace octet
