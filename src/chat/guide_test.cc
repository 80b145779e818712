#include "chat/guide.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/testing/test_error.h"
#include "chat/token_trie.h"

namespace octet {
namespace {

bool accepts(const std::shared_ptr<const Guide>& guide, std::string_view text) {
  GuideState state(guide, nullptr);
  return state.accept_text(text) && state.may_end();
}

struct Case {
  const char* source;
  std::vector<std::string> valid, invalid;
};

void expect_cases(const std::vector<Case>& cases,
                  const std::function<std::shared_ptr<const Guide>(const char*)>& make) {
  for (const Case& one : cases) {
    const auto guide = make(one.source);
    for (const std::string& text : one.valid) EXPECT_TRUE(accepts(guide, text)) << one.source << "\n" << text;
    for (const std::string& text : one.invalid) EXPECT_FALSE(accepts(guide, text)) << one.source << "\n" << text;
  }
}

void expect_refused(const std::function<void()>& make, const std::string& word) {
  try {
    make();
    FAIL() << "not refused: " << word;
  } catch (const Error& error) {
    EXPECT_NE(error.message().find(word), std::string::npos) << error.message() << "\nlacks: " << word;
  }
}

// Free text through </think>, then what the guide takes.
TEST(Guide, HoldsBehindAThought) {
  const std::vector<std::string> choices = {"yes", "no"};
  const auto takes = [&](std::string_view text) {
    GuideState state(choice_guide(choices), nullptr, /*thought=*/true);
    return state.accept_text(text) && state.may_end();
  };
  for (const char* text : {"</think>yes", "no</thin </think>\n\nno", "<tool_call></think>\nyes"})
    EXPECT_TRUE(takes(text)) << text;
  for (const char* text : {"yes", "so</think>", "</think>\n\n\nyes", "</think>maybe", "</think>yes</think>"})
    EXPECT_FALSE(takes(text)) << text;
}

TEST(Guide, SchemasByKeyword) {
  const std::vector<Case> cases = {
      {R"(true)",
       {R"({"a":1})", R"([1, 2])", "null", "-1.5e3", R"("\u00e9\ud83d\ude00 \/é")"},
       {R"({"a" :1})", "[1,  2]", "01", R"("\ud83d")", "\"\x01\"", "\"\xff\"", "nul", "[1,]"}},
      {R"({"type": ["integer", "null"]})", {"0", "-7", "1.0", "null"}, {"1.5", "\"1\"", "true", "1e2"}},
      {R"({"type": "integer", "minimum": -12, "maximum": 107})",
       {"-12", "-9", "0", "99", "100", "107"},
       {"-13", "108", "1000", "-0"}},
      {R"({"type": "number", "exclusiveMinimum": 0.25, "maximum": 10})",
       {"0.2501", "1", "9.99", "10", "10.0"},
       {"0.25", "0.250", "10.01", "-1", "11"}},
      {R"({"type": "number", "minimum": -1.5, "exclusiveMaximum": 0})",
       {"-1.5", "-1.50", "-0.1", "-1"},
       {"0", "-1.51", "-2", "1"}},
      {R"({"maximum": 5, "exclusiveMaximum": true})", {"4.9", "\"text\"", "[]"}, {"5", "6"}},
      {R"({"type": "number", "multipleOf": 0.25})", {"0.25", "1.5", "-7.750", "3"}, {"0.1", "0.255"}},
      {R"({"type": "integer", "multipleOf": 7, "minimum": 8, "maximum": 30})", {"14", "21", "28"}, {"7", "8", "35"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("é€")", R"("a\n😀")", R"("\ud83d\ude00b")"},
       {R"("a")", R"("abcd")", R"("😀")"}},
      {R"({"type": "string", "pattern": "b+$"})", {R"("ab")", R"("bbb")"}, {R"("ba")", R"("")"}},
      {R"({"pattern": "^(a|\"x\\\\)$"})", {R"("a")", R"("\"x\\")", "3"}, {R"("x")", R"("aa")"}},
      {R"({"type": "string", "pattern": "^[a-c]*$", "maxLength": 2})", {R"("")", R"("ab")"}, {R"("abc")", R"("d")"}},
      {R"({"type": "string", "format": "date"})",
       {R"("2024-02-29")", R"("2023-12-31")"},
       {R"("2023-02-29")", R"("2023-4-01")"}},
      {R"({"type": "string", "format": "ipv6"})",
       {R"("::")", R"("1::8")", R"("fe80::1:192.168.0.1")"},
       {R"("1::2::3")", R"("12345::")", R"(":")"}},
      {R"({"type": "string", "format": "uri"})",
       {R"("https://a.b/c?d=e#f")", R"("urn:x:y")"},
       {R"("a b")", R"("//host")"}},
      {R"({"enum": ["a", 1, null, [true], {"x": 2}]})",
       {R"("a")", "1", "1.0", "null", "[true]", R"({"x": 2})"},
       {R"("b")", "2", "[]", "{}"}},
      {R"({"const": {"a": [1, "é"]}})", {R"({"a": [1, "é"]})"}, {R"({"a": [1]})", R"({"a": [1, "é"], "b": 0})"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "ab": {"type": "null"}}, "required": ["ab"]})",
       {R"({"a": 1, "ab": null})", R"({"ab":null, "a":1})", R"({"abc": [], "ab": null})", R"({"ab": null, "\"": 1})"},
       {R"({"a": 1})", R"({"ab": null, "a": "x"})", R"({"ab": null, "ab": null})", R"({"ab": null, "\u0061": "x"})",
        "3"}},
      {R"({"type": "object", "properties": {"a": true}, "additionalProperties": false})",
       {"{}", R"({"a": [1]})"},
       {R"({"b": 1})", R"({"": 1})"}},
      {R"({"type": "object", "patternProperties": {"^n": {"type": "number"}, "s$": {"minimum": 3}}, "additionalProperties": {"type": "null"}})",
       {R"({"n": 1, "ns": 4, "s": "x", "o": null})"},
       {R"({"ns": 2})", R"({"n": ""})", R"({"o": 1})"}},
      {R"({"type": "object", "propertyNames": {"maxLength": 2}, "minProperties": 1, "maxProperties": 2})",
       {R"({"ab": 1})", R"({"a": 1, "b": 2})"},
       {"{}", R"({"abc": 1})", R"({"a": 1, "b": 2, "c": 3})"}},
      {R"({"type": "object", "dependentRequired": {"a": ["b"]}})",
       {"{}", R"({"b": 1})", R"({"a": 1, "b": 2})"},
       {R"({"a": 1})"}},
      {R"({"type": "object", "dependencies": {"a": {"required": ["b"]}}})",
       {"{}", R"({"b": 1})", R"({"b": 1, "a": 2})"},
       {R"({"a": 1})"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2})",
       {"[1]", "[1, 2]"},
       {"[]", "[1, 2, 3]", "[\"\"]"}},
      {R"({"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "boolean"}})",
       {"[]", "[null]", "[null, true]"},
       {"[true]", "[null, 1]"}},
      {R"({"items": [{"type": "null"}], "additionalItems": false})", {"[]", "[null]", "7"}, {"[null, null]"}},
      {R"({"type": "array", "contains": {"type": "integer"}, "maxContains": 2})",
       {"[\"\", 1]", "[1, 2]"},
       {"[]", "[\"\"]", "[1, 2, 3]"}},
      {R"({"allOf": [{"required": ["a"]}, {"properties": {"a": {"minLength": 2}}}, {"properties": {"a": {"type": "string"}}}]})",
       {R"({"a": "xy"})", R"({"b": 1, "a": "xy"})", "1"},
       {"{}", R"({"a": "x"})", R"({"a": 1})"}},
      {R"({"anyOf": [{"type": "string", "maxLength": 1}, {"minimum": 3}]})",
       {R"("a")", "4", "null", R"("abc")"},
       {"2"}},
      {R"({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}], "type": "integer"})", {"2", "3", "9"}, {"1", "6", "0"}},
      {R"({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"})",
       {R"({"a": 1})", R"({"c": 0, "b": 1})"},
       {"{}", R"({"a": 1, "b": 2})"}},
      {R"({"not": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}})",
       {"3", "{}", R"({"a": 2})"},
       {R"({"a": 1})", R"({"a": 1.0})", R"({"b": 0, "a": 1})"}},
      {R"({"type": "object", "if": {"properties": {"k": {"const": "x"}}, "required": ["k"]}, "then": {"required": ["a"]}, "else": {"required": ["b"]}})",
       {R"({"k": "x", "a": 1})", R"({"a": 0, "k": "x"})", R"({"k": "y", "b": 1})", R"({"b": 1})"},
       {R"({"k": "x"})", R"({"k": "x", "b": 1})", "{}"}},
      {R"({"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"n": {"$ref": "#/$defs/t"}}, "additionalProperties": false}}})",
       {"{}", R"({"n": {"n": {}}})"},
       {R"({"n": 1})", R"({"n": {"m": {}}})"}},
      {R"({"title": "t", "x-own": 1, "type": "boolean"})", {"true"}, {"1"}},
  };
  expect_cases(cases, [](const char* schema) { return json_schema_guide(schema); });
}

