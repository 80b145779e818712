// Fields of a quantization_config, which is refused by the name and value of what is not run.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace octet {

// A field of the configuration, with the path that errors name.
struct ConfigField {
  const nlohmann::json& json;
  std::string path;

  ConfigField operator[](const char* key) const {
    static const nlohmann::json kNull;
    const auto it = json.is_object() ? json.find(key) : json.end();
    return {json.is_object() && it != json.end() ? *it : kNull, path + "." + key};
  }
  [[noreturn]] void refuse(const std::string& supported) const {
    fail(ErrorCode::kUnsupported, "{} is {} (supported: {})", path, json.dump(), supported);
  }
  void want(const nlohmann::json& value) const {
    if (json != value) refuse(value.dump());
  }
  void want_absent_or(const nlohmann::json& value) const {
    if (!json.is_null() && json != value) refuse(value.dump());
  }
  std::string text() const { return json.is_string() ? json.get<std::string>() : ""; }
};

inline constexpr const char *kField = "quantization_config", *kOlderField = "compression_config";

// Of config.json, the field by its name or by its older one; null where there is none.
inline ConfigField quantization_field(const nlohmann::json& config, const std::string& where) {
  const ConfigField whole{config, where + ": "};
  const char* name = whole[kField].json.is_null() && !whole[kOlderField].json.is_null() ? kOlderField : kField;
  return {whole[name].json, where + ": " + name};
}

// The groups of compressed-tensors: fn(group, its targets), of a format that is run.
template <typename Fn>
void for_groups(const ConfigField& config, std::initializer_list<const char*> formats, const Fn& fn) {
  const auto check_format = [&](const ConfigField& format) {
    if (!format.json.is_null() && std::ranges::find(formats, format.text()) == formats.end())
      format.refuse("float-quantized, int-quantized, naive-quantized, pack-quantized");
  };
  check_format(config["format"]);
  const ConfigField groups = config["config_groups"];
  if (!groups.json.is_object() || groups.json.empty()) groups.refuse("one group or more");
  for (const auto& item : groups.json.items()) {
    const ConfigField group{item.value(), groups.path + "." + item.key()}, targets = group["targets"];
    const bool names = targets.json.is_array() &&
                       std::ranges::all_of(targets.json, [](const nlohmann::json& name) { return name.is_string(); });
    if (!names) targets.refuse("a list of names");
    check_format(group["format"]);
    fn(group, targets.json.get<std::vector<std::string>>());
  }
}

// compressed-tensors: weights that are neither sparse nor transformed.
inline void want_dense(const ConfigField& config) {
  for (const char* key : {"sparsity_config", "transform_config"}) {
    const ConfigField field = config[key];
    const bool dense = key == std::string("sparsity_config") && field["format"].text() == "dense";
    if (!field.json.is_null() && !field.json.empty() && !dense) field.refuse("none");
  }
}

}  // namespace octet
