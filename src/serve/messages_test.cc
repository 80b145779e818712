// Anthropic's Messages API over the engine on the fake runner, whose texts guides make sensible.
#include "serve/messages.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "serve/messages_input.h"
#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

using Json = nlohmann::json;

constexpr const char* kTemplate =
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ (m.content or '') | replace('\n', '/') }}"
    "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor "
    "%}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>{% endif %}{% endif %}";

class MessagesTest : public testing::Test {
 protected:
  void start(FakeOptions fake = {}) {
    fake.limits = fake_limits(512, 4, 512);
    tiny_ = std::make_unique<TinyModel>(std::move(fake), kTemplate);
    server_ = std::make_unique<Server>(tiny_->model, ServerOptions{.http = {.port = 0}});
  }

  Answer send(const Json& body, const std::string& more = "", const std::string& fields = {}) const {
    return ask(server_->port(), "POST", "/v1/messages" + more, body.dump(), fields);
  }
  static Json asking(const std::string& regex) {
    return {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
            {"max_tokens", 100},
            {"seed", 3},
            {"structured_outputs", {{"regex", regex}}}};
  }
  std::string prompt(const std::string& body) const {
    const auto json = nlohmann::ordered_json::parse(body);
    Fields fields(json);
    return render(read_messages_input(fields, tiny_->model), tiny_->model).text;
  }

  std::unique_ptr<TinyModel> tiny_;
  std::unique_ptr<Server> server_;
};

// Events of a stream, each with the name that its data's type is.
std::vector<Json> named_events(const std::string& body) {
  std::vector<Json> list;
  std::istringstream lines(body);
  for (std::string name, data, empty; std::getline(lines, name);) {
    std::getline(lines, data), std::getline(lines, empty);
    EXPECT_TRUE(data.starts_with("data: ") && empty.empty()) << data << empty;
    list.push_back(Json::parse(data.substr(6)));
    EXPECT_EQ(name, "event: " + list.back()["type"].get<std::string>());
  }
  return list;
}

// The message of a stream's events, put together as Anthropic's clients do it. Arguments stay text, in "input".
Json message_of(const std::vector<Json>& events) {
  Json message = events.at(0).at("message");
  EXPECT_EQ(events[0]["type"], "message_start");
  EXPECT_EQ(events.back()["type"], "message_stop");
  bool open = false;
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (type == "content_block_start") {
      EXPECT_FALSE(std::exchange(open, true));
      EXPECT_EQ(event["index"], message["content"].size());
      Json block = event["content_block"];
      if (block["type"] == "tool_use") {
        EXPECT_EQ(std::exchange(block["input"], ""), Json::object());
      }
      message["content"].push_back(block);
    } else if (type == "content_block_delta") {
      EXPECT_TRUE(open);
      EXPECT_EQ(event["index"], message["content"].size() - 1);
      const std::string kind = event["delta"]["type"];
      const std::string key = kind == "input_json_delta" ? "partial_json" : kind.substr(0, kind.find('_'));
      Json& text = message["content"].back().at(kind == "input_json_delta" ? "input" : key);
      text = text.get<std::string>() + event["delta"][key].get<std::string>();
    } else if (type == "content_block_stop") {
      EXPECT_TRUE(std::exchange(open, false));
    } else if (type == "message_delta") {
      message.update(event["delta"]), message["usage"].update(event["usage"]);
    }
  }
  EXPECT_FALSE(open);
  return message;
}

TEST_F(MessagesTest, AConversationIsThatOfChatCompletions) {
  start();
  EXPECT_EQ(prompt(R"({"system": "S", "messages": [{"role": "user", "content": "Hi"}]})"),
            "<system>S<user>Hi<assistant>");
  EXPECT_EQ(prompt(R"({
    "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "T"}],
    "messages": [
      {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
      {"role": "user", "content": "you"},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "redacted_thinking", "data": "?"},
        {"type": "text", "text": "ok"},
        {"type": "tool_use", "id": "t1", "name": "get", "input": {"z": 1, "a": [2]}},
        {"type": "tool_use", "id": "t2", "name": "put", "input": {}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": "r"},
        {"type": "tool_result", "tool_use_id": "t2", "is_error": true, "content": [{"type": "text", "text": "e"}]},
        {"type": "tool_result", "tool_use_id": "t3"},
        {"type": "text", "text": "go"}]}]})"),
            "<system>S/T<user>Hi/you<assistant>(hm)ok[t1 get {\"z\": 1, \"a\": [2]}][t2 put {}]"
            "<tool>r<tool>Error:/e<tool><user>go<assistant>");
  EXPECT_EQ(prompt(R"({"messages": [{"role": "user", "content": "Hi"}], "tools": [
      {"name": "get", "description": "d", "input_schema": {"type": "object", "a": 1}, "strict": true,
       "cache_control": {"type": "ephemeral"}}]})"),
            "[{\"type\": \"function\", \"function\": {\"name\": \"get\", \"description\": \"d\", "
            "\"parameters\": {\"type\": \"object\", \"a\": 1}, \"strict\": true}}]<user>Hi<assistant>");
}