TEST(Guide, Regexes) {
  expect_cases({{"[a-c]{2,3}x?", {"ab", "abcx"}, {"a", "abcd", "xx"}},
                {R"((?:é|\u{1f600}|\x41)+\.)", {"éA😀."}, {"é", "."}},
                {R"(^\d+\s\w$)", {"12 a"}, {"12a", "1 é"}},
                {R"([^\n"]*)", {"any é", ""}, {"\n", "\""}},
                {"(?!ab)[a-z]+", {"ac", "b"}, {"ab", "abc"}},
                {"(a*)*b", {"b", "aaab"}, {"a"}},
                {"a{,2}|{", {"a{,2}", "{"}, {"aa"}}},
               [](const char* regex) { return regex_guide(regex); });
}

TEST(Guide, Grammars) {
  expect_cases(
      {{"root ::= item (\",\" item)* # list\nitem ::= [0-9]+ | \"(\" root \")\"", {"1", "1,(2,3)"}, {"", "1,", "(1"}},
       {"root ::= \"\\x41\\u00e9\" . [^a-c\\]]{1,2}\n", {"Aéxd", "Aéxdd"}, {"Aéxa", "Aéx", "Aéx]"}},
       {"root ::= (\"a\"\n | \"b\"){2} opt\nopt ::= \"c\"?", {"ab", "bac"}, {"a", "abcc"}}},
      [](const char* grammar) { return grammar_guide(grammar); });
}

