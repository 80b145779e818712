#include "serve/fields.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/json_cost.h"

namespace octet::serve {
namespace {

constexpr int kMaxDepth = 64;

std::string shown(const nlohmann::ordered_json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::string shortened(std::string text, size_t most) {
  if (text.size() <= most) return text;
  return text.substr(0, most / 2) + " ... " + text.substr(text.size() - most / 2);
}

}  // namespace

ApiError::ApiError(std::string message, std::string field, int status, std::string code)
    : message_(shortened(std::move(message), 2000)),
      field_(shortened(std::move(field), 200)),
      code_(std::move(code)),
      status_(status) {}

std::string error_body(const ApiError& error) {
  const char* type = error.status() == 401   ? "authentication_error"
                     : error.status() == 403 ? "permission_error"
                     : error.status() == 404 ? "not_found_error"
                     : error.status() == 429 ? "rate_limit_error"
                     : error.status() >= 500 ? "server_error"
                                             : "invalid_request_error";
  nlohmann::ordered_json body = {
      {"message", error.what()}, {"type", type}, {"param", nullptr}, {"code", error.status()}};
  if (!error.field().empty()) body["param"] = error.field();
  if (!error.code().empty()) body["code"] = error.code();
  return nlohmann::ordered_json{{"error", body}}.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json parse_body(std::string_view body) {
  try {
    check_json_cost(body, "the body", kMaxDepth);  // before the parser, which goes as deep as it is led
    nlohmann::ordered_json json = parse_json<nlohmann::ordered_json>(body, "the body", /*unique_keys=*/true);
    if (!json.is_object()) throw ApiError("the body is not a JSON object");
    return json;
  } catch (const Error& error) {
    throw ApiError(error.message());
  }
}

Fields::Fields(const nlohmann::ordered_json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object())
    throw ApiError(fmt::format("{} is {} (want an object)", path_.substr(0, path_.size() - 1), shown(object)),
                   path_.substr(0, path_.size() - 1));
}

void Fields::fail(const char* key, const std::string& message) const {
  const std::string name = name_of(key);
  const auto found = object_.find(key);
  throw ApiError(fmt::format("{} is {} ({})", name, found != object_.end() ? shown(*found) : "missing", message), name);
}

const nlohmann::ordered_json* Fields::find(const char* key) {
  known_.insert(key);
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null() ? &*found : nullptr;
}

std::optional<std::string> Fields::text(const char* key) {
  const nlohmann::ordered_json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(key, "want a string");
  return value->get<std::string>();
}

std::optional<bool> Fields::flag(const char* key) {
  const nlohmann::ordered_json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail(key, "want true or false");
  return value->get<bool>();
}

std::optional<int64_t> Fields::integer(const char* key, int64_t min, int64_t max) {
  const nlohmann::ordered_json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const bool whole = value->is_number_integer() ||
                     (value->is_number_float() && value->get<double>() == std::floor(value->get<double>()));
  const double about = whole ? value->get<double>() : 0;
  if (!whole || about < static_cast<double>(min) || about > static_cast<double>(max) || about >= 0x1p63)
    fail(key, max == std::numeric_limits<int64_t>::max() ? fmt::format("want a whole number of at least {}", min)
                                                         : fmt::format("want a whole number from {} to {}", min, max));
  return value->get<int64_t>();
}

std::optional<double> Fields::number(const char* key, double min, double max) {
  const nlohmann::ordered_json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !(value->get<double>() >= min) || !(value->get<double>() <= max))
    fail(key, fmt::format("want a number from {} to {}", min, max));
  return value->get<double>();
}

std::vector<std::string> Fields::texts(const char* key, size_t most) {
  const nlohmann::ordered_json* value = find(key);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  std::vector<std::string> list;
  if (!value->is_array() || value->size() > most) fail(key, fmt::format("want a string or at most {} strings", most));
  for (const nlohmann::ordered_json& item : *value) {
    if (!item.is_string()) fail(key, fmt::format("want a string or at most {} strings", most));
    list.push_back(item.get<std::string>());
  }
  return list;
}

std::vector<int64_t> Fields::integers(const char* key, int64_t min, int64_t max, size_t most) {
  const nlohmann::ordered_json* value = find(key);
  if (value == nullptr) return {};
  std::vector<int64_t> list;
  const auto want = [&] { return fmt::format("want at most {} whole numbers from {} to {}", most, min, max); };
  if (!value->is_array() || value->size() > most) fail(key, want());
  for (const nlohmann::ordered_json& item : *value) {
    if (!item.is_number_integer() || item.get<double>() < static_cast<double>(min) ||
        item.get<double>() > static_cast<double>(max))
      fail(key, want());
    list.push_back(item.get<int64_t>());
  }
  return list;
}

void Fields::refuse(const char* key, const char* why, const char* harmless) {
  const nlohmann::ordered_json* value = find(key);
  if (value == nullptr || *value == false || value->dump() == harmless) return;
  fail(key, why);
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : object_.items())
    if (!known_.contains(key)) names.push_back(path_ + key);
  return names;
}

}  // namespace octet::serve
