#include "model/families.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace octet {

// Each in families/<family>.cc.
Family gpt2_family(), gpt_bigcode_family(), gptj_family(), gpt_neox_family(), opt_family(), bloom_family();
Family falcon_family(), mpt_family(), phi_family(), llama_family(), mistral_family(), qwen2_family(), qwen3_family();
Family gemma_family(), glm_family(), glm4_family(), mixtral_family(), olmoe_family(), qwen2_moe_family(),
    qwen3_moe_family();
Family bert_family(), roberta_family(), xlm_roberta_family();

namespace {

const std::vector<Family>& families() {
  static const std::vector<Family> rows = {
      gpt2_family(),      gpt_bigcode_family(), gptj_family(), gpt_neox_family(), opt_family(),        bloom_family(),
      falcon_family(),    mpt_family(),         phi_family(),  llama_family(),    mistral_family(),    qwen2_family(),
      qwen3_family(),     gemma_family(),       glm_family(),  glm4_family(),     mixtral_family(),    olmoe_family(),
      qwen2_moe_family(), qwen3_moe_family(),   bert_family(), roberta_family(),  xlm_roberta_family()};
  return rows;
}

}  // namespace

const Family& family_of(const std::string& name, const std::string& field) {
  for (const Family& family : families())
    if (name == family.name) return family;
  std::vector<std::string> names = architectures();
  std::ranges::copy(encoder_architectures(), std::back_inserter(names));
  fail(ErrorCode::kUnsupported, "{} \"{}\" is not one of {}{}", field, name, fmt::join(names, ", "),
       if_near(name, names, " (nearest: {})"));
}

namespace {

std::vector<std::string> names_of(bool causal) {
  std::vector<std::string> names;
  for (const Family& family : families())
    if (family.facts.causal == causal) names.emplace_back(family.name);
  return names;
}

}  // namespace

std::vector<std::string> architectures() { return names_of(true); }
std::vector<std::string> encoder_architectures() { return names_of(false); }

ModelConfig model_family(const std::string& architecture) {
  const Family& family = family_of(architecture);
  ModelConfig config = family.facts;
  config.architecture = family.name;
  return config;
}

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

namespace {

// Beyond its range a number would wrap.
bool fits_int64(const Json& json) {
  return json.is_number_integer() && (!json.is_number_unsigned() || json.get<uint64_t>() <= INT64_MAX);
}

}  // namespace

template <typename T>
bool ConfigFields::read(Names names, T& value) const {
  const char* name = nullptr;
  const Json* json = find(names, &name);
  if (json == nullptr) return false;
  bool fits =
      std::is_same_v<T, bool>          ? json->is_boolean()
      : std::is_same_v<T, int64_t>     ? fits_int64(*json)
      : std::is_same_v<T, std::string> ? json->is_string()
      : std::is_same_v<T, std::vector<std::string>>
          ? json->is_array() && std::all_of(json->begin(), json->end(), [](const Json& x) { return x.is_string(); })
      : std::is_same_v<T, std::vector<int64_t>> ? json->is_array() && std::ranges::all_of(*json, fits_int64)
                                                : json->is_number();
  check(fits, ErrorCode::kCorrupt, "{}: \"{}\" is {}, of the wrong type", where_, name, json->dump());
  value = json->get<T>();
  return true;
}

template <typename T>
bool ConfigFields::optional(Names names, T& value) {
  if (reading()) return read(names, value);
  (*to_)[*names.begin()] = value;
  return true;
}
template bool ConfigFields::optional(Names, int64_t&);
template bool ConfigFields::optional(Names, double&);
template bool ConfigFields::optional(Names, bool&);
template bool ConfigFields::optional(Names, std::string&);
template bool ConfigFields::optional(Names, std::vector<std::string>&);
template bool ConfigFields::optional(Names, std::vector<int64_t>&);

void ConfigFields::required(Names names, int64_t& value) {
  check(optional(names, value), ErrorCode::kCorrupt, "{}: \"{}\" is missing", where_, *names.begin());
}

void ConfigFields::nullable(Names names, int64_t& value) {
  if (!reading()) {
    (*to_)[*names.begin()] = value != 0 ? Json(value) : Json(nullptr);
    return;
  }
  if (read(names, value)) {
    check(value != 0, ErrorCode::kCorrupt, "{}: \"{}\" is 0 (want a positive number, or null for the usual)", where_,
          *names.begin());
  } else if (std::ranges::any_of(names, [&](const char* name) { return from_->contains(name); })) {
    value = 0;
  }
}

