// octet-chat template: renders chat templates.
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "chat/cases.h"
#include "chat/chat_template.h"

namespace octet {
namespace {

using nlohmann::ordered_json;

// `template_file`, or `template`: the text, or the name of a file beside the cases or in templates/ there.
std::string template_source(const ordered_json& given, const std::filesystem::path& folder) {
  constexpr size_t kLongestName = 255;
  std::error_code ignored;
  if (given.contains("template_file")) {
    const std::filesystem::path file = given["template_file"].get<std::string>();
    return read_file((std::filesystem::exists(file, ignored) ? file : folder / file).string());
  }
  check(given.contains("template"), ErrorCode::kInvalidArgument, "a case without template and template_file");
  std::string text = given["template"];
  for (const std::filesystem::path& place : {folder, folder / "templates"}) {
    const bool name = !text.empty() && text.size() <= kLongestName && text.find_first_of("\n{") == std::string::npos;
    if (name && std::filesystem::is_regular_file(place / text, ignored)) return read_file((place / text).string());
  }
  return text;
}

// "2024-07-26 12:34:56" of local time, or seconds since 1970; the present where it is not given.
double time_of(const ordered_json& given) {
  if (!given.contains("now")) return static_cast<double>(std::time(nullptr));
  if (given["now"].is_number()) return given["now"];
  const std::string text = given["now"];
  std::tm local{};
  const char* end = strptime(text.c_str(), "%Y-%m-%d %H:%M:%S", &local);
  check(end != nullptr && *end == 0, ErrorCode::kInvalidArgument, "now: \"{}\" (want YYYY-MM-DD hh:mm:ss)", text);
  local.tm_isdst = -1;
  return static_cast<double>(std::mktime(&local));
}

class TemplateRunner {
 public:
  explicit TemplateRunner(const std::string& cases) : folder_(std::filesystem::path(cases).parent_path()) {}

  std::string render(const ordered_json& given) {
    const TemplateOptions options{.trim_blocks = given.value("trim_blocks", true),
                                  .lstrip_blocks = given.value("lstrip_blocks", true)};
    const ChatTemplate chat(template_source(given, folder_), "template", options);
    ordered_json bindings = given.value("bindings", ordered_json::object()), trusted = ordered_json::object();
    if (given.contains("messages")) {
      MessageForm form = chat.message_form();
      if (given.contains("arguments")) form.arguments_as_text = given["arguments"] == "text";
      bindings["messages"] = messages_for_template(given["messages"], form);
      bindings["tools"] = given.value("tools", ordered_json());
      bindings["documents"] = given.value("documents", ordered_json());
      bindings["add_generation_prompt"] = given.value("add_generation_prompt", true);
      bindings.update(given.value("chat_template_kwargs", ordered_json::object()));
    }
    for (const char* token : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
      if (given.contains(token)) trusted[token] = given[token];
    }
    return chat.render(bindings, trusted, time_of(given)).text;
  }

 private:
  std::filesystem::path folder_;
};

void run_cases(const std::string& path) {
  std::ifstream lines(path);
  check(lines.good(), ErrorCode::kNotFound, "cannot read {}", path);
  TemplateRunner runner(path);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    ordered_json answer;
    try {
      answer["text"] = runner.render(ordered_json::parse(line));
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << "\n";
  }
}

}  // namespace

void add_template_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("template",
                                         "Render chat templates: {template_file | template, messages | "
                                         "bindings, tools, now ...} a line -> {text | error}");
  const auto cases = std::make_shared<std::string>();
  command->add_option("cases", *cases, "File of cases, a line of JSON each")->required();
  command->callback([cases] { run_cases(*cases); });
}

}  // namespace octet
