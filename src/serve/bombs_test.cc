// Requests that have felled servers, each in its class: answered by 4xx or by a text, soon, and beside others.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "serve/testing/answer.h"
#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

using Json = nlohmann::json;

constexpr double kSoon = 20;  // seconds, on a loaded machine under a sanitizer; each takes a fraction of one

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// {"k0":1,"k1":1,...}
std::string members(int count) {
  std::string text = "{";
  for (int i = 0; i < count; ++i) text += fmt::format("{}\"k{}\":1", i > 0 ? "," : "", i);
  return text + "}";
}

class BombsTest : public testing::Test {
 protected:
  // Its status; others are served meanwhile and afterwards.
  int post(const std::string& path, const std::string& body) {
    const auto begin = std::chrono::steady_clock::now();
    const Answer answer = ask(server_.server->port(), "POST", path, body);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), kSoon)
        << body.substr(0, 200);
    EXPECT_TRUE(answer.status / 100 == 2 || answer.status / 100 == 4)
        << body.substr(0, 200) << " gives " << answer.status << " " << answer.body.substr(0, 500);
    EXPECT_EQ(answer.body.find("server_error"), std::string::npos) << answer.body.substr(0, 500);
    EXPECT_EQ(ask(server_.server->port(), "GET", "/livez").status, 200);
    return answer.status;
  }
  int complete(Json more) {
    more.emplace("prompt", "Hi");
    return post("/v1/completions", more.dump());
  }
  int chat(Json more) {
    if (!more.contains("messages")) more["messages"] = Json::parse(R"([{"role": "user", "content": "Hi"}])");
    return post("/v1/chat/completions", more.dump());
  }
  int guided(const char* kind, const Json& guide) {
    return complete({{"structured_outputs", {{kind, guide}}}, {"max_tokens", 20}, {"n", 4}});
  }

  TinyServer server_;
};

