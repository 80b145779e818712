// Replies of every format: the shared cases, cases of our own, every cutting, linear work.
#include "chat/reply_parser.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/rng.h"
#include "base/testing/test_data.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ReplyEvent::Kind;

const char* const kTools = R"([
  {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": "boolean"}, "share": {"type": "number"},
    "tags": {"type": "array"}, "note": {"type": ["string", "null"]}, "level": {"enum": [1, 2]},
    "either": {"anyOf": [{"type": "integer"}, {"type": "object"}]}}}}},
  {"name": "python", "input_schema": {"type": "object", "properties": {"code": {"type": "string"}}}}])";

// Joined events as text: content|reasoning|name(arguments)..., so that a difference is read with ease. An end that does
// not belong to a call, or arguments outside of one, show as '!'.
std::string joined(const std::vector<ReplyEvent>& events) {
  std::string content, reasoning, calls;
  bool open = false;
  for (const ReplyEvent& event : events) {
    const bool of_call = event.kind == Kind::kArguments || event.kind == Kind::kCallEnd;
    if (of_call != open) calls += '!';
    if (event.kind == Kind::kText) content += event.text;
    if (event.kind == Kind::kReasoning) reasoning += event.text;
    if (event.kind == Kind::kCallBegin) calls += "|" + event.text + "(";
    if (event.kind == Kind::kArguments) calls += event.text;
    if (event.kind == Kind::kCallEnd) calls += ")";
    if (event.kind == Kind::kCallBegin || event.kind == Kind::kCallEnd) open = event.kind == Kind::kCallBegin;
  }
  return content + "|" + reasoning + calls + (open ? "!" : "");
}

// `piece`: bytes to take next.
template <typename Piece>
std::vector<ReplyEvent> parse(const ReplyOptions& options, const Json& tools, std::string_view text, Piece piece) {
  const auto parser = make_reply_parser(options, tools);
  std::vector<ReplyEvent> events;
  while (!text.empty()) {
    const size_t size = std::min<size_t>(piece(), text.size());
    parser->push(text.substr(0, size), events);
    text.remove_prefix(size);
  }
  parser->finish(events);
  return events;
}

std::string whole(const ReplyOptions& options, std::string_view text) {
  return joined(parse(options, Json::parse(kTools), text, [&] { return text.size(); }));
}

struct Case {
  const char* format;
  const char* text;
  const char* want;
};

