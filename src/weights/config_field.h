// Fields of a quantization_config, which is refused by the name and value of what is not run.
#pragma once

#include <string>

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

}  // namespace octet