void ConfigFields::dropout(Names names, double& value) {
  optional({*names.begin()}, value);
  for (const char* name : names)
    if (!reading()) (*to_)[name] = value;
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

void ConfigFields::labels(int64_t& count) {
  if (!reading()) {
    Json& names = (*to_)["id2label"] = Json::object();
    for (int64_t i = 0; i < count; ++i) names[std::to_string(i)] = "LABEL_" + std::to_string(i);
    return;
  }
  const char* found = nullptr;
  const Json* names = find({"id2label"}, &found);
  check(names == nullptr || names->is_object(), ErrorCode::kCorrupt, "{}: \"id2label\" is {}, of the wrong type",
        where_, names == nullptr ? "" : names->dump());
  count = names != nullptr ? std::ssize(*names) : 2;
  optional({"num_labels"}, count);
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

// What rope_parameters says.
struct ConfigFields::Rotary {
  RopeOptions rope;
  double partial = 1;
  std::string type = "default";
  bool operator==(const Rotary&) const = default;
};

void ConfigFields::rope_parameters(Rotary& rotary, bool partial) {
  RopeOptions& rope = rotary.rope;
  const auto required = [&](const char* name, double& value) {
    check(optional({name}, value), ErrorCode::kCorrupt, "{}: \"{}\" is missing beside rope_type \"{}\"", where_, name,
          rotary.type);
  };
  optional({"rope_theta"}, rope.theta);
  optional({"rope_type", "type"}, rotary.type);
  if (partial) optional({"partial_rotary_factor"}, rotary.partial);
  if (rotary.type == "default") return;
  if (rotary.type != "linear" && rotary.type != "llama3" && rotary.type != "yarn")
    refuse("rope_type", '"' + rotary.type + '"', "default, linear, llama3, yarn");
  rope.scaling = rotary.type;
  required("factor", rope.factor);
  if (rotary.type == "yarn") return yarn_parameters(rope);
  if (rotary.type != "llama3") return;
  required("low_freq_factor", rope.low_freq_factor);
  required("high_freq_factor", rope.high_freq_factor);
  optional({"original_max_position_embeddings"}, rope.original_max_positions);
}

// How far attention is sharpened follows from the factor (arXiv 2309.00071, equation 22) where it is not given.
void ConfigFields::yarn_parameters(RopeOptions& rope) {
  if (reading()) rope.low_freq_factor = 1, rope.high_freq_factor = 32;
  optional({"beta_slow"}, rope.low_freq_factor);
  optional({"beta_fast"}, rope.high_freq_factor);
  optional({"truncate"}, rope.truncate);
  optional({"original_max_position_embeddings"}, rope.original_max_positions);
  double mscale = 0, of_all = 0;
  if (reading()) {
    optional({"mscale"}, mscale), optional({"mscale_all_dim"}, of_all);
    if (mscale == 0 || of_all == 0) mscale = 1, of_all = 0;
    const auto sharper = [&](double by) { return rope.factor <= 1 ? 1 : 0.1 * by * std::log(rope.factor) + 1; };
    rope.attention_factor = sharper(mscale) / sharper(of_all);
  }
  optional({"attention_factor"}, rope.attention_factor);
}

// transformers >= 5 keeps all in rope_parameters; before: the base and the partial factor beside rope_scaling. Where
// the original length of llama3 or yarn is not given, it is max_position_embeddings. Files of yarn often name the
// original length there too: the model's is what its factor makes of that.
void ConfigFields::rope(ModelConfig& c, const char* theta_name, const char* partial_name, double partial) {
  const auto head_dim = static_cast<double>(c.heads > 0 ? c.head_size() : 0);
  const bool has_partial = partial_name != nullptr;
  Rotary rotary{.rope = c.rope, .partial = partial};
  if (!reading()) {
    const auto turned = static_cast<double>(c.rotary_size());
    rotary.partial = turned / head_dim;
    if (std::floor(rotary.partial * head_dim) < turned) rotary.partial = std::nextafter(rotary.partial, 1.0);
    if (c.rope.scaling != "none") rotary.type = c.rope.scaling;
  } else {
    rotary.rope.original_max_positions = c.max_positions;
  }
  optional({theta_name}, rotary.rope.theta);
  if (has_partial) optional({partial_name}, rotary.partial);
  if (!reading()) {
    if (rotary.type != "default") nested("rope_scaling").rope_parameters(rotary, has_partial);
    return nested("rope_parameters").rope_parameters(rotary, has_partial);
  }
  const auto given = [&](const char* name) {
    const char* found = nullptr;
    const Json* json = find({name}, &found);
    return json != nullptr && !json->empty();
  };
  Rotary scaling = rotary;
  nested("rope_parameters").rope_parameters(rotary, has_partial);
  if (given("rope_scaling")) {
    nested("rope_scaling").rope_parameters(scaling, has_partial);
    if (given("rope_parameters") && scaling != rotary)
      fail(ErrorCode::kUnsupported, "{}: rope_scaling is {}, rope_parameters {}: remove the one that is not meant",
           where_, from_->at("rope_scaling").dump(), from_->at("rope_parameters").dump());
    rotary = scaling;
  }
  if (rotary.type == "llama3" || rotary.type == "yarn")  // precedes the one inside
    optional({"original_max_position_embeddings"}, rotary.rope.original_max_positions);
  c.rope = rotary.rope;
  if (rotary.type == "yarn") {
    const double reach = c.rope.factor * static_cast<double>(c.rope.original_max_positions);
    c.max_positions = std::max(c.max_positions, static_cast<int64_t>(std::min(reach, 1e15)));
  }
  if (!has_partial) return;
  check(rotary.partial >= 0 && rotary.partial <= 1, ErrorCode::kCorrupt,
        "{}: partial_rotary_factor {} (want 0 <= factor <= 1)", where_, rotary.partial);
  c.rope.rotary_dim = rotary.partial < 1 ? static_cast<int64_t>(rotary.partial * head_dim) : RopeOptions::kWholeHead;
}

}  // namespace octet
