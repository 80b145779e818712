// Replies under call guides: what a guide lets through is read by the parser as calls that fit.
#include "chat/call_guide.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "chat/reply_parser.h"
#include "chat/token_trie.h"
#include "io/tokenizer_parts.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ReplyEvent::Kind;

const Json& tools() {
  static const Json kTools = Json::parse(R"([
    {"type": "function", "function": {"name": "weather", "strict": true, "parameters": {"type": "object", "properties": {
      "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
      "unit": {"enum": ["c", "f"]}}, "required": ["city", "days"], "additionalProperties": false}}},
    {"type": "function", "function": {"name": "search", "strict": true, "parameters": {"type": "object", "properties": {
      "query": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "[a-c<]$"},
      "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2}, "like": {"$ref": "#/properties/tags"},
      "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "level": {"const": 1.0}, "tag": {"$ref": "#/$defs/tag"},
      "odd": {"type": "string", "oneOf": [{"maxLength": 2}, {"pattern": "^a"}], "not": {"const": "ab"}},
      "id": {"type": ["integer", "string"], "maxLength": 3}}, "required": ["query", "level"],
      "additionalProperties": {"type": "boolean"}, "$defs": {"tag": {"type": "string", "maxLength": 3}}}}},
    {"type": "function", "function": {"name": "now", "strict": true}},
    {"type": "function", "function": {"name": "any", "parameters": {"type": "object", "required": ["a"],
      "properties": {"b": {"type": "integer"}}, "maxProperties": 9}}}])");
  return kTools;
}

bool bare(const std::string& format) { return format == "qwen3_coder" || format == "glm4"; }

// Those that bare arguments can be held to.
Json tools_of(const std::string& format) {
  Json some = tools();
  if (bare(format)) some[3]["function"]["parameters"].erase("maxProperties");
  return some;
}

bool accepts(const std::shared_ptr<const Guide>& guide, std::string_view text) {
  GuideState state(guide, nullptr);
  return state.accept_text(text) && state.may_end();
}

// Tokens that lead a reply to its end: required members; ends of bare values and of calls.
const std::vector<std::string> kMembers = {"\"query\": \"bb\"", "\"level\": 1", "\"city\": \"P\"", "\"days\": 3"};
const std::vector<std::string> kTags = {"</function>\n</tool_call>", "</tool_call>", "\n</parameter>\n",
                                        "</arg_value>\n"};

const std::shared_ptr<const TokenTrie>& vocabulary() {
  static const auto trie = [] {
    std::vector<std::string> tokens = Json::parse(R"(["<tool_call>", "<think>", "</think>", "<function=", "</function>",
      "<parameter=", "</parameter>\n", "</parameter>", "</arg_value>", "x\n</parameter>\n<", "\n", "\n\n", "\": \"", "\", \"", "\"}", "}\n", "{\"", "abc\"",
      "; {", "}, {\"", " [", "[{", "</", "\\n", "\\\"", "name", "weather", "search", "ab", "city", "days", "é", "12", "null"])");
    for (const char* part : {"\xc3", "\xa9"}) tokens.push_back(part);
    for (const auto* list : {&kMembers, &kTags}) tokens.insert(tokens.end(), list->begin(), list->end());
    for (const char* tag : {"[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|tool_call|>", "<|assistant|>",
                            "</tool_call>", "<arg_key>", "</think>"})
      tokens.push_back(kSpecialByte + std::string(tag));
    for (char c = ' '; c <= '~'; c++) tokens.push_back(std::string(1, c));
    return std::make_shared<const TokenTrie>(std::move(tokens));
  }();
  return trie;
}

std::vector<int32_t> allowed(GuideState& state) {
  std::vector<uint32_t> bits(size_t(vocabulary()->words()), ~0u);
  state.mask(bits);
  std::vector<int32_t> out;
  for (int32_t token = 0; token < vocabulary()->vocab_size(); token++)
    if ((bits[size_t(token / 32)] >> (token % 32) & 1) != 0) out.push_back(token);
  return out;
}