TEST_F(MessagesTest, ThinkingAndChoiceOfTools) {
  start();
  const auto read = [&](nlohmann::ordered_json more) {
    more["messages"] = {{{"role", "user"}, {"content", "Hi"}}};
    Fields fields(more);
    return read_messages_input(fields, tiny_->model);
  };
  EXPECT_TRUE(read({{"thinking", {{"type", "enabled"}, {"budget_tokens", 9}}}}).settings["enable_thinking"]);
  EXPECT_TRUE(read({{"thinking", {{"type", "adaptive"}}}}).settings["enable_thinking"]);
  EXPECT_FALSE(read({{"thinking", {{"type", "disabled"}}}}).settings["enable_thinking"]);
  EXPECT_TRUE(read(Json::object()).settings.empty());
  const auto choice = [&](const Json& asked) { return read({{"tool_choice", asked}}).choice; };
  EXPECT_TRUE(choice({{"type", "auto"}}).calls && choice({{"type", "auto"}}).parallel);
  EXPECT_FALSE(choice({{"type", "auto"}, {"disable_parallel_tool_use", true}}).parallel);
  EXPECT_FALSE(choice({{"type", "none"}}).calls);
  EXPECT_TRUE(choice({{"type", "any"}}).required);
  EXPECT_TRUE(choice({{"type", "tool"}, {"name", "get"}}).required);
  EXPECT_EQ(choice({{"type", "tool"}, {"name", "get"}}).only, "get");
  tiny_->model.chat = std::make_shared<ChatTemplate>("{{ messages[0].content }}", "without the setting");
  EXPECT_TRUE(read({{"thinking", {{"type", "enabled"}}}}).settings.empty());
}