TEST_F(BombsTest, NumbersBeyondTheModel) {
  EXPECT_EQ(complete({{"prompt", ""}}), 400);
  EXPECT_EQ(complete({{"prompt", {"Hi", ""}}}), 400);
  EXPECT_EQ(complete({{"n", 2'000'000'000}}), 400);
  EXPECT_EQ(complete({{"best_of", 1e18}}), 400);
  EXPECT_EQ(complete({{"max_tokens", 2'147'483'647}}), 200);
  EXPECT_EQ(complete({{"max_tokens", 9'223'372'036'854'775'807}}), 400);
  EXPECT_EQ(complete({{"min_tokens", 9'223'372'036'854'775'808u}}), 400);
  EXPECT_EQ(complete({{"seed", 9'223'372'036'854'775'808u}}), 400);
  EXPECT_EQ(complete({{"prompt", {1, 2, 1'000'000}}}), 400);
  EXPECT_EQ(complete({{"stop_token_ids", {-1}}}), 400);
  EXPECT_EQ(post("/detokenize", R"({"tokens": [1, 99]})"), 400);
  EXPECT_EQ(complete({{"logit_bias", Json::parse(members(1025))}}), 400);
  Json bias;
  for (int id = 0; id < 96; ++id) bias[std::to_string(id)] = -100;
  EXPECT_EQ(complete({{"logit_bias", bias}}), 200);
}

TEST_F(BombsTest, LongTexts) {
  EXPECT_EQ(complete({{"prompt", std::string(400'000, 'a')}, {"n", 16}, {"echo", true}}), 400);
  EXPECT_EQ(complete({{"prompt", std::vector<int>(100'000, 1)}}), 400);
  EXPECT_EQ(complete({{"prompt", "\xc3\xa9"}}), 400);  // no token for it
  EXPECT_EQ(chat({{"messages", {{{"role", "user"}, {"content", std::string(400'000, 'a')}}}}}), 400);
  EXPECT_EQ(post("/tokenize", Json{{"prompt", std::string(1'100'000, 'a')}}.dump()), 400);
  EXPECT_EQ(complete({{"stop", std::string(1'000'000, 'a')}}), 400);
  EXPECT_EQ(complete({{"stop", std::vector<std::string>(17, "a")}}), 400);
  EXPECT_EQ(complete({{"stop", std::vector<std::string>(16, std::string(1024, 'a'))}, {"n", 8}}), 200);
  EXPECT_EQ(complete({{"cache_salt", std::string(1'000'000, 'a')}}), 400);
  EXPECT_EQ(complete({{"model", std::string(1'000'000, 'a')}}), 404);
  const Json other = {{"prompt", "Hi"}, {"model", std::string(1'000'000, 'a')}};
  EXPECT_LT(ask(server_.server->port(), "POST", "/v1/completions", other.dump()).body.size(), 4096u);
}

// They are read until they have more tokens than the context, and the memory for them goes back.
TEST_F(BombsTest, PromptsOfMegabytes) {
  const std::string text(4'000'000, 'a');
  const auto resident = [] {  // bytes
    std::ifstream file("/proc/self/statm");
    int64_t whole = 0, pages = 0;
    file >> whole >> pages;
    return pages * 4096;
  };
  const int64_t before = resident();
  for (const Json& body : {Json{{"prompt", text}}, Json{{"messages", {{{"role", "user"}, {"content", text}}}}}}) {
    const std::string path = body.contains("prompt") ? "/v1/completions" : "/v1/chat/completions";
    const Answer answer = ask(server_.server->port(), "POST", path, body.dump());
    EXPECT_EQ(answer.status, 400);
    EXPECT_NE(answer.body.find("at least 257 tokens > 255 maximum"), std::string::npos) << answer.body;
  }
  // Whoever counts is not refused.
  const Json message = {{"messages", {{{"role", "user"}, {"content", std::string(2000, 'a')}}}}};
  for (const char* path : {"/tokenize", "/v1/chat/completions/render", "/v1/messages/count_tokens"})
    EXPECT_EQ(post(path, message.dump()), 200) << path;
#ifndef __SANITIZE_ADDRESS__  // which keeps what is freed
  EXPECT_TRUE(eventually([&] { return resident() - before < 32'000'000; })) << resident() - before;
#endif
}

TEST_F(BombsTest, JsonThatCostsMoreThanItsSize) {
  EXPECT_EQ(post("/v1/chat/completions", repeated("[", 1'000'000)), 400);
  EXPECT_EQ(post("/v1/chat/completions", R"({"messages": )" + members(300'000) + "}"), 400);
  EXPECT_EQ(chat({{"messages",
                   {{{"role", "assistant"},
                     {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", members(300'000)}}}}}}}}}}),
            400);
  EXPECT_EQ(chat({{"messages",
                   {{{"role", "assistant"},
                     {"tool_calls",
                      {{{"function", {{"name", "f"}, {"arguments", repeated("{\"a\":", 1'000'000) + "1"}}}}}}}}}}),
            400);
}

TEST_F(BombsTest, MessagesToolsAndTemplates) {
  for (const char* messages :
       {R"([])", R"([3])", R"([{"role": 3}])", R"([{"role": "user", "content": [{"type": "text"}]}])",
        R"([{"role": "user", "content": [3]}])", R"([{"role": "assistant", "tool_calls": [3]}])",
        R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "]"}}]}])"})
    chat({{"messages", Json::parse(messages)}});
  for (const char* tools : {R"(3)", R"([3])", R"([{}])", R"([{"type": "function", "function": 3}])",
                            R"([{"type": "function", "function": {"name": 3, "parameters": 3}}])",
                            R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": 3}}}])",
                            R"([{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#"}}}])"})
    for (const char* choice : {R"("auto")", R"("required")", R"({"type": "function", "function": {"name": "f"}})"})
      chat({{"tools", Json::parse(tools)}, {"tool_choice", Json::parse(choice)}, {"max_tokens", 9}});
  EXPECT_EQ(chat({{"chat_template", "{% for i in range(10**9) %}x{% endfor %}"}}), 400);
  for (const char* name : {"messages", "tools", "add_generation_prompt"})
    EXPECT_EQ(chat({{"chat_template_kwargs", {{name, "x"}}}}), 400) << name;
  for (const char* name : {"raise_exception", "namespace", "chat_template"})  // dropped: the template reads none
    EXPECT_EQ(chat({{"chat_template_kwargs", {{name, "x"}}}, {"max_tokens", 3}}), 200) << name;
  EXPECT_EQ(chat({{"chat_template_kwargs", {{"think", repeated("x", 100'000)}}}, {"max_tokens", 3}}), 200);
}

TEST_F(BombsTest, SchemasRegexesAndGrammars) {
  const auto ref = [](const char* schema) { return Json::parse(schema); };
  for (const Json& schema :
       {ref(R"({"$ref": "#"})"), ref(R"({"allOf": [{"$ref": "#"}]})"), ref(R"({"$ref": "http://evil/x.json"})"),
        ref(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})"),
        ref(R"({"minLength": 1e18})"), ref(R"({"type": "string", "minLength": 1000000000, "maxLength": 2000000000})"),
        ref(R"({"type": "array", "minItems": 1000000000})"), ref(R"({"type": "integer", "multipleOf": 1e-300})"),
        ref(R"({"type": "integer", "minimum": -1e300, "maximum": 1e300})"), ref(R"({"type": "no such type"})"),
        ref(R"({"type": "string", "pattern": "(a*)*b(a|a)*c{1,1000}"})"), ref(R"({"not": {"not": {"not": {}}}})"),
        ref(R"({"properties": 3})"), Json("{"), Json(members(100'000)), Json(3), Json::array()})
    guided("json", schema);
  Json wide = {{"type", "object"}};
  for (int i = 0; i < 2000; ++i) wide["properties"]["p" + std::to_string(i)] = {{"enum", {i, "x", nullptr}}};
  guided("json", wide);
  Json nested = true;
  for (int i = 0; i < 15; ++i) nested = {{"anyOf", {{{"properties", {{"a", nested}}}}, {{"items", nested}}}}};
  guided("json", nested);
  for (const char* regex : {"(a+)+$", "(a|aa)+b", "(.*)*x", "((a{1,100}){1,100}){1,100}", "(a{1000}){1000}", "[",
                            "(?<=a)b", "\\1", "a{999999999}", "(.{0,500}a){20}.{0,500}", "(?=a)b",
                            "(((((((((((a*)*)*)*)*)*)*)*)*)*)*", "\xc3\xa9+", "(x?){500}x{500}"})
    guided("regex", regex);
  guided("regex", repeated("(", 100'000));
  guided("regex", repeated("a|", 100'000));
  for (const char* grammar :
       {"root ::= root", "root ::= root \"a\" | \"b\"", "root ::= a\na ::= b\nb ::= a",
        "root ::=", "root ::= \"a\"{1000000000}", "root ::= (\"a\"*)*", "root ::= x", "root ::= \"", ""})
    guided("grammar", grammar);
  guided("grammar", "root ::= " + repeated("(", 100'000));
  guided("choice", Json::array());
  guided("choice", std::vector<std::string>(100'000, "ab"));
  guided("choice", {{"a", 1}});
  EXPECT_EQ(complete({{"structured_outputs", {{"regex", "a"}}}, {"min_tokens", 5}}), 400);
  EXPECT_EQ(complete({{"structured_outputs", {{"regex", "\xc3\xa9+"}}}}), 400);  // no token for it
}

// Prompts of one request are guided each by itself.
TEST_F(BombsTest, ManyGuidedPrompts) {
  const Json body = {{"prompt", {"Hi", "you", "there"}},
                     {"n", 2},
                     {"max_tokens", 40},
                     {"structured_outputs", {{"regex", "(a[bc]d|e{1,4}f){6}"}}}};
  const std::regex wanted("(a[bc]d|e{1,4}f){6}");
  const Json choices = ask(server_.server->port(), "POST", "/v1/completions", body.dump()).json()["choices"];
  EXPECT_EQ(choices.size(), 6u);
  for (const Json& choice : choices) EXPECT_TRUE(std::regex_match(choice["text"].get<std::string>(), wanted)) << choice;
}

// Its stream is cut off and its texts are cancelled, long before they would end.
TEST(Bombs, AReaderThatDoesNotRead) {
  TinyServer server({.http = {.max_unread_bytes = 100'000}},
                    {.limits = fake_limits(16384, 4, 8192), .step_seconds = 3e-3, .checks = false});
  Peer peer(server.server->port());
  const std::string body = R"({"messages": [{"role": "user", "content": "Hi"}], "n": 8, "ignore_eos": true,
                               "stream": true, "logprobs": true, "top_logprobs": 20})";
  peer.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
            "\r\n\r\n" + body);
  ASSERT_TRUE(eventually([&] { return server.engine->stats().steps > 0; }));
  server.engine->drain();  // sockets hold some megabytes
  EXPECT_EQ(server.engine->stats().cancelled, 1);
  EXPECT_LT(server.engine->stats().generated_tokens, 60'000);
  EXPECT_EQ(server.engine->stats().kv_blocks_used, 0);
}

}  // namespace
}  // namespace octet::serve