// A random text that the guide lets through: tokens of several bytes as often as others, at last what ends things.
std::string walk(const std::shared_ptr<const Guide>& guide, const std::string& format, std::mt19937& random) {
  const std::vector<std::string>& last = bare(format) ? kTags : kMembers;
  GuideState state(guide, vocabulary());
  std::vector<int32_t> taken;
  const auto text = [&] {
    std::string all;
    for (const int32_t token : taken) all += vocabulary()->bytes(token);
    std::erase(all, kSpecialByte);
    return all;
  };
  for (int step = 0; step < 400; step++) {
    std::vector<int32_t> tokens = allowed(state);
    EXPECT_TRUE(state.may_end() || !tokens.empty()) << "a dead end behind " << text();
    if (step % 16 == 0) {
      for (int32_t token = 0; token < vocabulary()->vocab_size(); token++) {
        const bool masked = std::find(tokens.begin(), tokens.end(), token) == tokens.end();
        const bool accepted = state.accept(token);
        EXPECT_NE(masked, accepted) << vocabulary()->bytes(token) << " behind " << text();
        if (accepted) state.rollback(1);
      }
    }
    if (tokens.empty() || (state.may_end() && random() % 40 == 0) || (state.may_end() && step > 120)) return text();
    const bool late = step > 120;
    const auto good = [&](int32_t token, bool ends) {
      const std::string bytes(vocabulary()->bytes(token));
      if (late && ends) return std::find(last.begin(), last.end(), bytes) != last.end();
      return late ? std::string_view("\"}]\n<>/").find(bytes[0]) != std::string::npos : bytes.size() > 2;
    };
    for (const bool ends : {true, false}) {
      std::vector<int32_t> some;
      std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(some), [&](int32_t t) { return good(t, ends); });
      if (some.empty() || (!late && random() % 2 == 0)) continue;
      tokens = some;
      break;
    }
    taken.push_back(tokens[random() % tokens.size()]);
    EXPECT_TRUE(state.accept(taken.back()));
    if (random() % 8 == 0) {  // back, and on by the same tokens
      const size_t back = random() % taken.size();
      state.rollback(int64_t(back));
      for (size_t i = taken.size() - back; i < taken.size(); i++) EXPECT_TRUE(state.accept(taken[i]));
    }
  }
  return "";
}

struct Reply {
  std::string text, reasoning;
  std::vector<std::pair<std::string, std::string>> calls;
};

Reply parse(const CallRules& rules, const Json& tools, const std::string& text) {
  const auto parser = make_reply_parser(
      {.format = rules.format, .reasoning = rules.reasoning, .in_reasoning = rules.in_reasoning}, tools);
  std::vector<ReplyEvent> events;
  parser->push(text, events);
  parser->finish(events);
  Reply reply;
  for (const ReplyEvent& event : events) {
    if (event.kind == Kind::kText) reply.text += event.text;
    if (event.kind == Kind::kReasoning) reply.reasoning += event.text;
    if (event.kind == Kind::kCallBegin) reply.calls.emplace_back(event.text, "");
    if (event.kind == Kind::kArguments) reply.calls.back().second += event.text;
  }
  return reply;
}

// Random replies under the rules; what each holds beside calls that fit is for `look`.
template <typename Look>
void expect_fitting(const CallRules& rules, const Json& tools, uint32_t seed, Look look) {
  const auto guide = call_guide(rules, tools);
  std::map<std::string, std::shared_ptr<const Guide>> schemas;
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    const bool held = rules.required || function.value("strict", false);
    const Json schema = function.value("parameters", Json{{"type", "object"}, {"maxProperties", 0}});
    schemas[function["name"]] = held ? json_schema_guide(schema.dump()) : json_object_guide();
  }
  std::mt19937 random(seed);
  int calls = 0, unfinished = 0;
  for (int i = 0; i < 40; i++) {
    const std::string text = walk(guide, rules.format, random);
    if (text.empty()) unfinished++;
    if (text.empty()) continue;
    const Reply reply = parse(rules, tools, text);
    look(reply, text);
    for (const auto& [name, arguments] : reply.calls) {
      calls++;
      ASSERT_TRUE(schemas.contains(name)) << rules.format << ": " << text;
      EXPECT_TRUE(accepts(schemas[name], arguments)) << rules.format << ": " << text << "\n" << arguments;
    }
  }
  EXPECT_GE(calls, 8) << rules.format;
  EXPECT_LT(unfinished, 8) << rules.format;
}

