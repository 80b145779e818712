// Chat completions and guided output over the engine on the fake runner, whose texts guides make sensible.
#include "serve/chat.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "serve/chat_core.h"
#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

using Json = nlohmann::json;

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if tools %}T{{ tools | length }}{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% if think %}<think>{% endif %}{% endif %}";

class ChatTest : public testing::Test {
 protected:
  ChatTest() {
    tiny_ = std::make_unique<TinyModel>(FakeOptions{.limits = fake_limits(256, 4, 256)}, kTemplate);
    server_ = std::make_unique<Server>(tiny_->model, ServerOptions{.http = {.port = 0}});
  }

  Answer chat(const Json& body, const std::string& more = "") const {
    return ask(server_->port(), "POST", "/v1/chat/completions" + more, body.dump());
  }
  static Json saying(const std::string& regex) {
    return {
        {"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"seed", 3}, {"structured_outputs", {{"regex", regex}}}};
  }

  std::unique_ptr<TinyModel> tiny_;
  std::unique_ptr<Server> server_;
};

TEST_F(ChatTest, MessagesAreRenderedAndAnswered) {
  const Json rendered = chat(saying("x"), "/render").json();
  EXPECT_EQ(rendered["prompt"], "<user>Hi<assistant>");
  const Answer answer = chat(saying("[a-c]{3}"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = answer.json(), message = json["choices"][0]["message"];
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["content"].get<std::string>().find_first_not_of("abc"), std::string::npos);
  EXPECT_EQ(message["content"].get<std::string>().size(), 3u);
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["prompt_tokens"], rendered["token_ids"].size());
}

TEST_F(ChatTest, ReasoningAndCallsStreamAsTheyAreWhole) {
  Json body = saying(
      R"(<think>[a-f]{5}</think>ok [a-f]{2}<tool_call>\{"name": "get", "arguments": \{"x": [1-9]\}\}</tool_call>)");
  body["tools"] =
      Json::parse(R"([{"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}])");
  body["n"] = 2, body["logprobs"] = true, body["top_logprobs"] = 1;
  const Answer whole = chat(body);
  ASSERT_EQ(whole.status, 200) << whole.body;
  body["stream"] = true;
  const Answer streamed = chat(body);
  EXPECT_NE(streamed.body.find("\"role\":\"assistant\""), std::string::npos);
  std::vector<std::string> content(2), thought(2), arguments(2), reasons(2);
  std::vector<int> names(2);
  std::vector<size_t> tokens(2);
  for (const Json& event : events(streamed)) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    for (const Json& choice : event["choices"]) {
      const auto i = choice["index"].get<size_t>();
      const Json& delta = choice["delta"];
      content[i] += delta.value("content", ""), thought[i] += delta.value("reasoning_content", "");
      if (!choice["finish_reason"].is_null()) reasons[i] = choice["finish_reason"];
      if (choice["logprobs"].is_object()) tokens[i] += choice["logprobs"]["content"].size();
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        EXPECT_EQ(call["index"], 0);
        names[i] += call["function"].value("name", "") == "get";
        arguments[i] += call["function"]["arguments"].get<std::string>();
      }
    }
  }
  const Json json = whole.json();
  for (size_t i = 0; i < 2; ++i) {
    const Json& choice = json["choices"][i];
    const Json& message = choice["message"];
    EXPECT_EQ(message["content"], content[i]);
    EXPECT_EQ(message["reasoning_content"], thought[i]);
    EXPECT_EQ(thought[i].size(), 5u);
    EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "get");
    EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], arguments[i]);
    EXPECT_TRUE(Json::parse(arguments[i]).contains("x"));
    EXPECT_EQ(names[i], 1);
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    EXPECT_EQ(reasons[i], "tool_calls");
    EXPECT_EQ(choice["logprobs"]["content"].size(), tokens[i]);
  }
}

TEST_F(ChatTest, WithoutToolsACallIsText) {
  const Json message = chat(saying("<tool_call>[a-f]{2}</tool_call>")).json()["choices"][0]["message"];
  EXPECT_TRUE(message["content"].get<std::string>().starts_with("<tool_call>"));
  EXPECT_FALSE(message.contains("tool_calls"));
}

