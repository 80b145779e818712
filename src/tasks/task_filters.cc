#include "tasks/task_filters.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "io/tokenizer_steps.h"
#include "io/tokenizer_utf8.h"
#include "tasks/python_regex.h"
#include "tasks/python_text.h"

namespace octet {

using nlohmann::ordered_json;

namespace {

using Replies = std::vector<ordered_json>;

const PythonRegex& regex_of(const std::string& pattern) {
  static std::map<std::string, PythonRegex> known;  // of the thread that evaluates
  const auto found = known.find(pattern);
  return found != known.end() ? found->second : known.emplace(pattern, PythonRegex(pattern, "filter")).first->second;
}

// The match that group_select names, of a tuple its first group that is not empty. None: there is no match.
std::optional<std::string> select(const PythonRegex& regex, const std::string& text, int64_t place) {
  const auto matches = regex.find_all(text);
  if (place < 0) place += std::ssize(matches);
  if (place < 0 || place >= std::ssize(matches)) return {};
  for (const std::string& group : matches[static_cast<size_t>(place)])
    if (!group.empty() || matches[static_cast<size_t>(place)].size() == 1) return std::string(strip(group));
  return {};
}

std::string text_of(const ordered_json& reply) { return reply.is_string() ? reply.get<std::string>() : ""; }

void filter_regex(const ordered_json& arguments, Replies& replies, const ordered_json&) {
  const PythonRegex& regex = regex_of(arguments.value("regex_pattern", R"(#### (\-?[0-9\.\,]+))"));
  for (ordered_json& reply : replies)
    reply = select(regex, text_of(reply), arguments.value("group_select", int64_t{0}))
                .value_or(arguments.value("fallback", "[invalid]"));
}

void filter_strip(const ordered_json&, Replies& replies, const ordered_json&) {
  for (ordered_json& reply : replies) reply = strip(text_of(reply));
}

void filter_lower(const ordered_json&, Replies& replies, const ordered_json&) {
  for (ordered_json& reply : replies) reply = lowercase(text_of(reply));
}

void filter_upper(const ordered_json&, Replies& replies, const ordered_json&) {
  for (ordered_json& reply : replies) reply = uppercase(text_of(reply));
}

void filter_map(const ordered_json& arguments, Replies& replies, const ordered_json&) {
  const ordered_json map = arguments.value("mapping_dict", ordered_json::object());
  for (ordered_json& reply : replies) {
    const auto found = map.find(text_of(reply));
    reply = ordered_json(found != map.end() ? *found : arguments.value("default_value", ordered_json()));
  }
}

void filter_first(const ordered_json&, Replies& replies, const ordered_json&) { replies.resize(1); }

void filter_first_k(const ordered_json& arguments, Replies& replies, const ordered_json&) {
  const int64_t k = arguments.value("k", int64_t{0});
  check(k >= 1 && k <= std::ssize(replies), ErrorCode::kInvalidArgument,
        "filter take_first_k: k is {}, and a request has {} replies (repeats)", k, replies.size());
  replies.resize(static_cast<size_t>(k));
}

void filter_majority(const ordered_json&, Replies& replies, const ordered_json&) {
  size_t best = 0, most = 0;
  for (size_t i = 0; i < replies.size(); ++i) {
    const auto count = static_cast<size_t>(std::ranges::count(replies, replies[i]));
    if (count > most) best = i, most = count;
  }
  replies = {replies[best]};
}

// By the pattern; else a choice's own text; else a letter behind a colon. The answer is "(A)", "(B)", ...
void filter_choice(const ordered_json& arguments, Replies& replies, const ordered_json& doc) {
  const std::vector<std::string> ignored = arguments.value("regexes_to_ignore", std::vector<std::string>());
  const auto plain = [&](std::string text) {
    for (const std::string& pattern : ignored) text = regex_of(pattern).replace(text, "");
    if (arguments.value("ignore_case", false)) text = lowercase(text);
    if (arguments.value("ignore_punctuation", false)) text = regex_of("\\p{P}").replace(text, "");
    return text;
  };
  std::vector<std::pair<std::string, std::string>> choices;  // text, "(A)"
  std::string letters;
  for (const ordered_json& choice : doc.at("choices")) {
    const char letter = static_cast<char>('A' + choices.size());
    choices.emplace_back(plain(std::string(strip(choice.get<std::string>()))), fmt::format("({})", letter));
    letters += (letters.empty() ? "" : "|") + std::string(1, letter);
  }
  auto by_length = choices;
  std::ranges::stable_sort(by_length, std::ranges::greater(), [](const auto& one) { return one.first.size(); });
  std::string texts;
  for (const auto& [text, answer] : by_length) (texts += texts.empty() ? "" : "|") += regex_escape(text);
  const int64_t place = arguments.value("group_select", int64_t{0});
  for (ordered_json& reply : replies) {
    const std::string text = text_of(reply);
    std::optional<std::string> found =
        select(regex_of(arguments.value("regex_pattern", R"(#### (\-?[0-9\.\,]+))")), text, place);
    if (!found || found->empty()) {
      found = select(regex_of(texts), plain(text), place);
      for (const auto& [choice, answer] : choices)
        if (found && *found == choice) found = answer;
    }
    if (!found || found->empty()) {
      found = select(regex_of(":[\\s]*(" + letters + ")"), text, place);
      if (found) found = "(" + *found + ")";
    }
    reply = found && !found->empty() ? *found : arguments.value("fallback", "[invalid]");
  }
}

struct FilterRow {
  const char* name;
  void (*apply)(const ordered_json& arguments, Replies& replies, const ordered_json& doc);
  std::vector<std::string> arguments;
};

const FilterRow* find_row(const std::string& name) {
  static const FilterRow kRows[] = {
      {"regex", filter_regex, {"regex_pattern", "group_select", "fallback"}},
      {"remove_whitespace", filter_strip, {}},
      {"lowercase", filter_lower, {}},
      {"uppercase", filter_upper, {}},
      {"map", filter_map, {"mapping_dict", "default_value"}},
      {"take_first", filter_first, {}},
      {"take_first_k", filter_first_k, {"k"}},
      {"majority_vote", filter_majority, {}},
      {"multi_choice_regex",
       filter_choice,
       {"regex_pattern", "group_select", "fallback", "ignore_case", "ignore_punctuation", "regexes_to_ignore"}},
  };
  const auto* found = std::ranges::find(kRows, name, &FilterRow::name);
  return found == std::end(kRows) ? nullptr : found;
}

void check_arguments(const FilterRow& row, const ordered_json& arguments, const std::string& where) {
  for (const auto& [key, value] : arguments.items()) {
    check(std::ranges::find(row.arguments, key) != row.arguments.end(), ErrorCode::kInvalidArgument,
          "{}: filter {}: unknown argument '{}'{}", where, row.name, key,
          if_near(key, row.arguments, " (nearest: {})"));
    const bool number = key == "group_select" || key == "k", flag = key.starts_with("ignore_");
    const bool fits = number                       ? value.is_number_integer()
                      : flag                       ? value.is_boolean()
                      : key == "mapping_dict"      ? value.is_object()
                      : key == "default_value"     ? true
                      : key.starts_with("regexes") ? value.is_array()
                                                   : value.is_string();
    check(fits, ErrorCode::kInvalidArgument, "{}: filter {}: {}: {}", where, row.name, key, value.dump());
    if (key == "regex_pattern") PythonRegex(value.get<std::string>(), where);
    if (key.starts_with("regexes"))
      for (const ordered_json& pattern : value) {
        check(pattern.is_string(), ErrorCode::kInvalidArgument, "{}: filter {}: {}: {}", where, row.name, key,
              value.dump());
        PythonRegex(pattern.get<std::string>(), where);
      }
  }
}

}  // namespace

void check_filter(const TaskFilter& filter, TaskOutput output, const std::string& where) {
  bool single = false;
  for (const TaskFilter::Step& step : filter.steps) {
    const FilterRow* row = find_row(step.function);
    check(row != nullptr, ErrorCode::kInvalidArgument,
          "{}: {}: unknown filter '{}' (known: regex, remove_whitespace, lowercase, uppercase, map, take_first, "
          "take_first_k, majority_vote, multi_choice_regex; hooks in Python are not run)",
          where, filter.name, step.function);
    check_arguments(*row, step.arguments, where);
    check(!single, ErrorCode::kInvalidArgument, "{}: {}: {} behind take_first", where, filter.name, step.function);
    single = step.function == "take_first";
    check(output == TaskOutput::kGenerate || single, ErrorCode::kInvalidArgument,
          "{}: {}: filter {} is of texts, and replies of output_type {} are numbers", where, filter.name, step.function,
          task_output_name(output));
  }
  check(single, ErrorCode::kInvalidArgument, "{}: {}: want take_first at the end: metrics take one reply", where,
        filter.name);
}

ordered_json filtered(const TaskFilter& filter, std::vector<ordered_json> replies, const ordered_json& doc) {
  for (const TaskFilter::Step& step : filter.steps) find_row(step.function)->apply(step.arguments, replies, doc);
  return replies.at(0);
}

}  // namespace octet
