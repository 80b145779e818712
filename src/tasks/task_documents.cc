#include "tasks/task_documents.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_cost.h"

namespace octet {

using nlohmann::ordered_json;

namespace {

constexpr int64_t kMaxFileBytes = int64_t{4} << 30;
constexpr int64_t kMaxDepth = 64;

ordered_json parse_document(std::string_view text, const std::string& where) {
  check_json_cost(text, where, kMaxDepth);
  ordered_json doc = parse_json<ordered_json>(text, where);
  check(doc.is_object(), ErrorCode::kInvalidArgument, "{}: not a JSON object: {}", where, text.substr(0, 100));
  return doc;
}

// One object a line, or a list of objects, or an object of which `field` is that list.
std::vector<ordered_json> parse_json_documents(const std::string& text, const ordered_json& kwargs,
                                               const std::string& where) {
  std::vector<ordered_json> docs;
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return docs;
  const auto field = kwargs.find("field");
  if (field != kwargs.end() || text[first] == '[') {
    ordered_json whole = parse_json<ordered_json>(text, where);
    if (field != kwargs.end()) {
      check(field->is_string() && whole.contains(field->get<std::string>()), ErrorCode::kInvalidArgument,
            "{}: no member {}", where, field->dump());
      whole = ordered_json(whole[field->get<std::string>()]);
    }
    check(whole.is_array(), ErrorCode::kInvalidArgument, "{}: not a list of documents", where);
    for (ordered_json& doc : whole) {
      check(doc.is_object(), ErrorCode::kInvalidArgument, "{}: document {} is not an object: {}", where, docs.size(),
            doc.dump().substr(0, 100));
      docs.push_back(std::move(doc));
    }
    return docs;
  }
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos)
      docs.push_back(parse_document(line, fmt::format("{}:{}", where, number)));
    at = end + 1;
  }
  return docs;
}

// Records of RFC 4180: quoted fields may hold the separator, line ends and doubled quotes.
std::vector<std::vector<std::string>> parse_records(const std::string& text, char separator, const std::string& where) {
  std::vector<std::vector<std::string>> records;
  std::vector<std::string> record;
  std::string field;
  bool any = false;
  int64_t line = 1;
  const auto end_record = [&] {
    if (any || !record.empty()) record.push_back(std::move(field)), records.push_back(std::move(record));
    record.clear(), field.clear(), any = false;
  };
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"' && field.empty()) {
      const int64_t begun = line;
      for (++at;; ++at) {
        check(at < text.size(), ErrorCode::kCorrupt, "{}:{}: a quoted field without an end", where, begun);
        line += text[at] == '\n' ? 1 : 0;
        if (text[at] != '"')
          field += text[at];
        else if (at + 1 < text.size() && text[at + 1] == '"')
          field += text[++at];
        else
          break;
      }
      any = true;
    } else if (c == separator) {
      record.push_back(std::move(field));
      field.clear(), any = true;
    } else if (c == '\n') {
      end_record(), ++line;
    } else if (c != '\r' || (at + 1 < text.size() && text[at + 1] != '\n')) {
      field += c, any = true;
    }
  }
  end_record();
  return records;
}

template <typename T>
bool is_number(const std::string& text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

// pandas' types: a column of whole numbers, of numbers, of True and False, else of texts; nothing is null.
void set_column(std::vector<ordered_json>& docs, const std::string& name, const std::vector<std::string>& values,
                bool texts) {
  int64_t whole = 0;
  double real = 0;
  const auto all = [&](auto test) {
    return !texts && std::ranges::any_of(values, [](const auto& v) { return !v.empty(); }) &&
           std::ranges::all_of(values, [&](const std::string& value) { return value.empty() || test(value); });
  };
  const bool gaps = std::ranges::any_of(values, [](const auto& v) { return v.empty(); });
  const bool integers = !gaps && all([&](const std::string& v) { return is_number(v, whole); });
  const bool reals = all([&](const std::string& v) { return is_number(v, real); });
  const bool flags = !gaps && all([](const std::string& v) { return v == "True" || v == "False"; });
  for (size_t i = 0; i < docs.size(); ++i) {
    const std::string& value = values[i];
    ordered_json& to = docs[i][name];
    if (value.empty() && !texts)
      to = nullptr;
    else if (integers && is_number(value, whole))
      to = whole;
    else if (reals && is_number(value, real))
      to = real;
    else if (flags)
      to = value == "True";
    else
      to = value;
  }
}

std::vector<ordered_json> parse_csv_documents(const std::string& text, const ordered_json& kwargs,
                                              const std::string& where) {
  std::string separator = ",";
  std::vector<std::string> names;
  for (const char* key : {"sep", "delimiter"})
    if (kwargs.contains(key) && kwargs[key].is_string()) separator = kwargs[key].get<std::string>();
  for (const char* key : {"names", "column_names"})
    for (const ordered_json& name : kwargs.value(key, ordered_json::array())) names.push_back(name.get<std::string>());
  check(separator.size() == 1, ErrorCode::kInvalidArgument, "{}: separator '{}' (want one character)", where,
        separator);
  auto records = parse_records(text, separator[0], where);
  if (names.empty() && !records.empty()) names = records[0], records.erase(records.begin());
  for (size_t i = 0; i < records.size(); ++i)
    check(records[i].size() == names.size(), ErrorCode::kInvalidArgument,
          "{}: record {} has {} fields, and there are {} columns ({})", where, i + 1, records[i].size(), names.size(),
          fmt::join(names, ", "));
  std::vector<ordered_json> docs(records.size(), ordered_json::object());
  for (size_t column = 0; column < names.size(); ++column) {
    std::vector<std::string> values;
    for (const auto& record : records) values.push_back(record[column]);
    set_column(docs, names[column], values, kwargs.value("dtype", "") == "str");
  }
  return docs;
}

// The file of this name: as it is, or the first of names with "|" between them that is in one of the task's folders.
std::string find_data(const TaskConfig& task, const std::string& names, const std::string& split) {
  std::vector<std::string> tried;
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find('|', at), names.size());
    const std::string name = names.substr(at, end - at);
    at = end + 1;
    std::vector<std::string> folders = task.other_folders;
    folders.push_back(task.folder);
    for (const std::string& folder : folders) {
      tried.push_back(name.starts_with('/') ? name : folder + "/" + name);
      if (path_exists(tried.back())) return tried.back();
    }
  }
  fail(ErrorCode::kNotFound, "{}: the file of split {} is not there: looked for {}{}", task.where, split,
       fmt::join(tried, ", "), task.other_folders.empty() ? "" : " (--data DIR names another folder)");
}