TEST_F(ChatTest, TheTemplatesOwnSettingsMayBeGiven) {
  Json body = saying("x");
  body["chat_template_kwargs"] = {{"think", true}};
  EXPECT_EQ(chat(body, "/render").json()["prompt"], "<user>Hi<assistant><think>");
  body["chat_template_kwargs"] = {{"nothing", 1}};  // of another model's template
  EXPECT_EQ(chat(body, "/render").json()["prompt"], "<user>Hi<assistant>");
  const auto json = nlohmann::ordered_json::parse(body.dump());
  Fields fields(json);
  EXPECT_EQ(render(read_chat_input(fields, tiny_->model), tiny_->model).ignored,
            std::vector<std::string>{"chat_template_kwargs.nothing"});
  for (const char* name : {"messages", "tools", "add_generation_prompt"}) {
    body["chat_template_kwargs"] = {{name, 1}};
    EXPECT_EQ(chat(body, "/render").status, 400) << name;
  }
}

TEST_F(ChatTest, GuidesEndTheTextWhereTheyDo) {
  const auto text = [&](const Json& format) {
    Json body = saying("x");
    body.erase("structured_outputs");
    body.update(format);
    const Answer answer = chat(body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.json()["choices"][0]["finish_reason"], "stop");
    return answer.json()["choices"][0]["message"]["content"].get<std::string>();
  };
  const std::string choice = text({{"structured_outputs", {{"choice", {"red", "green"}}}}});
  EXPECT_TRUE(choice == "red" || choice == "green") << choice;
  const Json schema = Json::parse(R"({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
                                      "additionalProperties": false})");
  EXPECT_TRUE(Json::parse(text({{"structured_outputs", {{"json", schema}}}}))["a"].is_boolean());
  EXPECT_TRUE(Json::parse(text(
      {{"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", schema}}}}}}))["a"]
                  .is_boolean());
  EXPECT_EQ(text({{"structured_outputs", {{"grammar", "root ::= \"a\" \"b\""}}}}), "ab");
  const Json completion = ask(server_->port(), "POST", "/v1/completions",
                              Json{{"prompt", "Hi"}, {"structured_outputs", {{"regex", "[0-9]{4}"}}}, {"n", 3}}.dump())
                              .json();
  ASSERT_EQ(completion["choices"].size(), 3u);
  for (const Json& one : completion["choices"]) {
    EXPECT_EQ(one["text"].get<std::string>().size(), 4u);
    EXPECT_EQ(one["text"].get<std::string>().find_first_not_of("0123456789"), std::string::npos);
  }
}

