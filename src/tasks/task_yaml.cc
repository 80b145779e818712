#include "tasks/task_yaml.h"

#include <yaml-cpp/yaml.h>

#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/file.h"

namespace octet {

using nlohmann::ordered_json;

namespace {

constexpr int64_t kMaxFileBytes = 16 << 20;
constexpr int kMaxDepth = 64, kMaxIncludes = 16;

bool is_one_of(const std::string& text, std::initializer_list<std::string_view> words) {
  for (std::string_view word : words) {
    if (text.size() != word.size()) continue;
    std::string lower = text, upper = text;
    for (char& c : lower) c = static_cast<char>(std::tolower(c));
    for (char& c : upper) c = static_cast<char>(std::toupper(c));
    std::string capital = lower;
    capital[0] = upper[0];
    if (lower == word && (text == lower || text == upper || text == capital)) return true;
  }
  return false;
}

template <typename T>
bool number_of(const std::string& text, T& number) {
  const char *first = text.data() + (text[0] == '+' ? 1 : 0), *last = text.data() + text.size();
  const auto [end, error] = std::from_chars(first, last, number);
  return error == std::errc() && end == last;
}

// A plain scalar. Numbers with an exponent want a dot, as PyYAML does.
ordered_json plain(const std::string& text) {
  if (text.empty() || text == "~" || is_one_of(text, {"null"})) return nullptr;
  if (is_one_of(text, {"true", "yes", "on"})) return true;
  if (is_one_of(text, {"false", "no", "off"})) return false;
  const bool numeric = text.find_first_not_of("+-.0123456789eE") == std::string::npos;
  int64_t whole = 0;
  double real = 0;
  if (numeric && number_of(text, whole)) return whole;
  if (numeric && text.find('.') != std::string::npos && number_of(text, real)) return real;
  return text;
}

ordered_json convert(const YAML::Node& node, const std::string& where, const std::string& name, int depth) {
  const auto line = [&] { return node.Mark().line + 1; };
  check(depth < kMaxDepth, ErrorCode::kInvalidArgument, "{}:{}: nested deeper than {} levels", where, line(),
        kMaxDepth);
  const std::string tag = node.IsDefined() && !node.IsNull() ? node.Tag() : "";
  check(tag != "!function", ErrorCode::kInvalidArgument,
        "{}:{}: {}: !function {}: hooks in Python are not run (docs/evaluation.md tells how the harness itself runs "
        "such a task against octet serve)",
        where, line(), name, node.IsScalar() ? node.Scalar() : "");
  check(tag.empty() || tag == "?" || tag == "!" || tag.starts_with("tag:yaml.org"), ErrorCode::kInvalidArgument,
        "{}:{}: {}: unknown tag {}", where, line(), name, tag);
  if (node.IsScalar())
    return tag == "!" || tag == "tag:yaml.org,2002:str" ? ordered_json(node.Scalar()) : plain(node.Scalar());
  if (node.IsSequence()) {
    ordered_json list = ordered_json::array();
    for (const YAML::Node& item : node) list.push_back(convert(item, where, name, depth + 1));
    return list;
  }
  if (!node.IsMap()) return nullptr;
  ordered_json map = ordered_json::object();
  for (const auto& member : node) {
    const YAML::Node &key = member.first, &value = member.second;
    const std::string text = key.IsScalar() ? key.Scalar() : "";
    check(key.IsScalar(), ErrorCode::kInvalidArgument, "{}:{}: a key that is a list or map", where,
          key.Mark().line + 1);
    check(!map.contains(text), ErrorCode::kInvalidArgument, "{}:{}: '{}' stands there twice", where,
          key.Mark().line + 1, text);
    map[text] = convert(value, where, name.empty() ? text : name + "." + text, depth + 1);
  }
  return map;
}

ordered_json read(const std::string& path, int included) {
  check(!is_folder(path), ErrorCode::kInvalidArgument, "{}: is a folder; want a task file", path);
  check(included < kMaxIncludes, ErrorCode::kInvalidArgument, "{}: more than {} files that include each other", path,
        kMaxIncludes);
  ordered_json own = parse_task_yaml(read_file(path, kMaxFileBytes), path);
  if (!own.contains("include")) return own;
  const ordered_json includes = own["include"].is_array() ? own["include"] : ordered_json::array({own["include"]});
  own.erase("include");
  ordered_json merged = ordered_json::object();
  for (const ordered_json& include : includes) {
    check(include.is_string(), ErrorCode::kInvalidArgument, "{}: include: {} (want a file)", path, include.dump());
    const auto& file = include.get_ref<const std::string&>();
    merged.update(read(file.starts_with('/') ? file : parent_folder(path) + "/" + file, included + 1));
  }
  merged.update(own);
  return merged;
}

}  // namespace

ordered_json parse_task_yaml(const std::string& text, const std::string& where) {
  try {
    const YAML::Node root = YAML::Load(text);
    check(root.IsMap(), ErrorCode::kInvalidArgument, "{}: want lines of the form 'name: value'", where);
    return convert(root, where, "", 0);
  } catch (const YAML::Exception& error) {
    fail(ErrorCode::kInvalidArgument, "{}:{}: not valid YAML: {}", where, error.mark.line + 1, error.msg);
  }
}

ordered_json read_task_yaml(const std::string& path) { return read(path, 0); }

}  // namespace octet
