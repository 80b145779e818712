// YAML in and out of the settings table; the only file that includes yaml-cpp. Nested maps become dotted names. Errors
// in a file are reported as file:line.
#include <yaml-cpp/yaml.h>

#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/settings.h"

namespace octet {
namespace {

constexpr int kMaxDepth = 16;  // an alias inside its own anchor would recurse for ever
constexpr int64_t kMaxFileBytes = 16 << 20;

struct Entry {
  std::string name;
  std::string where;
  YAML::Node value;
};

void flatten(const YAML::Node& map, const std::string& prefix, const std::string& source, int depth,
             std::vector<Entry>* entries) {
  check(depth <= kMaxDepth, ErrorCode::kInvalidArgument, "{}: settings nest deeper than {} levels", source, kMaxDepth);
  for (const auto& item : map) {
    std::string where = source + ":" + std::to_string(item.first.Mark().line + 1);
    check(item.first.IsScalar(), ErrorCode::kInvalidArgument, "{}: a setting's name must be plain text", where);
    std::string name = prefix.empty() ? item.first.Scalar() : prefix + "." + item.first.Scalar();
    if (item.second.IsMap())
      flatten(item.second, name, source, depth + 1, entries);
    else
      entries->push_back({name, where, item.second});
  }
}

}  // namespace

void SettingsTable::load_yaml_file(const std::string& path) {
  check(!is_folder(path), ErrorCode::kInvalidArgument, "{}: is a folder; want a settings file", path);
  load_yaml_text(read_file(path, kMaxFileBytes), path);
}

void SettingsTable::load_yaml_text(const std::string& text, const std::string& where) {
  std::vector<Entry> entries;
  try {
    YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return;
    check(root.IsMap(), ErrorCode::kInvalidArgument, "{}: want lines of the form 'name: value'", where);
    flatten(root, "", where, 1, &entries);
  } catch (const YAML::Exception& error) {
    fail(ErrorCode::kInvalidArgument, "{}:{}: not valid YAML: {}", where, error.mark.line + 1, error.msg);
  }
  std::set<std::string> seen;
  for (const Entry& entry : entries) {
    check(seen.insert(entry.name).second, ErrorCode::kInvalidArgument, "{}: '{}' is set twice in this file",
          entry.where, entry.name);
    const Row* row = find(entry.name);
    if (row && entry.value.IsSequence()) {
      auto* list = std::get_if<std::vector<std::string>*>(&row->target);
      check(list != nullptr, ErrorCode::kInvalidArgument, "{}: '{}' takes one value, not a list", entry.where,
            entry.name);
      std::vector<std::string> words;
      for (const auto& item : entry.value) {
        check(item.IsScalar(), ErrorCode::kInvalidArgument, "{}: entries of '{}' must be plain text", entry.where,
              entry.name);
        set(entry.name, item.Scalar(), entry.where);  // checks the entry against the choices
        words.push_back(item.Scalar());
      }
      **list = std::move(words);
    } else {
      set(entry.name, entry.value.IsScalar() ? entry.value.Scalar() : "", entry.where);
    }
  }
}

std::string SettingsTable::to_yaml() const {
  YAML::Node root(YAML::NodeType::Map);
  for (const Row& row : rows_) {
    YAML::Node node = root;
    std::string rest = row.name;
    for (size_t dot; (dot = rest.find('.')) != std::string::npos; rest = rest.substr(dot + 1))
      node.reset(node[rest.substr(0, dot)]);
    if (const auto* list = std::get_if<std::vector<std::string>*>(&row.target)) {
      YAML::Node sequence(YAML::NodeType::Sequence);
      for (const std::string& word : **list) sequence.push_back(word);
      sequence.SetStyle(YAML::EmitterStyle::Flow);
      node[rest] = sequence;
    } else {
      node[rest] = get(row.name);
    }
  }
  return YAML::Dump(root) + "\n";
}

}  // namespace octet
