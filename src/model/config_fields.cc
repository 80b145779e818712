#include "model/config_fields.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace octet {

using Json = nlohmann::json;

ConfigFields ConfigFields::reader(const Json& json, const std::string& where) { return {&json, nullptr, where}; }
ConfigFields ConfigFields::writer(Json& json) { return {nullptr, &json, "config.json"}; }

const Json* ConfigFields::find(Names names, const char** found) const {
  for (const char* name : names) {
    auto it = from_->find(name);
    if (it == from_->end() || it->is_null()) continue;
    *found = name;
    return &*it;
  }
  return nullptr;
}

template <typename T>
bool ConfigFields::read(Names names, T& value) const {
  const char* name = nullptr;
  const Json* json = find(names, &name);
  if (json == nullptr) return false;
  bool fits = std::is_same_v<T, bool>          ? json->is_boolean()
              : std::is_same_v<T, int64_t>     ? json->is_number_integer()
              : std::is_same_v<T, std::string> ? json->is_string()
                                               : json->is_number();
  check(fits, ErrorCode::kCorrupt, "{}: \"{}\" is {}, of the wrong type", where_, name, json->dump());
  value = json->get<T>();
  return true;
}

template <typename T>
void ConfigFields::exchange(Names names, T& value) {
  if (reading()) {
    read(names, value);
  } else {
    (*to_)[*names.begin()] = value;
  }
}

void ConfigFields::required(Names names, int64_t& value) {
  if (!reading()) return exchange(names, value);
  check(read(names, value), ErrorCode::kCorrupt, "{}: \"{}\" is missing", where_, *names.begin());
}

void ConfigFields::optional(Names names, int64_t& value) { exchange(names, value); }
void ConfigFields::optional(Names names, double& value) { exchange(names, value); }
void ConfigFields::optional(Names names, bool& value) { exchange(names, value); }
void ConfigFields::optional(Names names, std::string& value) { exchange(names, value); }

void ConfigFields::nullable(Names names, int64_t& value) {
  if (reading() || value != 0) return exchange(names, value);
  (*to_)[*names.begin()] = nullptr;
}

void ConfigFields::dropout(Names names, double& value) {
  if (reading()) return exchange({*names.begin()}, value);
  for (const char* name : names) (*to_)[name] = value;
}

void ConfigFields::activation(Names names, Activation& value, const char* tanh_name) {
  struct Name {
    const char* name;
    Activation activation;
  };
  const Name known[] = {{tanh_name, Activation::kGeluTanh},   {"gelu_new", Activation::kGeluTanh},
                        {"gelu_fast", Activation::kGeluTanh}, {"gelu_pytorch_tanh", Activation::kGeluTanh},
                        {"gelu", Activation::kGelu},          {"relu", Activation::kRelu},
                        {"silu", Activation::kSilu},          {"swish", Activation::kSilu}};
  if (!reading()) {
    for (const Name& row : known)
      if (row.activation == value) {
        (*to_)[*names.begin()] = row.name;
        return;
      }
  }
  std::string text;
  if (!read(names, text)) return;
  for (const Name& row : known)
    if (text == row.name) {
      value = row.activation;
      return;
    }
  refuse(*names.begin(), '"' + text + '"', "gelu_new, gelu_pytorch_tanh, gelu, relu, silu");
}

void ConfigFields::refuse(const char* name, const std::string& value, const std::string& runs) const {
  fail(ErrorCode::kUnsupported, "{}: \"{}\": {} is not supported (supported: {})", where_, name, value, runs);
}

template <typename T>
void ConfigFields::only_value(const char* name, const T& value) {
  if (!reading()) {
    (*to_)[name] = value;
    return;
  }
  const char* found = nullptr;
  const Json* json = find({name}, &found);
  if (json != nullptr && *json != Json(value)) refuse(name, json->dump(), Json(value).dump());
}

void ConfigFields::only(const char* name, bool value) { only_value(name, value); }
void ConfigFields::only(const char* name, int64_t value) { only_value(name, value); }
void ConfigFields::only(const char* name, double value) { only_value(name, value); }
void ConfigFields::only(const char* name, const char* value) { only_value(name, std::string(value)); }

void ConfigFields::only_null(const char* name) {
  if (!reading()) {
    (*to_)[name] = nullptr;
    return;
  }
  const char* found = nullptr;
  if (const Json* json = find({name}, &found)) refuse(name, json->dump(), "null");
}

ConfigFields ConfigFields::nested(const char* name) {
  static const Json kEmpty = Json::object();
  if (!reading()) return writer((*to_)[name] = Json::object());
  const char* found = nullptr;
  const Json* json = find({name}, &found);
  if (json == nullptr) return reader(kEmpty, where_);
  check(json->is_object(), ErrorCode::kCorrupt, "{}: \"{}\" is {}, of the wrong type", where_, name, json->dump());
  return reader(*json, where_ + ": " + name);
}

// transformers >= 5 keeps all in rope_parameters; before: the base and the partial factor beside rope_scaling.
void ConfigFields::rope(ModelConfig& c, const char* theta_name, const char* partial_name, double partial) {
  RopeOptions& rope = c.rope;
  int64_t head_dim = c.heads > 0 ? c.head_size() : 0;
  if (!reading()) {
    partial = rope.rotary_dim > 0 ? static_cast<double>(rope.rotary_dim) / static_cast<double>(head_dim) : 1.0;
  }
  std::string type = rope.scaling == "none" ? "default" : rope.scaling;
  double factor = reading() ? 0 : rope.factor;  // 0: not there
  const auto parameters = [&](ConfigFields fields) {
    fields.optional({"rope_theta"}, rope.theta);
    fields.optional({"rope_type", "type"}, type);
    if (partial_name != nullptr) fields.optional({"partial_rotary_factor"}, partial);
    if (type == "default") return;
    fields.optional({"factor"}, factor);
    if (type != "llama3") return;
    fields.optional({"low_freq_factor"}, rope.low_freq_factor);
    fields.optional({"high_freq_factor"}, rope.high_freq_factor);
    fields.optional({"original_max_position_embeddings"}, rope.original_max_positions);
  };
  optional({theta_name}, rope.theta);
  if (partial_name != nullptr) optional({partial_name}, partial);
  if (reading() || type != "default") parameters(nested("rope_scaling"));
  const std::string scaled = type;
  const double scaled_factor = factor;
  parameters(nested("rope_parameters"));
  if (!reading()) return;
  check(scaled == "default" || (scaled == type && scaled_factor == factor), ErrorCode::kUnsupported,
        "{}: rope_scaling says {} by {}, rope_parameters {} by {}: remove the one that is not meant", where_, scaled,
        scaled_factor, type, factor);
  if (type != "default" && type != "linear" && type != "llama3")
    refuse("rope_type", '"' + type + '"', "default, linear, llama3");
  rope.scaling = type == "default" ? "none" : type;
  if (type != "default") rope.factor = factor;  // validate() refuses 0
  check(partial > 0 && partial <= 1, ErrorCode::kCorrupt, "{}: partial_rotary_factor {} (want 0 < factor <= 1)", where_,
        partial);
  auto turned = static_cast<int64_t>(std::floor(partial * static_cast<double>(head_dim) + 1e-6));
  rope.rotary_dim = turned < head_dim ? turned : 0;
}

}  // namespace octet