TEST(CallGuide, RequiredCallsFitTheirSchemas) {
  for (const std::string& format : reply_formats()) {
    const auto calls_alone = [&](const Reply& reply, const std::string& text) {
      EXPECT_GE(reply.calls.size(), 1u) << format << ": " << text;
      EXPECT_EQ(reply.text, "") << format << ": " << text;
    };
    expect_fitting({.format = format, .required = true}, tools_of(format), 1, calls_alone);
    expect_fitting({.format = format, .required = true, .only = "search", .parallel = false, .reasoning = false},
                   tools_of(format), 2, [&](const Reply& reply, const std::string& text) {
                     calls_alone(reply, text);
                     ASSERT_EQ(reply.calls.size(), 1u) << format << ": " << text;
                     EXPECT_EQ(reply.calls[0].first, "search");
                   });
    expect_fitting({.format = format, .required = true, .in_reasoning = true}, tools_of(format), 3, calls_alone);
  }
}

TEST(CallGuide, FreeTextGoesOnToCallsThatFit) {
  for (const std::string& format : reply_formats()) {
    int texts = 0;
    expect_fitting({.format = format}, tools_of(format), 4,
                   [&](const Reply& reply, const std::string&) { texts += !reply.text.empty(); });
    EXPECT_GE(texts, 5) << format;
  }
}

struct Case {
  const char* format;
  const char* call;  // of weather
  const char* next;  // the separator to another
};
const Case kCalls[] = {
    {"hermes", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"days\": 3, \"city\": \"<P>\"}}\n</tool_call>",
     "\n"},
    {"llama3_json", "{\"name\": \"weather\", \"parameters\": {\"city\": \"P\", \"days\": 3}}", "; "},
    {"mistral", "[TOOL_CALLS]weather[ARGS]{\"city\": \"P\", \"days\": 3, \"unit\": \"f\"}", ""},
    {"mistral", "[TOOL_CALLS]weather{\"city\": \"P\", \"days\": 3}", ""},
    {"glm4_json", "weather\n{\"city\": \"P\", \"days\": 3}", "<|assistant|>"},
    {"qwen3_coder",
     "<tool_call>\n<function=weather>\n<parameter=city>\n\nA </param> \xc3\xa9\n\n</parameter>\n<parameter=days>\n14\n"
     "</parameter>\n<parameter=unit>\nf\n</parameter>\n</function>\n</tool_call>",
     "\n"},
    {"glm4",
     "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>\"P\"</arg_value>\n<arg_key>days</arg_key>\n"
     "<arg_value>1</arg_value>\n</tool_call>",
     "\n"},
};

TEST(CallGuide, AsTemplatesWriteCalls) {
  for (const Case& one : kCalls) {
    const std::string call = one.call, two = call + one.next + call;
    const auto guide = call_guide({.format = one.format, .required = true}, tools_of(one.format));
    EXPECT_TRUE(accepts(guide, two)) << two;
    EXPECT_TRUE(accepts(guide, "<think>\nwhy</thi </think>\n\n" + call)) << call;
    EXPECT_FALSE(accepts(guide, two.substr(0, two.size() - 1))) << two;
    EXPECT_FALSE(accepts(guide, "so " + call)) << call;
    EXPECT_FALSE(accepts(guide, call + " so")) << call;
    EXPECT_FALSE(accepts(guide, "")) << call;
    const auto single =
        call_guide({.format = one.format, .required = true, .only = "weather", .parallel = false}, tools());
    GuideState state(single, nullptr);
    EXPECT_TRUE(state.accept_text(call) && state.must_end()) << call;
    EXPECT_FALSE(accepts(single, two)) << two;
    EXPECT_FALSE(accepts(call_guide({.format = one.format, .required = true, .only = "now"}, tools()), call)) << call;
  }
  const auto list = call_guide({.format = "mistral", .required = true}, tools());
  const auto granite = call_guide({.format = "granite", .required = true}, tools());
  EXPECT_TRUE(accepts(granite, R"(<|tool_call|>[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}])"));
  EXPECT_FALSE(accepts(granite, "<|tool_call|>now{}"));
  for (const char* begin : {"[", " ["})
    EXPECT_TRUE(accepts(list, "[TOOL_CALLS]" + std::string(begin) + R"({"name": "now", "arguments": {}}, )" +
                                  R"({"name": "weather", "arguments": {"city": "", "days": 1}}])"));
}

struct Value {
  const char* schema;
  std::vector<std::string> valid, invalid;
};

