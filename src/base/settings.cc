// The settings table: registration, parsing of one value, look-ups, printed forms, and YAML in and out: nested maps
// become dotted names, errors in a file are reported as file:line. The only file that includes yaml-cpp.
#include "base/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/file.h"

namespace octet {
namespace {

const char* type_name(const SettingsTable::Target& target) {
  static constexpr const char* kNames[] = {"bool", "integer", "number", "text", "list", "text"};
  return kNames[target.index()];
}

std::string print(const SettingsTable::Row& row) {
  struct Printer {
    const SettingInfo& info;
    std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
    std::string operator()(const int64_t* value) const { return fmt::format("{}", *value); }
    std::string operator()(const double* value) const { return fmt::format("{}", *value); }
    std::string operator()(const std::string* value) const { return *value; }
    std::string operator()(const std::vector<std::string>* value) const {
      return fmt::format("{}", fmt::join(*value, ","));
    }
    std::string operator()(const uint8_t* value) const {
      return *value < info.choices.size() ? info.choices[*value] : std::to_string(*value);
    }
  };
  return std::visit(Printer{row.info}, row.target);
}

// The bound of an integer: that of its type where the setting has none.
int64_t whole_bound(double bound, int64_t of_type) {
  return std::isfinite(bound) ? static_cast<int64_t>(bound) : of_type;
}

struct Scale {
  std::string_view suffix;
  int64_t factor;
};
constexpr Scale kScales[] = {
    {"Ki", int64_t{1} << 10}, {"Mi", int64_t{1} << 20}, {"Gi", int64_t{1} << 30}, {"k", 1000}, {"K", 1000},
    {"M", 1000000},           {"G", 1000000000},        {"B", 1000000000}};

template <typename T>
bool parse_whole(std::string_view text, T* value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

std::string without_underscores(const std::string& text) {
  std::string digits = text;
  std::erase(digits, '_');
  return digits;
}

bool parse_integer(const std::string& text, int64_t* value) {
  std::string digits = without_underscores(text);
  int64_t factor = 1;
  for (const Scale& scale : kScales)
    if (factor == 1 && digits.ends_with(scale.suffix)) {
      factor = scale.factor;
      digits.resize(digits.size() - scale.suffix.size());
    }
  if (parse_whole(digits, value)) return !__builtin_mul_overflow(*value, factor, value);
  double number;  // 1e6, 1.5M: accepted when the result is a whole number that a double holds exactly
  if (!parse_whole(digits, &number)) return false;
  number *= static_cast<double>(factor);
  if (!(std::fabs(number) <= 0x1p53) || number != std::trunc(number)) return false;
  *value = static_cast<int64_t>(number);
  return true;
}

bool parse_bool(std::string text, bool* value) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  *value = text == "true" || text == "yes" || text == "on" || text == "1";
  return *value || text == "false" || text == "no" || text == "off" || text == "0";
}

std::string trim(const std::string& text) {
  size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// Parses into the field or explains why not; the field changes only on success. `where` empty: the text is its own.
struct Parser {
  const std::string& name;
  const std::string& text;
  const std::string& where;
  const SettingInfo& info;

  [[noreturn]] void reject(const std::string& wanted) const {
    if (where.empty()) fail(ErrorCode::kInvalidArgument, "{}: {} (want {})", name, text, wanted);
    fail(ErrorCode::kInvalidArgument, "{}: {} = '{}': want {}", where, name, text, wanted);
  }
  void check_range(double value) const {
    if (!info.allows(value)) reject(info.allowed(where.empty() ? " to " : ".."));
  }
  void check_choice(const std::string& word) const {
    const auto& choices = info.choices;
    if (choices.empty() || std::ranges::find(choices, word) != choices.end()) return;
    reject(info.allowed() + if_near(word, choices, "; did you mean '{}'?"));
  }
  void operator()(bool* field) const {
    bool value;
    if (!parse_bool(trim(text), &value)) reject("true or false");
    *field = value;
  }
  void operator()(int64_t* field) const {
    int64_t value;
    if (!parse_integer(trim(text), &value))
      reject(fmt::format("an integer from {} to {}, such as 2000, 2_000, 2k, 64Ki or 1.5M",
                         whole_bound(info.min, std::numeric_limits<int64_t>::min()),
                         whole_bound(info.max, std::numeric_limits<int64_t>::max())));
    check_range(static_cast<double>(value));
    *field = value;
  }
  void operator()(double* field) const {
    double value;
    if (!parse_whole(without_underscores(trim(text)), &value) || !std::isfinite(value)) reject("a finite number");
    check_range(value);
    *field = value;
  }
  void operator()(std::string* field) const {
    check_choice(text);
    *field = text;
  }
  void operator()(std::vector<std::string>* field) const {
    std::vector<std::string> words;
    for (size_t begin = 0; begin <= text.size() && !trim(text).empty();) {
      size_t comma = std::min(text.find(',', begin), text.size());
      words.push_back(trim(text.substr(begin, comma - begin)));
      if (words.back().empty()) reject("a comma-separated list without empty entries");
      check_choice(words.back());
      begin = comma + 1;
    }
    *field = std::move(words);
  }
  void operator()(uint8_t* field) const {
    check_choice(text);
    *field = static_cast<uint8_t>(std::ranges::find(info.choices, text) - info.choices.begin());
  }
};

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

bool SettingInfo::allows(double value) const { return (value >= min && value <= max) || value == off; }

std::string SettingInfo::allowed(const char* to) const {
  if (!choices.empty()) return fmt::format("one of: {}", fmt::join(choices, ", "));
  const bool low = std::isfinite(min), high = std::isfinite(max);
  std::string range;
  if (low && high) range = fmt::format("{}{}{}", min, to, max);
  if (low != high) range = low ? fmt::format(">= {}", min) : fmt::format("<= {}", max);
  return range + (off ? fmt::format(" or {}", *off) : "");
}

void SettingsTable::add(std::string name, Target target, SettingInfo info) {
  for (const Row& row : rows_) {
    bool nested = row.name.starts_with(name + ".") || name.starts_with(row.name + ".");
    check(row.name != name && !nested, ErrorCode::kInternal, "setting '{}' collides with '{}'", name, row.name);
  }
  rows_.push_back({std::move(name), target, std::move(info), ""});
  rows_.back().default_text = print(rows_.back());
}

const SettingsTable::Row* SettingsTable::find(const std::string& name) const {
  for (const Row& row : rows_)
    if (row.name == name) return &row;
  return nullptr;
}

void SettingsTable::set(const std::string& name, const std::string& text, const std::string& where) {
  const Row* row = find(name);
  if (!row) {
    for (const Row& one : rows_)
      check(!one.name.starts_with(name + "."), ErrorCode::kInvalidArgument,
            "{}: '{}' is a group of settings: give one of them, such as {}, or leave it out", where, name, one.name);
    std::string near = nearest_name(name, names());
    fail(ErrorCode::kInvalidArgument, "{}: unknown setting '{}'{}", where, name,
         near.empty() ? "; `octet config` lists all" : fmt::format("; did you mean '{}'?", near));
  }
  std::visit(Parser{name, text, where, row->info}, row->target);
}

void SettingsTable::validate() const {
  for (const Row& row : rows_) std::visit(Parser{row.name, print(row), "", row.info}, row.target);
}

void SettingsTable::set_words(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    size_t equals = word.find('=');
    check(equals != std::string::npos && equals > 0, ErrorCode::kInvalidArgument,
          "command line: '{}' is not of the form name=value", word);
    set(word.substr(0, equals), word.substr(equals + 1), "command line");
  }
}

std::string SettingsTable::get(const std::string& name) const {
  const Row* row = find(name);
  check(row != nullptr, ErrorCode::kInvalidArgument, "unknown setting '{}'", name);
  return print(*row);
}

SettingsTable::Row& SettingsTable::row(const std::string& name) {
  const auto found = std::ranges::find(rows_, name, &Row::name);
  check(found != rows_.end(), ErrorCode::kInternal, "no setting '{}' in this table", name);
  return *found;
}

std::string SettingsTable::changed_line() const {
  std::vector<std::string> words;
  for (const Row& row : rows_)
    if (std::string value = print(row); value != row.default_text) words.push_back(row.name + "=" + value);
  return fmt::format("{}", fmt::join(words, " "));
}

std::string SettingsTable::help() const {
  size_t width = 0;
  for (const Row& row : rows_) width = std::max(width, row.name.size());
  std::string text;
  for (const Row& row : rows_) {
    std::string range = row.info.allowed();
    text += fmt::format("  {:<{}}  {} ({}, default {}{}{})\n", row.name, width, row.info.meaning, type_name(row.target),
                        row.default_text.empty() ? "empty" : row.default_text, range.empty() ? "" : ", ", range);
  }
  return text;
}

std::string SettingsTable::markdown() const {
  auto cell = [](const std::string& text) {
    std::string escaped;
    for (char c : text) escaped += c == '|' ? "\\|" : std::string(1, c);
    return escaped;
  };
  std::string text = "| setting | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
  for (const Row& row : rows_)
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.name, type_name(row.target),
                        row.default_text.empty() ? "" : "`" + cell(row.default_text) + "`", cell(row.info.allowed()),
                        cell(row.info.meaning));
  return text;
}

std::vector<std::string> SettingsTable::names() const {
  std::vector<std::string> all;
  for (const Row& row : rows_) all.push_back(row.name);
  return all;
}

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
