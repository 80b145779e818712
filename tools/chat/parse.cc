// octet-chat parse: parses replies, whole or cut.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "chat/cases.h"
#include "chat/reply_parser.h"

namespace octet {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxPiece = 12;  // bytes; pieces of 0 too

Json parse_case(const Json& test, Philox* cuts) {
  const ReplyOptions options = {.format = test.value("format", ""),
                                .reasoning = test.value("reasoning", true),
                                .in_reasoning = test.value("in_reasoning", false)};
  const auto parser = make_reply_parser(options, test.value("tools", Json::array()));
  const auto text = test.at("text").get<std::string>();
  std::vector<ReplyEvent> events;
  for (size_t begin = 0, size = text.size(); begin < text.size(); begin += size) {
    size = std::min(text.size() - begin, cuts ? static_cast<size_t>(cuts->below(kMaxPiece + 1)) : text.size());
    parser->push(std::string_view(text).substr(begin, size), events);
  }
  parser->finish(events);

  std::string content, reasoning;
  std::vector<std::pair<std::string, std::string>> calls;
  for (ReplyEvent& event : events) {
    switch (event.kind) {
      case ReplyEvent::Kind::kText: content += event.text; break;
      case ReplyEvent::Kind::kReasoning: reasoning += event.text; break;
      case ReplyEvent::Kind::kCallBegin: calls.emplace_back(event.text, ""); break;
      case ReplyEvent::Kind::kArguments: calls.back().second += event.text; break;
      case ReplyEvent::Kind::kCallEnd: break;
    }
  }
  const auto or_null = [](const std::string& part) { return part.empty() ? Json(nullptr) : Json(part); };
  Json answer = {{"content", or_null(content)}, {"reasoning_content", or_null(reasoning)}};
  answer["tool_calls"] = Json::array();
  for (const auto& [name, arguments] : calls) {
    Json parsed = Json::parse(arguments, nullptr, false);
    if (parsed.is_discarded()) parsed = arguments;  // cut short
    answer["tool_calls"].push_back({{"name", name}, {"arguments", std::move(parsed)}});
  }
  return answer;
}

void parse_cases(const std::string& path, std::optional<uint64_t> seed) {
  std::ifstream file(path);
  check(file.is_open(), ErrorCode::kNotFound, "{}: cannot be opened", path);
  std::optional<Philox> cuts;
  if (seed) cuts.emplace(*seed);
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    Json answer;
    try {
      answer = parse_case(Json::parse(line), cuts ? &*cuts : nullptr);
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    fmt::print("{}\n", answer.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
}

}  // namespace

void add_parse_command(CLI::App& app) {
  struct Arguments {
    std::string path;
    std::optional<uint64_t> cuts;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "parse", "{format, tools, text, reasoning, in_reasoning} -> {content, reasoning_content, tool_calls}");
  command->add_option("cases", arguments->path, "JSON lines")->required();
  command->add_option("--cuts", arguments->cuts, "cut each text at random places by this seed");
  command->callback([arguments] { parse_cases(arguments->path, arguments->cuts); });
}

}  // namespace octet