TEST(CallGuide, BareValuesFitOnceTheParserHasReadThem) {
  const std::vector<Value> values = {
      {R"({"type": "string"})",
       {"x", "", "5", "null", "\n a\n", "<b> </param>", "a\n\nb", "\xc3\xa9"},
       {"</parameter></arg_value>", "a\n<parameter=b>\n</arg_value>", "\xff b", "\xc3"}},
      {R"({"description": "any"})", {"x", "5", "{\"a\": 1}", "True"}, {"\xff b"}},
      {R"({"anyOf": [{"type": "string"}, {"type": "null"}]})", {"x", "null", "3.5", "\"q\""}, {}},
      {R"({"type": ["string", "integer"]})", {"3", "\"3.5\""}, {"3.5", "x"}},
      {R"({"type": ["string", "number"], "maxLength": 2})", {"3.5", "\"ab\""}, {"a", "abc", "\"abc\""}},
      {R"({"type": "integer"})", {"3"}, {"3.5", "x", ""}},
      {R"({"enum": [1.0, true]})", {"1", "1.0", "true"}, {"2", "\"1\""}},
      {R"({"type": "array", "items": {"type": "string"}})",
       {R"(["<b>", "</"])", R"(["<\/parameter>", "<\/arg_value>"])"},
       {R"(["</parameter>", "</arg_value>"])"}},
      {R"({"additionalProperties": true})", {R"({"<a>": ["</b>"]})"}, {}},
      {R"({"type": "object"})", {R"({"<a>": ["</b>"]})"}, {R"({"</parameter></arg_value>": 1})", "a"}},
      {R"({"enum": ["a", "b c"]})", {"a", "b c"}, {"\"a\"", "b"}},
      {R"({"type": "string", "pattern": "b$", "minLength": 2, "maxLength": 3})",
       {"bb", "\xc3\xa9\nb"},
       {"b", "ba", "aabb"}},
      {R"({"type": "string", "format": "date"})", {"2024-02-29"}, {"2023-02-29", "on 2024-02-29"}},
      {R"({"type": "string", "if": {"pattern": "^a"}, "then": {"maxLength": 2}, "else": {"minLength": 3}})",
       {"ab", "bcd"},
       {"abc", "bc"}},
      {R"({"type": "string", "oneOf": [{"maxLength": 2}, {"pattern": "^a"}], "not": {"const": "bc"}})",
       {"b", "abc"},
       {"ab", "bcd", "bc"}},
      {R"({"type": "string", "allOf": [{"$ref": "#/$defs/s"}, {"anyOf": [{"const": "ab"}, {"type": "null"}, true]}]})",
       {"abc"},
       {"a"}},
  };
  for (const Value& one : values) {
    Json parameters = {{"type", "object"}, {"properties", {{"v", Json::parse(one.schema)}}}, {"required", {"v"}}};
    parameters["$defs"]["s"]["minLength"] = 2;
    const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", parameters}}}}});
    const auto schema = json_schema_guide(parameters.dump());
    const auto check_all = [&](const CallRules& rules, const std::string& begin, const std::string& end) {
      const auto guide = call_guide(rules, tools);
      for (const std::string& value : one.invalid)
        EXPECT_FALSE(accepts(guide, begin + value + end)) << rules.format << one.schema << value;
      for (const std::string& value : one.valid) {
        EXPECT_TRUE(accepts(guide, begin + value + end)) << rules.format << one.schema << value;
        const Reply reply = parse(rules, tools, begin + value + end);
        ASSERT_EQ(reply.calls.size(), 1u) << rules.format << one.schema << value;
        EXPECT_TRUE(accepts(schema, reply.calls[0].second)) << one.schema << reply.calls[0].second;
      }
    };
    check_all({.format = "qwen3_coder", .required = true}, "<tool_call>\n<function=f>\n<parameter=v>\n",
              "\n</parameter>\n</function>\n</tool_call>");
    check_all({.format = "glm4", .required = true}, "<tool_call>f\n<arg_key>v</arg_key>\n<arg_value>",
              "</arg_value>\n</tool_call>");
  }
}

