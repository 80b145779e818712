// Fields that others' clients send: served, refused by name, or named as ignored.
#include <gtest/gtest.h>

#include "serve/fields.h"
#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

using Json = nlohmann::json;

TEST(Fields, ANumberThatNoDoubleHoldsIsRefusedWhereItIsRead) {
  const nlohmann::ordered_json body =
      parse_body(R"({"temperature": 1e400, "top_p": 0.5, "seed": -1e999, "other": [1e400]})");
  Fields fields(body);
  EXPECT_EQ(fields.number("top_p", 0, 1), 0.5);
  EXPECT_THROW(fields.number("temperature", 0, 100), ApiError);
  EXPECT_THROW(fields.integer("seed", -10, 10), ApiError);
  EXPECT_EQ(fields.unknown(), std::vector<std::string>{"other"});
}

class FieldsTest : public testing::Test {
 protected:
  Answer complete(Json more) {
    more.emplace("prompt", "Hi"), more.emplace("max_tokens", 20), more.emplace("seed", 3);
    return server_.complete(more);
  }
  Answer chat(Json more) {
    more["messages"] = Json::parse(R"([{"role": "user", "content": "Hi"}])");
    more.emplace("max_tokens", 20), more.emplace("seed", 3);
    return server_.ask("POST", "/v1/chat/completions", more.dump());
  }
  static std::string text(const Answer& answer) {
    EXPECT_EQ(answer.status, 200) << answer.body;
    const Json choice = answer.json()["choices"][0];
    return choice.contains("text") ? choice["text"] : choice["message"]["content"];
  }

  TinyServer server_{{}, {.limits = fake_limits(256, 4, 256)}, {.draft = "ngram"}};
};

TEST_F(FieldsTest, AllowedTokensAndBadWords) {
  const int32_t a = 'a' - ' ', b = 'b' - ' ';
  const Json only = {{"allowed_token_ids", {a, b}}, {"ignore_eos", true}, {"n", 3}};
  const Json allowed = complete(only).json()["choices"];
  ASSERT_EQ(allowed.size(), 3u);
  for (const Json& choice : allowed) {
    EXPECT_EQ(choice["text"].get<std::string>().find_first_not_of("ab"), std::string::npos) << choice;
    EXPECT_EQ(choice["text"].get<std::string>().size(), 20u);
  }
  Json without = only;
  without["bad_words"] = {"aa", "bb"};
  const Json others = complete(without).json()["choices"];
  ASSERT_EQ(others.size(), 3u);
  for (const Json& choice : others) {
    const std::string text = choice["text"];
    EXPECT_EQ(text.find("aa"), std::string::npos) << text;
    EXPECT_EQ(text.find("bb"), std::string::npos) << text;
  }
  const Json guided = {{"structured_outputs", {{"regex", "[ab]{12}"}}}, {"bad_words", {"ab"}}};
  EXPECT_EQ(text(complete(guided)).find("ab"), std::string::npos);
  EXPECT_EQ(text(chat(guided)).find("ab"), std::string::npos);
  EXPECT_EQ(complete({{"allowed_token_ids", Json::array()}}).status, 400);
  EXPECT_EQ(complete({{"allowed_token_ids", {1000}}}).status, 400);
  EXPECT_EQ(complete({{"bad_words", std::string(2000, 'a')}}).status, 400);
  const Answer none = complete({{"allowed_token_ids", {a}}, {"bad_words", "a"}});
  EXPECT_EQ(none.status, 400);
  EXPECT_NE(none.body.find("leave no token"), std::string::npos) << none.body;
  const Answer triton =
      server_.ask("POST", "/v2/models/tiny/generate",
                  Json{{"text_input", "Hi"}, {"allowed_token_ids", {a, b}}, {"bad_words", {"aa"}}}.dump());
  EXPECT_EQ(triton.json()["text_output"].get<std::string>().find("aa"), std::string::npos) << triton.body;
}

TEST_F(FieldsTest, PromptsAreCutFromTheFront) {
  const Json ids = {{"return_token_ids", true}, {"truncate_prompt_tokens", 3}};
  Json text = ids, list = ids, long_text = ids;
  text["prompt"] = "ABCDEF", list["prompt"] = {1, 2, 3, 4, 5}, long_text["prompt"] = std::string(5000, 'x') + "EF";
  const auto prompt = [](const Answer& answer) { return answer.json()["choices"][0]["prompt_token_ids"]; };
  EXPECT_EQ(prompt(complete(text)), Json({'D' - ' ', 'E' - ' ', 'F' - ' '}));
  EXPECT_EQ(prompt(complete(list)), Json({3, 4, 5}));
  EXPECT_EQ(prompt(complete(long_text)), Json({'x' - ' ', 'E' - ' ', 'F' - ' '}));
  EXPECT_EQ(prompt(chat(ids)).size(), 3u);
  long_text["truncate_prompt_tokens"] = -1, long_text["max_tokens"] = 1;
  EXPECT_EQ(complete(long_text).json()["usage"]["prompt_tokens"], 255);
  EXPECT_EQ(complete({{"truncate_prompt_tokens", 0}}).status, 400);
}