// As transformers' apply_chat_template: the prompt ends where the last message's text does.
TEST_F(ChatTest, GoesOnBehindTheLastMessage) {
  tiny_->model.request_templates = std::make_shared<TemplateCache>();
  const auto prompt = [&](const Json& messages, const char* source) {
    const Answer answer = chat({{"messages", messages},
                                {"continue_final_message", true},
                                {"add_generation_prompt", false},
                                {"chat_template", source}},
                               "/render");
    return answer.status == 200 ? answer.json()["prompt"].get<std::string>() : answer.body;
  };
  const auto saying_last = [](const Json& content) {
    return Json{{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", content}}};
  };
  constexpr const char* kPlain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</m>{% endfor %}";
  constexpr const char* kTrimmed = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</m>{% endfor %}";
  EXPECT_EQ(prompt(saying_last("b a"), kPlain), "<user>a</m><assistant>b a");
  EXPECT_EQ(prompt(saying_last("b "), kPlain), "<user>a</m><assistant>b ");
  EXPECT_EQ(prompt(saying_last("b "), kTrimmed), "<user>a</m><assistant>b");
  EXPECT_EQ(prompt(saying_last(""), kPlain), "<user>a</m><assistant>");
  const Json parts = {{{"type", "text"}, {"text", "x"}}};
  EXPECT_EQ(prompt(saying_last(parts), kPlain), "<user>a</m><assistant>x");
  EXPECT_NE(prompt(saying_last(nullptr), kPlain).find("has no text"), std::string::npos);
  EXPECT_NE(prompt(saying_last("b"), "{# 'assistant' #}").find("does not render the content of the last message"),
            std::string::npos);
  EXPECT_NE(prompt(saying_last("b"), "{% for %}").find("chat_template"), std::string::npos);
}

TEST_F(ChatTest, EchoPutsTheLastMessageBeforeTheReply) {
  Json body = saying("[a-c]{3}");
  body["messages"].push_back({{"role", "assistant"}, {"content", "Well, "}});
  body["continue_final_message"] = true, body["add_generation_prompt"] = false, body["echo"] = true;
  const std::string whole = chat(body).json()["choices"][0]["message"]["content"];
  EXPECT_EQ(whole.size(), 9u);
  EXPECT_TRUE(whole.starts_with("Well, ")) << whole;
  body["stream"] = true;
  std::string joined;
  for (const Json& event : events(chat(body)))
    for (const Json& choice : event["choices"]) joined += choice["delta"].value("content", "");
  EXPECT_EQ(joined, whole);
}

TEST_F(ChatTest, RequiredCallsFitTheirSchemas) {
  tiny_->model.reply_format = "llama3_json";  // the others write line ends, which are no token here
  Json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"tool_choice", "required"}};
  body["tools"] = Json::parse(R"([
      {"type": "function", "function": {"name": "one", "parameters":
        {"type": "object", "properties": {"x": {"enum": [1, 22, 333]}}, "required": ["x"], "additionalProperties": false}}},
      {"type": "function", "function": {"name": "two", "parameters":
        {"type": "object", "properties": {"y": {"type": "boolean"}}, "required": ["y"], "additionalProperties": false}}}])");
  body["parallel_tool_calls"] = false;
  // Arguments of the call by this seed, by the function's name: no tokens go to reasoning.
  const auto call = [&](int seed) -> std::map<std::string, Json> {
    body["seed"] = seed;
    const Answer answer = chat(body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    const Json choice = answer.json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    const Json calls = choice["message"]["tool_calls"];
    EXPECT_EQ(calls.size(), 1u) << choice;
    return {{calls[0]["function"]["name"], Json::parse(calls[0]["function"]["arguments"].get<std::string>())}};
  };
  std::set<std::string> names;
  for (int seed = 0; seed < 12; ++seed) {
    for (const auto& [name, arguments] : call(seed)) {
      names.insert(name);
      EXPECT_EQ(arguments.size(), 1u);
      EXPECT_TRUE(arguments.contains(name == "one" ? "x" : "y")) << arguments;
    }
  }
  EXPECT_EQ(names, (std::set<std::string>{"one", "two"}));
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "two"}}}};
  names.clear();
  for (int seed = 0; seed < 12; ++seed)
    for (const auto& [name, arguments] : call(seed)) names.insert(name);
  EXPECT_EQ(names, std::set<std::string>{"two"});
  body["tool_choice"]["function"]["name"] = "three";
  const Answer unknown = chat(body);
  EXPECT_EQ(unknown.status, 400);
  EXPECT_NE(unknown.body.find("three"), std::string::npos) << unknown.body;
  body["tool_choice"] = "required", body["structured_outputs"] = {{"regex", "a"}};
  EXPECT_EQ(call(1).size(), 1u);
}

// The format is of the answer: calls stay possible, and the only reply where one is required.
TEST_F(ChatTest, AFormatGuidesTheAnswerBesideCalls) {
  tiny_->model.reply_format = "llama3_json";
  Json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"n", 2}, {"parallel_tool_calls", false}};
  body["tools"] = Json::parse(R"([{"type": "function", "function": {"name": "get", "strict": true, "parameters":
      {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}}}])");
  body["response_format"] = Json::parse(R"({"type": "json_schema", "json_schema": {"name": "n", "schema":
      {"type": "object", "properties": {"a": {"enum": [3, 4]}}, "required": ["a"], "additionalProperties": false}}})");
  const auto calls = [&](const Json& choice) {
    body["tool_choice"] = choice;
    int count = 0;
    for (int seed = 0; seed < 10; ++seed) {
      body["seed"] = seed;
      const Answer answer = chat(body);
      EXPECT_EQ(answer.status, 200) << answer.body;
      const Json choices = answer.json()["choices"];
      for (const Json& one : choices) {
        const Json& message = one["message"];
        const bool called = message.contains("tool_calls");
        count += called;
        EXPECT_EQ(one["finish_reason"], called ? "tool_calls" : "stop");
        if (called) {
          EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "get");
        } else {
          EXPECT_TRUE(Json::parse(message["content"].get<std::string>()).contains("a")) << message;
        }
      }
    }
    return count;
  };
  const int mixed = calls("auto");
  EXPECT_GT(mixed, 0);
  EXPECT_LT(mixed, 20);
  EXPECT_EQ(calls("required"), 20);
  EXPECT_EQ(calls("none"), 0);
}