TEST(CallGuide, TextHoldsATagOnlyWhereACallFollows) {
  for (const Case& one : kCalls) {
    const std::string call = one.call;
    const bool begins_bare = call[0] == '{' || call[0] == 'w';
    const auto guide = call_guide({.format = one.format}, tools());
    EXPECT_TRUE(accepts(guide, begins_bare ? call : "Well, <tool [TOOL_ " + call)) << call;
    EXPECT_TRUE(accepts(
        guide, "<think>so [TOOL_CALLS] <tool_call> {</think>\n\n" + std::string(begins_bare ? call : "x" + call)));
    EXPECT_TRUE(accepts(guide, "Half a tag: <tool_cal, [TOOL_CALLS, <|python_tag, and <think>")) << call;
    EXPECT_TRUE(accepts(guide, ""));
    EXPECT_TRUE(accepts(guide, "\xc3\xa9 text\n")) << call;
    const std::string tag = call_tag(one.format);
    EXPECT_FALSE(accepts(guide, "text " + tag + " text")) << call;
    EXPECT_FALSE(accepts(guide, "text " + tag)) << call;
    const auto inside = call_guide({.format = one.format, .in_reasoning = true}, tools());
    EXPECT_TRUE(accepts(inside, "I " + tag + "\n</think>\ntext"));
    EXPECT_FALSE(accepts(inside, "I"));
    EXPECT_FALSE(
        accepts(call_guide({.format = one.format, .reasoning = false}, tools()), "<think>" + tag + "</think>"));
  }
  EXPECT_FALSE(accepts(call_guide({.format = "llama3_json"}, tools()), "{\"a\": 1}"));
  EXPECT_FALSE(accepts(call_guide({.format = "qwen3_coder"}, tools()), "a <function=now>\n</function>"));
}

// A closed place takes the names of all schemas that describe it; what says of other members stays as it says.
TEST(CallGuide, ObjectsThatNamePropertiesAreClosed) {
  const auto takes = [](const std::string& schema, const std::string& arguments, bool open = false) {
    const Json tools = Json::array({{{"function", {{"name", "f"}, {"parameters", Json::parse(schema)}}}}});
    const auto guide =
        call_guide({.format = "llama3_json", .required = true, .reasoning = false, .open_objects = open}, tools);
    return accepts(guide, R"({"name": "f", "parameters": )" + arguments + "}");
  };
  const std::string plain = R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]})";
  EXPECT_TRUE(takes(plain, R"({"a": 1, "b": 2})"));
  EXPECT_FALSE(takes(plain, R"({"b": 2, "c": 3})"));
  EXPECT_TRUE(takes(plain, R"({"b": 2, "c": 3})", /*open=*/true));
  const std::string parts = R"({"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"b": {"$ref": "#/$defs/a"}}}],
    "anyOf": [{"properties": {"c": {}}}, {"required": ["a"]}], "$defs": {"a": {"properties": {"a": {}}}}})";
  EXPECT_TRUE(takes(parts, R"({"a": 1, "b": {"a": 2}, "c": 3})"));
  EXPECT_FALSE(takes(parts, R"({"a": 1, "d": 2})"));
  EXPECT_FALSE(takes(parts, R"({"a": 1, "b": {"a": 2, "c": 3}})"));
  const std::string tree = R"({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    "all": {"type": "array", "items": {"properties": {"x": {}}}}}})";
  EXPECT_TRUE(takes(tree, R"({"next": {"next": null}, "all": [{"x": 1}]})"));
  EXPECT_FALSE(takes(tree, R"({"next": {"other": 1}})"));
  EXPECT_FALSE(takes(tree, R"({"all": [{"x": 1, "y": 2}]})"));
  for (const char* schema :
       {R"({"type": "object"})", R"({"properties": {}})", R"({"properties": {"a": {}}, "additionalProperties": true})",
        R"({"properties": {"a": {}}, "patternProperties": {"^x": {}}})",
        R"({"allOf": [{"properties": {"a": {}}}, {"additionalProperties": {"type": "integer"}}]})"})
    EXPECT_TRUE(takes(schema, R"({"other": 1})")) << schema;
  std::string chain = R"({"properties": {"v": {"$ref": "#/$defs/0"}}, "$defs": {)";
  for (int i = 0; i < 5000; i++)
    chain += fmt::format("\"{}\": {{\"properties\": {{\"a\": {{\"$ref\": \"#/$defs/{}\"}}}}}}, ", i, i + 1);
  EXPECT_TRUE(takes(chain + R"("5000": {}}})", R"({"v": {"a": {"a": {}}}})"));
}