TEST(Guide, ChoicesEndWhereNothingFollows) {
  const std::string choices[] = {"yes", "yesterday", "no"};
  GuideState state(choice_guide(choices), nullptr);
  EXPECT_TRUE(state.accept_text("yes"));
  EXPECT_TRUE(state.may_end());
  EXPECT_FALSE(state.must_end());
  EXPECT_FALSE(state.accept_text("no"));
  EXPECT_TRUE(state.accept_text("terday"));
  EXPECT_TRUE(state.must_end());
  state.rollback(2);
  EXPECT_TRUE(state.accept_text("no"));
  EXPECT_THROW(state.rollback(2), Error);
}

TEST(Guide, WhatIsNotEnforcedIsRefusedByName) {
  for (const char* keyword : {"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "extends", "disallow"})
    expect_refused([&] { json_schema_guide(nlohmann::json{{keyword, true}}.dump()); }, keyword);
  const std::pair<const char*, const char*> schemas[] = {
      {R"({"uniqueItems": true})", "uniqueItems"},
      {R"({"properties": {"a": {"pattern": "(a)\\1"}}})", "back reference"},
      {R"({"pattern": "\\bx"})", "\\b"},
      {R"({"pattern": "(?<=a)b"})", "look-behind"},
      {R"({"format": "idn-email"})", "idn-email"},
      {R"({"multipleOf": 0})", "multipleOf"},
      {R"({"$ref": "http://a/b"})", "http://a/b"},
      {R"({"$ref": "#/nowhere"})", "#/nowhere"},
      {R"({"allOf": [{"$ref": "#"}]})", "without end"},
      {R"({"type": "text"})", "type"},
      {R"({"required": true})", "required"},
      {R"({"minLength": -1})", "minLength"},
      {R"({"anyOf": []})", "anyOf"},
      {R"([1])", "object or a boolean"},
      {R"({"a": )", "not JSON"},
      {R"(false)", "no output"},
      {R"({"type": "string", "enum": [1, 2]})", "no output"},
  };
  for (const auto& one : schemas) expect_refused([&] { json_schema_guide(one.first); }, one.second);
  expect_refused([] { grammar_guide("root ::= root \"a\" | \"b\""); }, "left recursion");
  expect_refused([] { grammar_guide("root ::= other"); }, "other");
  expect_refused([] { grammar_guide("root ::= <think>"); }, "token");
  expect_refused([] { regex_guide("a(b"); }, "'('");
}

TEST(Guide, BombsEndInBoundedTime) {
  const GuideLimits limits{.states = 20'000, .steps = 200'000};
  const auto walk = [&](const std::shared_ptr<const Guide>& guide, const std::string& text) {
    try {
      accepts(guide, text);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    }
  };
  walk(regex_guide("(a*)*b", limits), std::string(5000, 'a'));
  walk(regex_guide("(a|b)*a(a|b){30}", limits), std::string(5000, 'a'));
  walk(regex_guide("(((a{1,1000}){1,1000}){1,1000})", limits), std::string(5000, 'a'));
  walk(regex_guide("a{1000000}", limits), std::string(5000, 'a'));
  walk(json_schema_guide(R"({"type": "array", "items": {"$ref": "#"}})", limits), std::string(5000, '['));
  expect_refused([&] { json_schema_guide(std::string(5000, '['), limits); }, "deeper");
  expect_refused([&] { regex_guide(std::string(5000, '('), limits); }, "deeper");
  expect_refused([&] { grammar_guide("root ::= " + std::string(5000, '('), limits); }, "deeper");
  expect_refused([&] { json_schema_guide("{}" + std::string(2'000'000, ' ')); }, "limit");
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 3000; i++) chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + "\n";
  walk(json_object_guide(limits), "{\"a\": " + std::string(3000, '['));
  expect_refused([&] { accepts(grammar_guide(chain + "r3000 ::= \"a\""), "a"); }, "deeper");
}

// Tokens of many kinds: letters, ends of strings with what follows, parts of characters.
std::shared_ptr<const TokenTrie> small_vocabulary() {
  std::vector<std::string> tokens = {"",     "{\"",      "\":",      "\": ", "\", \"", "\"}",   "{}",       "[]",
                                     "[[",   "]]",       "},",       "true", "null",   "false", "12",       "100",
                                     "0.",   ".5",       "-1",       "ab",   "abc",    "a\"",   "b\": 1",   "name",
                                     "na",   "me\": \"", "\\n",      "\\\"", "\\u00",  "e9",    "\xc3\xa9", "\xc3",
                                     "\xa9", "\xf0\x9f", "\x98\x80", " \"",  "1, ",    "x\"}]"};
  for (int b = 1; b < 256; b++) tokens.push_back(std::string(1, char(b)));
  return std::make_shared<const TokenTrie>(std::move(tokens));
}

std::vector<int32_t> allowed(GuideState& state, const TokenTrie& trie) {
  std::vector<uint32_t> bits(size_t(trie.words()), ~0u);
  state.mask(bits);
  std::vector<int32_t> out;
  for (int32_t token = 0; token < trie.words() * 32; token++)
    if ((bits[size_t(token / 32)] >> (token % 32) & 1) != 0) out.push_back(token);
  return out;
}

std::string shown(const TokenTrie& trie, const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) text += trie.bytes(token);
  return text;
}

const std::vector<std::shared_ptr<const Guide>>& walked_guides() {
  static const std::vector<std::shared_ptr<const Guide>> guides = {
      json_object_guide(),
      json_schema_guide(
          R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}, "n": {"type": "integer", "minimum": 3, "maximum": 120}}, "required": ["n"], "additionalProperties": {"enum": ["a", "ab", 1]}})"),
      json_schema_guide(
          R"({"oneOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {"type": "object", "properties": {"b": {"type": "number"}}, "required": ["b"]}]})"),
      json_schema_guide(R"({"type": "array", "items": {"type": "string", "pattern": "^[a-b\"é]+$"}, "maxItems": 3})"),
      json_schema_guide(R"({"type": "string", "pattern": "^[a-cé]+$", "minLength": 9, "maxLength": 12})"),
      json_schema_guide(
          R"({"allOf": [{"type": "object", "properties": {"a": {"minLength": 2}}}, {"properties": {"a": {"type": "string", "maxLength": 3}}, "additionalProperties": false}, {"required": ["a"]}]})"),
      regex_guide("(ab|a|na(me)?)*[^x]é?"),
      grammar_guide("root ::= v (\", \" v)*\nv ::= [a-c]+ | \"[\" root? \"]\" | [0-9]* \".\" [0-9]+"),
  };
  return guides;
}

