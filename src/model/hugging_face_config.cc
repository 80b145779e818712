#include <algorithm>

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

}  // namespace

ModelConfig parse_hugging_face_config(const std::string& json_text, const std::string& where) {
  Json json = parse(json_text, where);
  ConfigFields fields = ConfigFields::reader(json, where);
  std::string type;
  fields.optional({"model_type"}, type);
  const Family& family = family_of(type, where + ": model_type");
  ModelConfig config = model_family(type);
  family.fields(fields, config);
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
    if (std::find(eos.begin(), eos.end(), id) == eos.end()) eos.push_back(id);
}

SpecialTokens parse_special_tokens(const std::string& json_text, const std::string& where) {
  Json json = parse(json_text, where);
  auto ids = [&](const char* key) {  // one id or a list of them
    std::vector<int64_t> found;
    const Json value = json.value(key, Json());
    for (const Json& id : value.is_array() ? value : Json::array({value}))
      if (id.is_number_integer() && id.get<int64_t>() >= 0) found.push_back(id.get<int64_t>());
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
               {"architectures", {family.class_name}},
               {"dtype", dtype},
               {"torch_dtype", dtype},  // read by transformers < 5
               {"use_cache", true}};
  ModelConfig written = config;  // every size spelled out
  written.kv_heads = config.kv_head_count(), written.head_dim = config.head_size();
  written.intermediate = config.intermediate_size();
  ConfigFields fields = ConfigFields::writer(json);
  family.fields(fields, written);
  // null where there is none: the defaults of transformers' classes are ids of one published vocabulary.
  const auto id_or_null = [](int64_t id) { return id >= 0 ? Json(id) : Json(nullptr); };
  json["bos_token_id"] = id_or_null(special.bos);
  json["eos_token_id"] =
      special.eos.size() > 1 ? Json(special.eos) : id_or_null(special.eos.empty() ? -1 : special.eos[0]);
  json["pad_token_id"] = id_or_null(special.pad);
  return json.dump(2) + "\n";
}

}  // namespace octet