TEST_F(MessagesTest, BlocksStreamAsTheyAreWhole) {
  start();
  Json body = asking(
      R"(<think>[a-f]{5}</think>ok [a-f]{2}<tool_call>\{"name": "get", "arguments": \{"x": [1-9]\}\}</tool_call>)");
  body["tools"] = {{{"name", "get"}, {"input_schema", {{"type", "object"}}}}};
  const Answer answer = send(body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json whole = answer.json();
  EXPECT_TRUE(whole["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(whole["type"], "message");
  EXPECT_EQ(whole["role"], "assistant");
  EXPECT_EQ(whole["model"], "tiny");
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_TRUE(whole["stop_sequence"].is_null());
  const Json& content = whole["content"];
  ASSERT_EQ(content.size(), 3u) << content;
  EXPECT_EQ(content[0]["type"], "thinking");
  EXPECT_EQ(content[0]["thinking"].get<std::string>().size(), 5u);
  EXPECT_FALSE(content[0]["signature"].get<std::string>().empty());
  EXPECT_TRUE(content[1]["text"].get<std::string>().starts_with("ok "));
  EXPECT_TRUE(content[2]["id"].get<std::string>().starts_with("toolu_"));
  EXPECT_EQ(content[2]["name"], "get");
  EXPECT_TRUE(content[2]["input"]["x"].is_number());

  body["stream"] = true, body["cache_salt"] = "streamed";
  const std::vector<Json> events = named_events(send(body).body);
  EXPECT_EQ(events[0]["message"]["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
  Json streamed = message_of(events);
  streamed["content"][2]["input"] = Json::parse(streamed["content"][2]["input"].get<std::string>());
  for (Json* one : {&streamed["content"][2], &streamed}) one->erase("id");
  Json want = whole;
  for (Json* one : {&want["content"][2], &want}) one->erase("id");
  EXPECT_EQ(streamed, want);
  // The turn goes on with what the reply was.
  body["messages"].push_back({{"role", "assistant"}, {"content", content}});
  body["messages"].push_back(
      {{"role", "user"},
       {"content", {{{"type", "tool_result"}, {"tool_use_id", content[2]["id"]}, {"content", "9"}}}}});
  EXPECT_EQ(send(body).status, 200);
}

TEST_F(MessagesTest, ReasonsToStop) {
  start();
  const auto ends = [&](Json body, const Json& more) {
    body.update(more);
    const Answer answer = send(body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    Json whole = answer.json();
    body["stream"] = true;
    const Json streamed = message_of(named_events(send(body).body));
    for (const char* key : {"stop_reason", "stop_sequence"}) EXPECT_EQ(streamed[key], whole[key]);
    return whole;
  };
  Json json = ends(asking("[a-f]{4}"), Json::object());
  EXPECT_EQ(json["stop_reason"], "end_turn");
  EXPECT_EQ(json["usage"]["output_tokens"], 4);
  json = ends(asking("ab--cd"), {{"stop_sequences", {"xx", "--"}}});
  EXPECT_EQ(json["stop_reason"], "stop_sequence");
  EXPECT_EQ(json["stop_sequence"], "--");
  EXPECT_EQ(json["content"], Json::parse(R"([{"type": "text", "text": "ab"}])"));
  json = ends(asking("[a-f]{9}"), {{"max_tokens", 4}});
  EXPECT_EQ(json["stop_reason"], "max_tokens");
  EXPECT_EQ(json["usage"]["output_tokens"], 4);
  // A call that is cut short has an input that is an object, and nothing of the arguments.
  json = ends(asking(R"(<tool_call>\{"name": "get", "arguments": \{"x": 1, "y": "a{300}"\}\}</tool_call>)"),
              {{"max_tokens", 320}, {"tools", {{{"name", "get"}, {"input_schema", Json::object()}}}}});
  EXPECT_EQ(json["stop_reason"], "max_tokens");
  ASSERT_EQ(json["content"].size(), 1u) << json;
  EXPECT_EQ(json["content"][0]["name"], "get");
  EXPECT_EQ(json["content"][0]["input"], Json::object());
}

TEST_F(MessagesTest, ASchemaGuidesTheText) {
  start();
  const Json schema = Json::parse(R"({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
                                      "additionalProperties": false})");
  const Json format = {{"type", "json_schema"}, {"schema", schema}};
  for (const Json& more :
       {Json{{"output_config", {{"format", format}, {"effort", "low"}}}}, Json{{"output_format", format}}}) {
    Json body = asking("");
    body.erase("structured_outputs");
    body.update(more);
    const Answer answer = send(body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_TRUE(Json::parse(answer.json()["content"][0]["text"].get<std::string>())["a"].is_boolean());
  }
}

TEST_F(MessagesTest, TokensAreCountedAsTheyAreUsed) {
  start();
  Json body = asking("[a-f]{4}");
  body["system"] = "a system prompt", body["tools"] = {{{"name", "get"}, {"input_schema", Json::object()}}};
  const Json count = send(body, "/count_tokens").json();
  for (const char* key : {"max_tokens", "structured_outputs"}) body.erase(key);
  EXPECT_EQ(send(body, "/count_tokens").json(), count);  // what is not of the prompt may be missing
  body["max_tokens"] = 2;
  // A second time the prompt is in the cache.
  for (int i = 0; i < 2; ++i) {
    const Json usage = send(body).json()["usage"];
    EXPECT_EQ(usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>(), count["input_tokens"]);
    EXPECT_EQ(usage["cache_read_input_tokens"] > 0, i == 1) << usage;
    EXPECT_EQ(usage["cache_creation_input_tokens"], 0);
  }
}

TEST_F(MessagesTest, WhatCannotBeServedIsNamed) {
  start();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"max_tokens": null})", "max_tokens is null"},
      {R"({"max_tokens": 0})", "max_tokens is 0"},
      {R"({"messages": []})", "messages is []"},
      {R"({"messages": 3})", "messages is 3"},
      {R"({"messages": [3]})", "messages[0] is 3"},
      {R"({"messages": [{"content": "x"}]})", "messages[0].role is missing"},
      {R"({"messages": [{"role": "tool", "content": "x"}]})", "messages[0].role is \"tool\""},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content is missing"},
      {R"({"messages": [{"role": "user", "content": 3}]})", "messages[0].content: want a string"},
      {R"({"messages": [{"role": "user", "content": []}]})", "want a message with content"},
      {R"({"messages": [{"role": "assistant", "content": "The"}]})", "messages[0].role is \"assistant\""},
      {R"({"messages": [{"role": "user", "content": [{"text": "x"}]}]})", "messages[0].content[0].type is missing"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", "messages[0].content[0].text is missing"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})", "type is \"image\""},
      {R"({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]})", "type is \"tool_use\""},
      {R"({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]})", "tool_use_id is missing"},
      {R"({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a",
                         "content": [{"type": "image"}]}]}]})",
       "messages[0].content[0].content[0].type is \"image\""},
      {R"({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": "c"}]},
                        {"role": "user", "content": "x"}]})",
       "messages[0].content[0].input is \"c\""},
      {R"({"system": 3})", "system: want a string"},
      {R"({"system": [{"type": "image"}]})", "system[0].type is \"image\""},
      {R"({"tools": 3})", "tools is 3"},
      {R"({"tools": [{"type": "web_search_20250305", "name": "web_search"}]})", "tools[0].type is \"web_search"},
      {R"({"tools": [{"input_schema": {}}]})", "tools[0].name is missing"},
      {R"({"tools": [{"name": "get"}]})", "tools[0].input_schema is missing"},
      {R"({"tool_choice": "auto"})", "tool_choice is \"auto\""},
      {R"({"tool_choice": {"type": "required"}})", "tool_choice.type is \"required\""},
      {R"({"tool_choice": {"type": "tool"}})", "tool_choice.name is missing"},
      {R"({"thinking": {"type": "on"}})", "thinking.type is \"on\""},
      {R"({"stop_sequences": [3]})", "stop_sequences is [3]"},
      {R"({"temperature": "hot"})", "temperature is \"hot\""},
      {R"({"stream": 1})", "stream is 1"},
      {R"({"output_config": {"format": {"type": "text"}}})", "output_config.format.type is \"text\""},
      {R"({"output_format": {"type": "json_schema"}})", "output_format.schema is missing"},
      {R"({"output_format": {"type": "json_schema", "schema": {"uniqueItems": true, "type": "array"}}})",
       "uniqueItems"},
      {R"({"output_format": {"type": "json_schema", "schema": {}}, "structured_outputs": {"regex": "a"}})",
       "want one of them"},
      {R"({"mcp_servers": [{"type": "url"}]})", "mcp_servers is"},
  };
  for (const auto& [more, message] : cases) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 4}};
    body.update(Json::parse(more));
    const Answer answer = send(body, "", "X-Request-Id: mine\r\n");
    EXPECT_EQ(answer.status, 400) << more << " gives " << answer.body;
    const Json json = answer.json();
    EXPECT_EQ(json["type"], "error");
    EXPECT_EQ(json["error"]["type"], "invalid_request_error");
    EXPECT_NE(json["error"]["message"].get<std::string>().find(message), std::string::npos)
        << more << " gives " << answer.body;
    EXPECT_EQ(json["request_id"], "mine");
    EXPECT_NE(answer.head.find("\r\nRequest-Id: mine"), std::string::npos);
  }
  Json body = asking("a");
  body["messages"][0]["content"] = std::string(600, 'x');
  EXPECT_EQ(send(body).json()["error"]["type"], "invalid_request_error");  // the engine's word: too long
  body["model"] = "other";
  EXPECT_EQ(send(body).json()["error"]["type"], "not_found_error");
  EXPECT_EQ(send({{"messages", 3}}, "/count_tokens").json()["type"], "error");
  // Fields of other wire forms are unknown ones, but for those that ask for a form of the reply.
  body = asking("a{3}");
  for (const char* key : {"n", "response_format", "logprobs"}) {
    Json more = body;
    more[key] = 3;
    EXPECT_EQ(send(more).status, 400) << key;
  }
  body["n"] = 1, body["stop"] = "a", body["max_completion_tokens"] = 3, body["metadata"] = {{"user_id", "u"}};
  EXPECT_EQ(send(body).json()["content"][0]["text"], "aaa");
  EXPECT_NE(ask(server_->port(), "GET", "/metrics").body.find("octet_ignored_fields_total 2\n"), std::string::npos);
}