std::vector<std::string> files_of(const TaskConfig& task, const std::string& split) {
  const ordered_json files =
      task.dataset.is_object() ? task.dataset.value("data_files", ordered_json()) : ordered_json();
  ordered_json of_split = files;  // a text or list alone is of split train
  if (files.is_object()) {
    std::vector<std::string> splits;
    for (const auto& [name, ignored] : files.items()) splits.push_back(name);
    check(files.contains(split), ErrorCode::kInvalidArgument, "{}: data_files has no split {} (it has {})", task.where,
          split, fmt::join(splits, ", "));
    of_split = files[split];
  } else {
    check(files.is_null() || split == "train", ErrorCode::kInvalidArgument,
          "{}: data_files is of split train, and split {} is wanted", task.where, split);
  }
  std::vector<std::string> paths;
  if (of_split.is_string()) of_split = ordered_json::array({of_split});
  for (const ordered_json& file : of_split) {
    check(file.is_string(), ErrorCode::kInvalidArgument, "{}: data_files: {} (want paths)", task.where, file.dump());
    paths.push_back(find_data(task, file.get<std::string>(), split));
  }
  check(!paths.empty(), ErrorCode::kInvalidArgument, "{}: dataset_kwargs names no data_files of split {}", task.where,
        split);
  return paths;
}

void check_dataset(const TaskConfig& task) {
  check(
      task.dataset_path == "json" || task.dataset_path == "csv", ErrorCode::kInvalidArgument,
      "{}: dataset_path: {}: data sets of the Hub are not fetched: save it as JSON lines and write dataset_path: json, "
      "dataset_kwargs: {{data_files: {{{}: FILE}}}}",
      task.where, task.dataset_path.empty() ? "none" : task.dataset_path, task.eval_split());
  static constexpr const char* kKnown[] = {"data_files", "field",        "sep",   "delimiter",
                                           "names",      "column_names", "dtype", "trust_remote_code"};
  if (task.dataset.is_object())
    for (const auto& [key, value] : task.dataset.items())
      check(std::ranges::find(kKnown, key) != std::end(kKnown), ErrorCode::kInvalidArgument,
            "{}: dataset_kwargs: unknown key '{}' (known: {})", task.where, key, fmt::join(kKnown, ", "));
}

}  // namespace

bool TaskDocuments::has(const std::string& field) const { return std::ranges::find(fields, field) != fields.end(); }

std::vector<ordered_json> parse_documents(const std::string& text, const std::string& format,
                                          const ordered_json& kwargs, const std::string& where) {
  return format == "csv" ? parse_csv_documents(text, kwargs, where) : parse_json_documents(text, kwargs, where);
}

TaskDocuments read_documents(const TaskConfig& task, const std::string& split) {
  check_dataset(task);
  const ordered_json kwargs = task.dataset.is_object() ? task.dataset : ordered_json::object();
  TaskDocuments result;
  for (const std::string& path : files_of(task, split)) {
    std::vector<ordered_json> docs;
    if (task.hook == TaskHook::kWikitext && !path.ends_with(".jsonl"))
      docs.push_back({{"page", read_file(path, kMaxFileBytes)}});
    else
      docs = parse_documents(read_file(path, kMaxFileBytes), task.dataset_path, kwargs, path);
    apply_hook(task.hook, docs, path);
    std::ranges::move(docs, std::back_inserter(result.docs));
  }
  check(!result.docs.empty(), ErrorCode::kInvalidArgument, "{}: split {} has no documents", task.where, split);
  for (const ordered_json& doc : result.docs)
    for (const auto& [name, value] : doc.items())
      if (!result.has(name)) result.fields.push_back(name);
  for (ordered_json& doc : result.docs)  // a column that a row lacks is null
    for (const std::string& name : result.fields)
      if (doc.size() < result.fields.size() && !doc.contains(name)) doc[name] = nullptr;
  return result;
}

}  // namespace octet