// Developers are the system's where the template does not know them; roles that it drops are refused.
TEST_F(ChatTest, RolesAreTheTemplates) {
  tiny_->model.request_templates = std::make_shared<TemplateCache>();
  const auto prompt = [&](const std::vector<std::pair<const char*, Json>>& messages, const std::string& source) {
    Json body = {{"chat_template", source}, {"messages", Json::array()}};
    for (const auto& [role, content] : messages) body["messages"].push_back({{"role", role}, {"content", content}});
    const Answer answer = chat(body, "/render");
    return answer.status == 200 ? answer.json()["prompt"].get<std::string>()
                                : answer.json()["error"]["message"].get<std::string>();
  };
  const std::string any = "{% for m in messages %}<{{ m.role }}>{{ m.content | replace('\\n', '/') }}{% endfor %}";
  const std::string some =
      "{% for m in messages %}{% if m.role == 'user' or m['role'] == \"system\" %}<{{ m.role }}>{{ m.content }}"
      "{% endif %}{% endfor %}";
  EXPECT_EQ(prompt({{"system", "a"}, {"developer", "b"}, {"user", "c"}, {"developer", "d"}}, any),
            "<system>a//b<user>c<system>d");
  EXPECT_EQ(prompt({{"developer", "a"}, {"user", "c"}}, some), "<system>a<user>c");
  const Json part = {{{"type", "text"}, {"text", "b"}}};
  EXPECT_EQ(prompt({{"system", "a"}, {"developer", part}, {"user", "c"}}, any), "<system>a/b<user>c");
  EXPECT_EQ(prompt({{"developer", "a"}}, any + "{# 'developer' #}"), "<developer>a");
  EXPECT_EQ(prompt({{"other", "a"}}, any), "<other>a");
  EXPECT_NE(prompt({{"user", "a"}, {"tool", "b"}}, some).find("messages[1].role"), std::string::npos);
  EXPECT_NE(prompt({{"user", "a"}, {"tool", "b"}}, some).find("'tool'"), std::string::npos);
}

TEST_F(ChatTest, RequestsWithToolsHaveATemplateOfTheirOwn) {
  tiny_->model.tool_chat = std::make_shared<ChatTemplate>("{{ tools | length }} tools", "tool_use");
  Json body = saying("x");
  EXPECT_EQ(chat(body, "/render").json()["prompt"], "<user>Hi<assistant>");
  body["tools"] = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  EXPECT_EQ(chat(body, "/render").json()["prompt"], "1 tools");
}

TEST_F(ChatTest, PromptLogprobsAreAMemberOfTheReply) {
  Json body = saying("[a-c]{3}");
  body["prompt_logprobs"] = 1;
  const Json whole = chat(body).json();
  EXPECT_EQ(whole["prompt_logprobs"].size(), whole["usage"]["prompt_tokens"]);
  EXPECT_TRUE(whole["prompt_logprobs"][0].is_null());
  EXPECT_EQ(whole["prompt_logprobs"][1].begin().value().contains("logprob"), true);
}

TEST_F(ChatTest, WhatCannotBeServedIsNamed) {
  const auto error = [&](const char* field, const Json& value) {
    Json body = saying("x");
    body[field] = value;
    const Answer answer = chat(body);
    EXPECT_EQ(answer.status, 400) << field << answer.body;
    return answer.json()["error"]["message"].get<std::string>();
  };
  EXPECT_NE(error("messages", Json::array()).find("at least one message"), std::string::npos);
  EXPECT_NE(error("messages", {{{"content", "x"}}}).find("messages[0] has no role"), std::string::npos);
  EXPECT_NE(error("messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}).find("images"),
            std::string::npos);
  EXPECT_NE(error("tools", 3).find("tools is 3"), std::string::npos);
  EXPECT_NE(error("tool_choice", "required").find("there are no tools"), std::string::npos);
  EXPECT_NE(error("tool_choice", {{"function", {{"name", 3}}}}).find("want none, auto, required"), std::string::npos);
  EXPECT_NE(error("chat_template", "x").find("--trust-request-chat-template"), std::string::npos);
  EXPECT_NE(error("continue_final_message", true).find("requires add_generation_prompt to be false"),
            std::string::npos);
  EXPECT_NE(error("top_logprobs", 3).find("requires logprobs"), std::string::npos);
  EXPECT_NE(error("structured_outputs", {{"json", {{"uniqueItems", true}, {"type", "array"}}}}).find("uniqueItems"),
            std::string::npos);
  EXPECT_NE(error("structured_outputs", {{"regex", "("}}).find("structured_outputs.regex"), std::string::npos);
  EXPECT_NE(error("structured_outputs", {{"regex", "a"}, {"choice", {"b"}}}).find("want one of"), std::string::npos);
  EXPECT_NE(error("structured_outputs", {{"structural_tag", "a"}}).find("structural_tag"), std::string::npos);
  EXPECT_NE(error("ignore_eos", true).find("not supported with guided output"), std::string::npos);
}

}  // namespace
}  // namespace octet::serve