TEST(Guide, MasksAreWhatIsAccepted) {
  const auto trie = small_vocabulary();
  std::mt19937 random(7);
  for (const auto& guide : walked_guides()) {
    for (int text = 0; text < 6; text++) {
      GuideState state(guide, trie);
      std::vector<int32_t> taken;
      for (int step = 0; step < 30; step++) {
        const std::vector<int32_t> tokens = allowed(state, *trie);
        std::vector<int32_t> accepted;
        for (int32_t token = 0; token < trie->vocab_size(); token++) {
          if (!state.accept(token)) continue;
          accepted.push_back(token);
          state.rollback(1);
        }
        ASSERT_EQ(tokens, accepted);
        EXPECT_EQ(state.must_end(), state.may_end() && tokens.empty());
        EXPECT_TRUE(state.may_end() || !tokens.empty()) << "a dead end behind " << shown(*trie, taken);
        if (tokens.empty()) break;
        taken.push_back(tokens[random() % tokens.size()]);
        ASSERT_TRUE(state.accept(taken.back()));
      }
      const int64_t back = int64_t(random() % (taken.size() + 1));
      state.rollback(back);
      GuideState fresh(guide, trie);
      for (size_t i = 0; i + size_t(back) < taken.size(); i++) ASSERT_TRUE(fresh.accept(taken[i]));
      EXPECT_EQ(allowed(state, *trie), allowed(fresh, *trie));
    }
  }
}