TEST_F(MessagesTest, ErrorsAreWrittenByStatus) {
  const std::vector<std::pair<int, std::string>> cases = {{400, "invalid_request_error"},
                                                          {401, "authentication_error"},
                                                          {403, "permission_error"},
                                                          {404, "not_found_error"},
                                                          {413, "request_too_large"},
                                                          {429, "rate_limit_error"},
                                                          {500, "api_error"},
                                                          {503, "overloaded_error"},
                                                          {504, "timeout_error"}};
  for (const auto& [status, type] : cases) {
    ApiError error("what", "field", status);
    error.set_request_id("r");
    EXPECT_EQ(Json::parse(message_error_body(error)),
              (Json{{"type", "error"}, {"error", {{"type", type}, {"message", "what"}}}, {"request_id", "r"}}));
  }
}

TEST_F(MessagesTest, AnErrorInsideOfAStreamIsAnEvent) {
  start({.step_seconds = 0.05});
  Json body = asking("[a-z]{200}");
  body["stream"] = true, body["max_tokens"] = 201;
  const std::string text = body.dump();
  Peer peer(server_->port());
  peer.send("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine\r\nContent-Length: " +
            std::to_string(text.size()) + "\r\n\r\n" + text);
  peer.read("event: message_start");
  server_->end_all(20);
  const std::string read = peer.read();
  EXPECT_NE(read.find("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\""),
            std::string::npos)
      << read;
  EXPECT_NE(read.find("\"request_id\":\"mine\""), std::string::npos) << read;
  EXPECT_EQ(read.find("message_stop"), std::string::npos) << read;
}

}  // namespace
}  // namespace octet::serve