TEST(CallGuide, SpecialTokensAreTagsAndNothingElse) {
  const auto& trie = vocabulary();
  const auto find = [&](const std::string& bytes) {
    int32_t token = 0;
    while (trie->bytes(token) != bytes) token++;
    return token;
  };
  const int32_t calls = find(kSpecialByte + std::string("[TOOL_CALLS]"));
  GuideState state(call_guide({.format = "mistral"}, tools()), trie);
  const auto may = [&] {
    const std::vector<int32_t> tokens = allowed(state);
    return std::find(tokens.begin(), tokens.end(), calls) != tokens.end();
  };
  EXPECT_TRUE(may());
  EXPECT_TRUE(state.accept_text("Hi ["));
  EXPECT_TRUE(may());
  EXPECT_TRUE(state.accept(calls));
  EXPECT_FALSE(may());
  EXPECT_TRUE(state.accept_text("weather{\"city\": \"a"));
  EXPECT_FALSE(may());
  EXPECT_FALSE(state.accept(calls));
  EXPECT_TRUE(state.accept_text("[TOOL_CALLS]\", \"days\": 1}"));
  EXPECT_TRUE(may());
  state.rollback(2);
  EXPECT_FALSE(may());
  GuideState other(call_guide({.format = "hermes"}, tools()), trie);
  EXPECT_FALSE(other.accept(calls));
  EXPECT_TRUE(other.accept_text("[TOOL_CALLS]"));
}

TEST(CallGuide, TriesOfVocabulariesMarkSpecialTokens) {
  BpeVocabulary vocabulary{.tokens = {"a", "\xc3\xbf", "", "", "b"}};  // the second spells the byte 0xFF
  vocabulary.added = {{.id = 2, .text = "[TOOL_CALLS]"}, {.id = 3, .text = "<tool_call>", .special = false}};
  const auto trie = make_token_trie(*make_bpe(std::move(vocabulary), "test"));
  ASSERT_EQ(trie->vocab_size(), 5);
  const std::string want[] = {"a", "", kSpecialByte + std::string("[TOOL_CALLS]"), "<tool_call>", "b"};
  for (int32_t token = 0; token < 5; token++) EXPECT_EQ(trie->bytes(token), want[token]) << token;
}

TEST(CallGuide, WhatCannotBeHeldIsRefusedWithTheToolsName) {
  const auto refused = [](const CallRules& rules, const Json& tools, const std::string& word) {
    try {
      call_guide(rules, tools);
      FAIL() << "not refused: " << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(error.message().find(word), std::string::npos) << error.message() << "\nlacks: " << word;
    }
  };
  const auto tool = [](const std::string& name, const char* parameters) {
    return Json::array(
        {{{"type", "function"}, {"function", {{"name", name}, {"parameters", Json::parse(parameters)}}}}});
  };
  const CallRules hermes{.format = "hermes", .required = true}, qwen{.format = "qwen3_coder", .required = true};
  refused({.format = "hermess"}, tools(), "hermess");
  refused(hermes, Json::array(), "no function");
  refused({.format = "hermes", .required = true, .only = "f"}, tools(), "'f'");
  refused(hermes, Json::array({1}), "tools: 1");
  refused(hermes, tool("a b", "{}"), "'a b'");
  for (const char* word : {"tool 'f'", "unevaluatedItems"})
    refused(hermes, tool("f", R"({"properties": {"a": {"unevaluatedItems": false}}})"), word);
  for (const char* word : {"tool 'f'", "\\b"})
    refused(qwen, tool("f", R"({"properties": {"a": {"pattern": "\\b"}}})"), word);
  refused(hermes, tool("f", R"({"type": "array"})"), "no object");
  for (const char* word : {"tool 'f'", "minProperties"}) refused(qwen, tool("f", R"({"minProperties": 1})"), word);
  refused(qwen, tool("f", R"({"properties": {"a>": {}}})"), "'a>'");
  refused(qwen, tool("f", R"({"properties": {"a": {"const": ["</parameter>"]}}})"), "</parameter>");
  EXPECT_TRUE(accepts(call_guide({.format = "hermes"}, tool("f", R"({"unevaluatedItems": false})")), "text"));
}

}  // namespace
}  // namespace octet