TEST_F(FieldsTest, GuidesOfOtherServers) {
  const Json schema = Json::parse(R"({"type": "object", "properties": {"a": {"enum": ["xy"]}}, "required": ["a"],
                                      "additionalProperties": false})");
  for (const Json& more : {Json{{"response_format", {{"type", "json_object"}, {"schema", schema}}}},
                           Json{{"response_format", {{"type", "json_object"}, {"value", schema}}}},
                           Json{{"response_format", {{"type", "json"}, {"value", schema}}}},
                           Json{{"json_schema", schema}}, Json{{"grammar", {{"type", "json"}, {"value", schema}}}}}) {
    EXPECT_EQ(Json::parse(text(complete(more))), Json({{"a", "xy"}})) << more;
    EXPECT_EQ(Json::parse(text(chat(more))), Json({{"a", "xy"}})) << more;
  }
  EXPECT_EQ(text(complete({{"grammar", "root ::= \"abc\""}})), "abc");
  EXPECT_EQ(text(complete({{"ebnf", "root ::= \"abc\""}})), "abc");
  EXPECT_EQ(text(complete({{"regex", "abc"}})), "abc");
  EXPECT_EQ(text(complete({{"response_format", {{"type", "regex"}, {"value", "abc"}}}})), "abc");
  EXPECT_EQ(complete({{"grammar", "root ::= \"a\""}, {"regex", "a"}}).status, 400);
}

TEST_F(FieldsTest, NPredictIsMaxTokens) {
  EXPECT_EQ(
      server_.complete({{"prompt", "Hi"}, {"n_predict", 7}, {"ignore_eos", true}}).json()["usage"]["completion_tokens"],
      7);
  EXPECT_EQ(server_.complete({{"prompt", "Hi"}, {"n_predict", -1}, {"ignore_eos", true}})
                .json()["usage"]["completion_tokens"],
            254);
  EXPECT_EQ(complete({{"n_predict", -2}}).status, 400);
}

TEST_F(FieldsTest, WhatAsksForAFormIsServedOrRefused) {
  for (const Json& more :
       {Json{{"suffix", "x"}}, Json{{"modalities", {"audio"}}}, Json{{"audio", {{"voice", "a"}}}},
        Json{{"format", "json"}}, Json{{"return_tokens_as_token_ids", true}}, Json{{"include_reasoning", false}},
        Json{{"n_probs", 3}}, Json{{"guided_json", "{}"}}, Json{{"details", true}}})
    for (const Answer& answer : {complete(more), chat(more)}) {
      EXPECT_EQ(answer.status, 400) << more;
      EXPECT_NE(answer.body.find(more.begin().key()), std::string::npos) << answer.body;
    }
  for (const Json& more : {Json{{"suffix", ""}}, Json{{"modalities", {"text"}}}, Json{{"include_reasoning", true}},
                           Json{{"return_full_text", false}}, Json{{"audio", nullptr}}})
    for (const Answer& answer : {complete(more), chat(more)}) EXPECT_EQ(answer.status, 200) << more << answer.body;
}

TEST_F(FieldsTest, WhatNoOneKnowsIsNamed) {
  testing::internal::CaptureStderr();
  Json more = {{"no_such", 1}, {"user", "me"}, {"metadata", Json::object()}, {"store", false}, {"a\r\nb, c", 1}};
  more[std::string(500, 'x')] = 1;
  for (int i = 0; i < 2; ++i) {
    const Answer answer = chat(more);
    EXPECT_EQ(answer.status, 200);
    EXPECT_NE(answer.head.find("\r\nX-Ignored-Fields: a??b??c, no_such, " + std::string(64, 'x')), std::string::npos)
        << answer.head;
  }
  EXPECT_EQ(chat({{"user", "me"}}).head.find("X-Ignored-Fields"), std::string::npos);
  for (int i = 0; i < 40; ++i) more["z" + std::to_string(i)] = 1;
  const std::string head = chat(more).head, names = head.substr(head.find("X-Ignored-Fields"));
  EXPECT_EQ(std::count(names.begin(), names.begin() + static_cast<ptrdiff_t>(names.find("\r\n")), ','), 15);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("no_such"), std::string::npos) << log;
  EXPECT_EQ(log.find("no_such", log.find("no_such") + 1), std::string::npos) << log;
}

}  // namespace
}  // namespace octet::serve
