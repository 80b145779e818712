#include "base/json.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <vector>

#include "base/error.h"

namespace octet {
namespace {

constexpr int kMaxDepth = 512;
constexpr size_t kQuotedBytes = 120;  // of a value shown in a message

}  // namespace

template <class Json>
Json parse_json(std::string_view text, const std::string& where, bool unique_keys) {
  std::vector<std::set<std::string>> keys;
  auto watch = [&](int depth, typename Json::parse_event_t event, Json& value) {
    check(depth <= kMaxDepth, ErrorCode::kCorrupt, "{}: JSON nests deeper than {} levels", where, kMaxDepth);
    if (!unique_keys) return true;
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key)
      check(keys.back().insert(value.template get<std::string>()).second, ErrorCode::kCorrupt,
            "{}: the name '{}' occurs twice", where, value.template get<std::string>());
    return true;
  };
  const auto parse = [&](std::string_view of) {
    keys.clear();
    return Json::parse(of.begin(), of.end(), watch);
  };
  try {
    try {
      return parse(text);
    } catch (const nlohmann::json::out_of_range& error) {
      if (error.id != kNumberOverflow) throw;
      return parse(with_finite_numbers(text));
    }
  } catch (const nlohmann::json::exception& error) {
    const std::string_view why = error.what();  // behind the library's name of its exception
    fail(ErrorCode::kCorrupt, "{}: not valid JSON: {}", where, why.substr(why.find("] ") + 2));
  }
}

template nlohmann::json parse_json(std::string_view text, const std::string& where, bool unique_keys);
template nlohmann::ordered_json parse_json(std::string_view text, const std::string& where, bool unique_keys);

std::string with_finite_numbers(std::string_view text) {
  std::string out;
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = at + 1;
    if (text[at] == '"') {
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, text.size());
    } else if (text[at] == '-' || (text[at] >= '0' && text[at] <= '9')) {
      end = std::min(text.find_first_not_of("0123456789+-.eE", at), text.size());
      if (std::isinf(std::strtod(std::string(text.substr(at, end - at)).c_str(), nullptr))) {
        out += text[at] == '-' ? "-1.7976931348623157e308" : "1.7976931348623157e308";
        continue;
      }
    }
    out.append(text.substr(at, end - at));
  }
  return out;
}

void fail_json_member(const nlohmann::json& object, const char* key, const std::string& where) {
  const bool present = object.is_object() && object.contains(key);
  std::string found = (present ? object.at(key) : object).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (found.size() > kQuotedBytes) found = found.substr(0, kQuotedBytes) + "...";
  fail(ErrorCode::kCorrupt, "{}: member '{}' is {}: {}", where, key, present ? "of the wrong type" : "missing in",
       found);
}

}  // namespace octet