TEST(Guide, MemoryOfAllIsBounded) {
  const auto trie = small_vocabulary();
  const auto memory = std::make_shared<GuideMemory>(8 << 20);
  const auto make = [&](int length) {
    const std::string schema =
        R"({"type": "string", "pattern": "^(a|b)*c", "maxLength": )" + std::to_string(length) + "}";
    const auto guide = json_schema_guide(schema, {.memory = memory});
    GuideState state(guide, trie);
    for (int step = 0; step < 20; step++) state.accept_text(step == 0 ? "\"" : "a"), allowed(state, *trie);
    return state;
  };
  std::vector<GuideState> running;
  running.push_back(make(1000));
  std::string error;
  while (running.size() < 1000 && error.find("together") == std::string::npos)
    error = error_of([&] { running.push_back(make(1000 + int(running.size()))); });
  EXPECT_NE(error.find("all guides together take more than 8 MB"), std::string::npos) << error;
  EXPECT_GT(running.size(), 2u);
  EXPECT_NO_THROW(allowed(running.front(), *trie)) << "what is there can be used";
  running.clear();
  EXPECT_EQ(memory->used, 0);
}

TEST(Guide, TextsOfOneGuideInTwoThreads) {
  const auto trie = small_vocabulary();
  const auto run = [&](std::vector<int32_t>& out) {
    std::mt19937 random(3);
    for (const auto& guide : walked_guides()) {
      GuideState state(guide, trie);
      for (int step = 0; step < 20; step++) {
        const std::vector<int32_t> tokens = allowed(state, *trie);
        if (tokens.empty()) break;
        out.push_back(tokens[random() % tokens.size()]);
        state.accept(out.back());
      }
    }
  };
  std::vector<int32_t> one, two;
  std::thread other([&] { run(two); });
  run(one);
  other.join();
  EXPECT_EQ(one, two);
}

}  // namespace
}  // namespace octet