const Case kCases[] = {
    {"", "<tool_call>{\"name\": \"f\"}</tool_call> [TOOL_CALLS]",
     "<tool_call>{\"name\": \"f\"}</tool_call> [TOOL_CALLS]|"},
    {"", " plain \n", " plain \n|"},
    {"", "\n<think>\nwhy\n</think>\n\nso <think> and </think>\n", "so <think> and </think>\n|why"},
    {"", "<think>never ends", "|never ends"},
    {"", "<think> half </thi", "|half </thi"},
    {"", "<think></think><think>again</think>ok", "ok|again"},

    {"hermes", "A\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\nB\n", "A\nB\n||f({})"},
    {"hermes", "A <tool_call>{\"name\": \"f\"}</tool_call> ", "A||f({})"},
    {"hermes", "<tool_call>{\"arguments\": {\"a\": [1, \"}\"]}, \"id\": 3, \"name\": \"f\\u0061\"}</tool_call>",
     "||fa({\"a\": [1, \"}\"]})"},
    {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 01}}</tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 01}}</tool_call>|"},
    {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\"}}</tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\"}}</tool_call>|"},
    {"hermes", "see <tool_call> tags <tool_call>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}",
     "see <tool_call> tags <tool_call>||f({})"},
    {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call> on", "on||f({\"a\": 1})"},
    {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}}</tool_call>", "}</tool_call>||f({\"a\": 1})"},
    {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1",
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1|"},
    {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_", "||f({})"},
    {"hermes", "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
     "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>|"},
    {"hermes", "<tool_call>{\"arguments\": {\"a\": \"b\"}}</tool_call>",
     "<tool_call>{\"arguments\": {\"a\": \"b\"}}</tool_call>|"},
    {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \" {\\\"a\\\": \\\"b\\\"}\"}</tool_call>",
     "||f({\"a\": \"b\"})"},
    {"hermes", "<tool_call>{\"arguments\": \"{}\", \"name\": \"f\"}</tool_call>", "||f({})"},
    {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"[1]\"}</tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": \"[1]\"}</tool_call>|"},
    {"hermes", "<think>I call <tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call> done",
     "done|I call|weather({})"},
    {"hermes", "<think>a<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call> b <think> c </think> d",
     "d|a<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call> b <think> c"},
    {"hermes", "<think>as <tool_call>{\"name\": \"Bob\"}</tool_call> says",
     "|as <tool_call>{\"name\": \"Bob\"}</tool_call> says"},
    {"hermes", "<think>a <tool_call> </think>x", "x|a <tool_call>"},
    {"hermes", "<think>a <tool_call> b </thin", "|a <tool_call> b </thin"},
    {"hermes", "<think>a <tool_call>{", "|a <tool_call>{"},
    {"hermes", "<tool_call>[{\"name\": \"f\"}]", "<tool_call>[{\"name\": \"f\"}]|"},
    {"hermes", "<think>x</think><tool_call>{\"name\": \"f\", \"arguments\": {\"t\": \"</tool_call>\"}}</tool_call>",
     "|x|f({\"t\": \"</tool_call>\"})"},

    {"llama3_json",
     "{\"name\": \"weather\", \"parameters\": {\"city\": \"P\"}}; {\"name\": \"python\", \"arguments\": {}}",
     "||weather({\"city\": \"P\"})|python({})"},
    {"llama3_json", " {\"type\": \"function\", \"name\": \"weather\", \"parameters\": {}}\n", "||weather({})"},
    {"llama3_json", "{\"name\": \"Bob\", \"parameters\": {}}", "{\"name\": \"Bob\", \"parameters\": {}}|"},
    {"llama3_json", "<|python_tag|>{\"name\": \"Bob\", \"parameters\": {}}", "||Bob({})"},
    {"llama3_json", "{\"name\": \"weather\"}", "{\"name\": \"weather\"}|"},
    {"llama3_json", "It is {\"name\": \"weather\", \"parameters\": {}}",
     "It is {\"name\": \"weather\", \"parameters\": {}}|"},
    {"llama3_json", "{\"parameters\": {\"a\":\"b\"}}", "{\"parameters\": {\"a\":\"b\"}}|"},
    {"llama3_json", "{\"parameters\": {\"a\": 1}, \"name\": \"Bob\"}",
     "{\"parameters\": {\"a\": 1}, \"name\": \"Bob\"}|"},
    {"llama3_json", "{\"parameters\": {\"a\": 1}, \"name\": \"weather\"}", "||weather({\"a\": 1})"},
    {"llama3_json", "<|python_tag|>print(1)", "<|python_tag|>print(1)|"},
    {"llama3_json", "{\"name\": \"weather\", \"parameters\": {}}; or", "; or||weather({})"},

    {"mistral",
     "Hi[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"x\"}, {\"name\": \"g\", "
     "\"arguments\": {}}] bye",
     "Hi bye||f({\"a\": 1})|g({})"},
    {"mistral", "[TOOL_CALLS]f{\"a\": 1}[TOOL_CALLS]g.h[ARGS] {\"a\": \"[TOOL_CALLS]\"}",
     "||f({\"a\": 1})|g.h({\"a\": \"[TOOL_CALLS]\"})"},
    {"mistral", "[TOOL_CALLS]f[CALL_ID]abc123[ARGS]{}", "||f({})"},
    {"mistral", "[TOOL_CALLS]{\"name\": \"f\", \"arguments\": {}}", "||f({})"},
    {"mistral", "[TOOL_CALLS] no call", "[TOOL_CALLS] no call|"},
    {"mistral", "[TOOL_CALLS]f[ARG]{}", "[TOOL_CALLS]f[ARG]{}|"},
    {"mistral", "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}", "||f({})"},
    {"mistral", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"arguments\": {\"a\": \"b\"}}]",
     ", {\"arguments\": {\"a\": \"b\"}}]||f({})"},
    {"mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]|"},
    {"mistral", "[1, 2] and [TOOL", "[1, 2] and [TOOL|"},

    {"granite", "Hi <|tool_call|>[{\"arguments\": {\"a\": 1}, \"name\": \"f\"}]", "Hi||f({\"a\": 1})"},
    {"granite", "<tool_call>[{\"name\": \"f\", \"arguments\": \"{}\"}, {\"name\": \"g\"}]", "||f({})|g({})"},

    {"glm4_json", "\nweather\n{\"city\": \"P\"}", "||weather({\"city\": \"P\"})"},
    {"glm4_json", "<think>t</think>weather\n {}\n<|assistant|> python\n{}weather\n{\"a\": 1}",
     "|t|weather({})|python({})|weather({\"a\": 1})"},
    {"glm4_json", "weather is fine\n{}", "weather is fine\n{}|"},
    {"glm4_json", "Bob\n{}", "Bob\n{}|"},
    {"glm4_json", "It is: weather\n{\"a\": 1}", "It is: weather\n{\"a\": 1}|"},
    {"glm4_json", "weather\n{} is what I call", "is what I call||weather({})"},
    {"glm4_json", "weather\n[1]", "weather\n[1]|"},
    {"glm4_json", "weath", "weath|"},

    {"qwen3_coder",
     "<tool_call>\n<function=weather>\n<parameter=city>\n\nA \"b\"\n\n</parameter>\n<parameter=days>\n 3 "
     "\n</parameter>\n"
     "<parameter=units>True</parameter><parameter=share>1e3</parameter></function>\n</tool_call> end",
     "end||weather({\"city\": \"\\nA \\\"b\\\"\\n\", \"days\": 3, \"units\": true, \"share\": 1e3})"},
    {"qwen3_coder",
     "<tool_call>\n<function=weather>\n<parameter=days>\nmany\n</parameter>\n<parameter=tags>\n[1, {\"a\": []}]\n"
     "</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=level>\n2\n</"
     "parameter>\n<parameter=either>\n\"1\"\n"
     "</parameter>\n<parameter=new>\n4\n</parameter>\n</function>\n</tool_call>",
     "||weather({\"days\": \"many\", \"tags\": [1, {\"a\": []}], \"note\": null, \"level\": 2, \"either\": "
     "\"\\\"1\\\"\", \"new\": 4})"},
    {"qwen3_coder", "<function=python>\n<parameter=code>\nx = '</param>' < 3\n</parameter>\n</function>",
     "||python({\"code\": \"x = '</param>' < 3\"})"},
    {"qwen3_coder", "<tool_call>\n<function=f>\n</function>\n<function=g>\n</function>\n</tool_call>", "||f({})|g({})"},
    {"qwen3_coder", "<tool_call><function=python><parameter=code>\na\n<parameter=b>\n<c>\n</function>",
     "||python({\"code\": \"a\", \"b\": \"<c>\"})"},
    {"qwen3_coder", "<tool_call>\n<function=python>\n<parameter=code>\na\n</parameter>", "||python({\"code\": \"a\"})"},
    {"qwen3_coder", "<tool_call>\n<function=python>\n<parameter=code>\na",
     "<tool_call>\n<function=python>\n<parameter=code>\na|"},
    {"qwen3_coder", "<tool_call>\n<function=py thon>", "<tool_call>\n<function=py thon>|"},
    {"qwen3_coder", "<function=f> <b></function>", "<function=f> <b></function>|"},

    {"glm4",
     "<think>t</think>\nOn it.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value> P\t</arg_value>\n<arg_key> "
     "days "
     "</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>python</tool_call>",
     "On it.|t|weather({\"city\": \" P\\t\", \"days\": 3})|python({})"},
    {"glm4",
     "<tool_call>f<arg_key>x</arg_key><arg_value>{\"a\": 1}</arg_value><arg_key>y</arg_key><arg_value>z{</arg_value>",
     "||f({\"x\": {\"a\": 1}, \"y\": \"z{\"})"},
    {"glm4", "<tool_call>python\n<arg_key>code</arg_key>\n<arg_value></arg_</arg_value>\n</tool_call>",
     "||python({\"code\": \"</arg_\"})"},
    {"glm4", "<tool_call> a b</tool_call>", "<tool_call> a b</tool_call>|"},
    {"glm4", "<tool_call>f\n", "<tool_call>f\n|"},
};

TEST(ReplyParser, CasesOfEachFormat) {
  for (const Case& test : kCases) EXPECT_EQ(whole({.format = test.format}, test.text), test.want) << test.text;
}

TEST(ReplyParser, EveryCuttingGivesTheSame) {
  const Json tools = Json::parse(kTools);
  Philox random(11);
  for (const Case& test : kCases) {
    const ReplyOptions options = {.format = test.format};
    EXPECT_EQ(joined(parse(options, tools, test.text, [] { return 1; })), test.want) << test.text;
    for (int i = 0; i < 20; ++i) {
      const auto events = parse(options, tools, test.text, [&] { return 1 + random.below(1 + i); });
      EXPECT_EQ(joined(events), test.want) << test.text;
    }
  }
}

// Texts put together of parts of every format: no cutting changes anything, and calls are well formed.
TEST(ReplyParser, RandomTextsDoNotDependOnTheirCutting) {
  const std::vector<std::string> parts = {"<tool_call>",
                                          "</tool_call>",
                                          "\n",
                                          " ",
                                          "{\"name\": \"python\", \"arguments\": {\"code\": \"",
                                          "\"}}",
                                          "text",
                                          "<think>",
                                          "</think>",
                                          "<|python_tag|>",
                                          "; ",
                                          "[TOOL_CALLS]",
                                          "[",
                                          "]",
                                          ", ",
                                          "python",
                                          "{\"code\": 1}",
                                          "[ARGS]",
                                          "<function=python>",
                                          "<parameter=code>",
                                          "</parameter>",
                                          "</function>",
                                          "<arg_key>",
                                          "code",
                                          "</arg_key>",
                                          "<arg_value>",
                                          "</arg_value>",
                                          "<",
                                          "\\",
                                          "\"",
                                          std::string(300, 'x')};
  const Json tools = Json::parse(kTools);
  Philox random(12);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (uint64_t n = random.below(14); n > 0; --n) text += parts[random.below(parts.size())];
    for (const std::string& format : reply_formats()) {
      const ReplyOptions options = {.format = format, .in_reasoning = random.below(8) == 0};
      const std::string want = whole(options, text);
      ASSERT_EQ(want.find('!'), std::string::npos) << text;
      ASSERT_EQ(joined(parse(options, tools, text, [] { return 1; })), want) << format << ": " << text;
      ASSERT_EQ(joined(parse(options, tools, text, [&] { return 1 + random.below(9); })), want)
          << format << ": " << text;
    }
  }
}

// Where no call comes out of a text, nothing of it is missing.
TEST(ReplyParser, TextThatIsNoCallIsWhole) {
  const std::vector<std::string> parts = {"{\"arguments\":{\"a\":\"b\"}",
                                          "{\"parameters\":{}",
                                          "{\"name\":\"x\"",
                                          "\"arguments\":{}",
                                          "\"arguments\":\"{}\"",
                                          "\"name\":\"weather\"",
                                          "\"name\":3",
                                          "}",
                                          ",",
                                          "[",
                                          "]",
                                          "weather\n",
                                          "{}",
                                          "<tool_call>",
                                          "[TOOL_CALLS]",
                                          "<|python_tag|>",
                                          "<|tool_call|>",
                                          "<|assistant|>",
                                          "<function=weather>",
                                          "<parameter=a>"};
  Philox random(5);
  int plain = 0;
  for (const std::string& format : reply_formats()) {
    for (int i = 0; i < 400; ++i) {
      std::string text;
      for (uint64_t n = 1 + random.below(6); n > 0; --n) text += parts[random.below(parts.size())];
      const std::string got = whole({.format = format}, text);
      if (got.find("||") != std::string::npos) continue;  // a call
      EXPECT_EQ(got, text + "|") << format;
      ++plain;
    }
  }
  EXPECT_GT(plain, 1000);
}

TEST(ReplyParser, StreamsReasoningTextAndArgumentsAsTheyCome) {
  const auto parser = make_reply_parser({.format = "qwen3_coder", .in_reasoning = true}, Json::parse(kTools));
  const auto push = [&](std::string_view text) {
    std::vector<ReplyEvent> events;
    parser->push(text, events);
    std::string all;
    for (const ReplyEvent& event : events) all += fmt::format("{}:{} ", static_cast<int>(event.kind), event.text);
    return all;
  };
  EXPECT_EQ(push("<think>\nso"), "1:so ");
  EXPECT_EQ(push("</thin"), "");
  EXPECT_EQ(push("k>\nHello "), "0:Hello ");
  EXPECT_EQ(push("you"), "0: you ");
  EXPECT_EQ(push("\n<function=python><parameter=code>"), "");
  EXPECT_EQ(push(std::string(220, 'x')), "");
  EXPECT_EQ(push("yy"), "");
  EXPECT_EQ(push("zzzz"),  // 256 bytes are well formed: the call is certain
            "2:python 3:{\"code\": \"" + std::string(220, 'x') + "yyzzzz ");
  EXPECT_EQ(push("\"<\n"), "3:\\\"< ");
}

TEST(ReplyParser, ACallThatBreaksAfterItIsCertainEndsAndTheRestIsText) {
  const std::string x(300, 'x');
  EXPECT_EQ(whole({.format = "hermes"}, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"" + x + "\" no}"),
            "no}||f({\"a\": \"" + x + "\" )");
  EXPECT_EQ(
      whole({.format = "glm4"}, "<tool_call>python\n<arg_key>code</arg_key><arg_value>" + x + "</arg_value> <arg no"),
      "<arg no||python({\"code\": \"" + x + "\"})");
  // Cut short: the arguments stay incomplete, and nobody runs half a command.
  EXPECT_EQ(whole({.format = "glm4"}, "<tool_call>python\n<arg_key>code</arg_key><arg_value>" + x),
            "||python({\"code\": \"" + x + ")");
}

TEST(ReplyParser, ReasoningOfThePrompt) {
  EXPECT_EQ(whole({.in_reasoning = true}, "a\n</think>\nb"), "b|a");
  EXPECT_EQ(whole({.in_reasoning = true}, "\n<think>a <think> b</think>c"), "c|a <think> b");
  EXPECT_EQ(whole({.reasoning = false}, "<think>a</think>b"), "<think>a</think>b|");
  EXPECT_EQ(whole({.format = "hermes", .in_reasoning = true}, "</think><tool_call>{\"name\": \"f\"}"), "||f({})");
  EXPECT_TRUE(opens_reasoning("<|assistant|><think>\n"));
  EXPECT_FALSE(opens_reasoning("<|assistant|>\n<think></think>\n"));
  EXPECT_FALSE(opens_reasoning(""));
}

TEST(ReplyParser, FormatsThatTemplatesShow) {
  EXPECT_EQ(find_reply_format("{{ '<|tool_call|>' }}"), "granite");
  EXPECT_EQ(find_reply_format("{% if m.role == 'observation' %}<|observation|>{% endif %}"), "glm4_json");
  EXPECT_EQ(find_reply_format("<|observation|><arg_key>"), "glm4");
}

TEST(ReplyParser, DeepValuesAreNoCalls) {
  const std::string open(200, '['), close(200, ']');
  const std::string deep = "[TOOL_CALLS]f{\"a\": " + open + close + "}";
  EXPECT_EQ(whole({.format = "mistral"}, deep), deep + "|");
  EXPECT_EQ(
      whole({.format = "qwen3_coder"}, "<function=weather><parameter=tags>" + open + close + "</parameter></function>"),
      "||weather({\"tags\": \"" + open + close + "\"})");
}

TEST(ReplyParser, UnknownFormatNamesThoseThereAre) {
  try {
    make_reply_parser({.format = "hermess"}, Json::array());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(
        error.message(),
        "tool call format 'hermess' (want one of hermes, llama3_json, mistral, granite, qwen3_coder, glm4, glm4_json)");
  }
}

TEST(ReplyParser, ToolsOfAnyShapeAreTaken) {
  for (const char* tools :
       {"null", "{}", "[1, {}, {\"function\": 3}, {\"name\": 4}]",
        "[{\"name\": \"f\", \"parameters\": {\"properties\": [\"a\"]}}]",
        "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"type\": 3}, \"b\": 4}}}]"}) {
    const auto events = parse({.format = "glm4"}, Json::parse(tools),
                              "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", [] { return 9; });
    EXPECT_EQ(joined(events), "||f({\"a\": 1})") << tools;
  }
}

// Much of what is held back, broken or nested costs a bounded number of looks at each byte.
TEST(ReplyParser, WorkIsLinear) {
  const std::vector<std::string> units = {"<",
                                          "<tool_call>",
                                          " ",
                                          "\n",
                                          "x",
                                          "{",
                                          "\"",
                                          "<tool_call>{\"name\": \"f\", ",
                                          "<function=f>",
                                          "[TOOL_CALLS]f[",
                                          "<|python_tag|>{",
                                          "</parameter",
                                          "\n</para"};
  constexpr size_t kBytes = 72 << 10;  // more than is ever held back
  for (const std::string& format : reply_formats()) {
    for (const char* begin : {"", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", "<tool_call>{\"id\": \"",
                              "<function=weather><parameter=city>", "<function=weather><parameter=tags>"}) {
      for (const std::string& unit : units) {
        std::string text = begin;
        while (text.size() < kBytes) text += unit;
        const auto parser = make_reply_parser({.format = format}, Json::parse(kTools));
        std::vector<ReplyEvent> events;
        size_t bytes = 0;
        for (const char byte : text) {
          parser->push({&byte, 1}, events);
          for (const ReplyEvent& event : events) bytes += event.text.size();
          events.clear();
        }
        parser->finish(events);
        EXPECT_LE(parser->work(), static_cast<int64_t>(3 * text.size())) << format << ": " << begin << unit;
        EXPECT_LE(bytes, 2 * text.size());
      }
    }
  }
}

TEST(ReplyParser, SharedCases) {
  const std::string path = test_data_path("serving/chat/parser_cases.jsonl");
  if (path.empty()) GTEST_SKIP() << missing_test_data("serving/chat/parser_cases.jsonl");
  const auto trimmed = [](const Json& text) {
    std::string all = text.is_null() ? "" : text.get<std::string>();
    all.erase(0, std::min(all.find_first_not_of(" \n"), all.size()));
    return all.substr(0, all.find_last_not_of(" \n") + 1);
  };
  std::ifstream file(path);
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const Json test = Json::parse(line);
    std::string want = trimmed(test["expected"]["content"]) + "|" + trimmed(test["expected"]["reasoning_content"]);
    for (const Json& call : test["expected"]["tool_calls"])
      want += "|" + call["name"].get<std::string>() + "(" + call["arguments"].dump() + ")";
    for (const size_t piece : {size_t{1}, size_t{7}, size_t{1} << 20}) {
      auto events =
          parse({.format = test["format"]}, test["tools"], test["text"].get<std::string>(), [&] { return piece; });
      std::vector<ReplyEvent> normal;
      for (ReplyEvent& event : events) {
        if (event.kind == Kind::kArguments && !normal.empty() && normal.back().kind == Kind::kArguments) {
          normal.back().text += event.text;
        } else {
          normal.push_back(event);
        }
      }
      for (ReplyEvent& event : normal)
        if (event.kind == Kind::kArguments) event.text = Json::parse(event.text).dump();
      EXPECT_EQ(joined(normal), want) << test["name"];
    }
  }
  EXPECT_GE(cases, 13);
}

TEST(ReplyParser, FormatsOfPublishedTemplates) {
  const std::pair<const char*, const char*> kFormats[] = {{"GLM-4.6", "glm4"},
                                                          {"HuggingFaceTB-SmolLM3-3B", ""},
                                                          {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes"},
                                                          {"Qwen-Qwen2.5-7B-Instruct", "hermes"},
                                                          {"Qwen-Qwen3-0.6B", "hermes"},
                                                          {"Qwen3-Coder", "qwen3_coder"},
                                                          {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", ""},
                                                          {"google-gemma-2-2b-it", ""},
                                                          {"meta-llama-Llama-3.1-8B-Instruct", "llama3_json"},
                                                          {"meta-llama-Llama-3.2-3B-Instruct", "llama3_json"},
                                                          {"microsoft-Phi-3.5-mini-instruct", ""},
                                                          {"mistralai-Mistral-Nemo-Instruct-2407", "mistral"}};
  const std::string folder = test_data_path("serving/chat/templates");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("serving/chat/templates");
  for (const auto& [name, format] : kFormats) {
    std::ifstream file(folder + "/" + name + ".jinja");
    ASSERT_TRUE(file.is_open()) << name;
    std::stringstream source;
    source << file.rdbuf();
    EXPECT_EQ(find_reply_format(source.str()), format) << name;
  }
}

}  // namespace
}  // namespace octet
