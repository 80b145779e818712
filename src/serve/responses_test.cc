// The Responses API over the engine on the fake runner, whose texts guides make sensible.
#include "serve/responses.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/file.h"
#include "base/json.h"
#include "serve/response_input.h"
#include "serve/response_store.h"
#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}"
    "{{ (m.content or '') | replace('\n', '/') }}{% for c in m.tool_calls or [] %}!{{ c.function.name }}{{ "
    "c.function.arguments.x }}{% endfor %}"
    "{% endfor %}{% if tools %}T{{ tools[0].function.name }}{% endif %}<assistant>{{ reasoning_effort or '' }}";
constexpr const char* kTools =
    R"([{"type": "function", "name": "get", "parameters": {"type": "object"}, "strict": null}])";

class ResponsesTest : public testing::Test {
 protected:
  void start(ServerOptions options = {}, int64_t kept = 0, double step_seconds = 0) {
    tiny_ = std::make_unique<TinyModel>(FakeOptions{.limits = fake_limits(256, 4, 256), .step_seconds = step_seconds},
                                        kTemplate);
    store_.emplace(ResponseStore::Bounds{.responses = kept, .bytes = 1 << 20});
    if (kept > 0) tiny_->model.responses = &*store_;
    options.http.port = 0;
    server_ = std::make_unique<Server>(tiny_->model, options);
  }

  Answer respond(const Json& body, const std::string& fields = {}) const {
    return ask(server_->port(), "POST", "/v1/responses", body.dump(), fields);
  }
  Answer kept(const std::string& method, const std::string& id, const std::string& fields = {}) const {
    return ask(server_->port(), method, "/v1/responses/" + id, {}, fields);
  }
  static Json saying(const std::string& regex) {
    return {{"input", "Hi"}, {"seed", 3}, {"structured_outputs", {{"regex", regex}}}};
  }
  // Reasoning, text and a call.
  static Json saying_all() {
    Json body = saying(
        R"(<think>[a-f]{5}</think>ok [a-f]{2}<tool_call>\{"name": "get", "arguments": \{"x": [1-9]\}\}</tool_call>)");
    body["tools"] = Json::parse(kTools);
    body["include"] = {"message.output_text.logprobs"}, body["top_logprobs"] = 1;
    return body;
  }
  // Events of a stream, whose lines and numbers are checked.
  static std::vector<Json> typed_events(const std::string& body) {
    std::vector<Json> list;
    std::istringstream lines(body);
    for (std::string name, data, blank; std::getline(lines, name);) {
      EXPECT_TRUE(std::getline(lines, data) && std::getline(lines, blank) && blank.empty()) << body;
      EXPECT_TRUE(name.starts_with("event: ") && data.starts_with("data: ")) << name << data;
      list.push_back(Json::parse(data.substr(6)));
      EXPECT_EQ(list.back()["type"], name.substr(7));
      EXPECT_EQ(list.back()["sequence_number"], list.size() - 1);
    }
    return list;
  }
  std::string prompt_of(const Json& body, const Json& history = Json::array()) const {
    Fields fields(body);
    return render(read_response_input(fields, tiny_->model, history), tiny_->model).text;
  }

  std::unique_ptr<TinyModel> tiny_;
  std::optional<ResponseStore> store_;
  std::unique_ptr<Server> server_;
};

// What differs from one response to the next.
Json without_names(Json response) {
  response.erase("id"), response.erase("created_at"), response.erase("completed_at");
  response["usage"].erase("input_tokens_details");  // more is cached
  for (Json& item : response["output"]) item.erase("id"), item.erase("call_id");
  return response;
}

TEST_F(ResponsesTest, AResponseHasItemsUsageAndWhatWasAsked) {
  start();
  Json body = saying_all();
  body["metadata"] = {{"a", "b"}}, body["instructions"] = "Be", body["temperature"] = 0.5;
  const Answer answer = respond(body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = Json::parse(answer.body);
  const Json& output = json["output"];
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("resp_"));
  EXPECT_EQ(json["object"], "response");
  EXPECT_EQ(json["status"], "completed");
  EXPECT_EQ(json["model"], "tiny");
  EXPECT_EQ(json["instructions"], "Be");
  EXPECT_EQ(json["metadata"], body["metadata"]);
  EXPECT_EQ(json["tools"], body["tools"]);
  EXPECT_EQ(json["temperature"], 0.5);
  EXPECT_EQ(json["text"]["format"]["type"], "text");
  for (const char* key : {"error", "incomplete_details", "previous_response_id"}) EXPECT_TRUE(json[key].is_null());
  ASSERT_EQ(output.size(), 3u) << output;
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["content"][0]["text"].get<std::string>().size(), 5u);
  EXPECT_EQ(output[1]["type"], "message");
  EXPECT_EQ(output[1]["content"][0]["text"].get<std::string>().size(), 5u);
  EXPECT_EQ(output[2]["type"], "function_call");
  EXPECT_EQ(output[2]["name"], "get");
  EXPECT_TRUE(Json::parse(output[2]["arguments"].get<std::string>()).contains("x"));
  EXPECT_TRUE(output[2]["call_id"].get<std::string>().starts_with("call_"));
  for (const Json& item : output) EXPECT_EQ(item["status"], "completed");
  // Log-probabilities are of the message's tokens, here characters.
  std::string spelled;
  for (const Json& token : output[1]["content"][0]["logprobs"]) {
    spelled += token["token"].get<std::string>();
    EXPECT_EQ(token["top_logprobs"].size(), 1u);
  }
  EXPECT_EQ(spelled, output[1]["content"][0]["text"]);
  const Json& usage = json["usage"];
  EXPECT_EQ(usage["input_tokens"], std::string("<system>Be<user>HiTget<assistant>").size());
  EXPECT_EQ(usage["total_tokens"], usage["input_tokens"].get<int64_t>() + usage["output_tokens"].get<int64_t>());
  const auto thought = usage["output_tokens_details"]["reasoning_tokens"].get<int64_t>();
  EXPECT_GE(thought, 5);
  EXPECT_LE(thought, std::string("abcde</think>").size());
}

TEST_F(ResponsesTest, AStreamJoinsToTheWhole) {
  start();
  Json body = saying_all();
  const Json whole = Json::parse(respond(body).body);
  body["stream"] = true;
  const std::vector<Json> events = typed_events(respond(body).body);
  ASSERT_GT(events.size(), 10u);
  EXPECT_EQ(events[0]["type"], "response.created");
  EXPECT_EQ(events[1]["type"], "response.in_progress");
  EXPECT_EQ(events.back()["type"], "response.completed");
  EXPECT_EQ(events.back()["response"]["id"], events[0]["response"]["id"]);
  EXPECT_EQ(without_names(events.back()["response"]), without_names(whole));
  EXPECT_GT(events.back()["response"]["usage"]["input_tokens_details"]["cached_tokens"], 0);
  // Items as a client puts them together.
  Json output = Json::array(), done = Json::array();
  std::vector<std::string> types;
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (types.empty() || types.back() != type) types.push_back(type);
    if (type == "response.output_item.added") {
      EXPECT_EQ(event["output_index"], output.size());
      output.push_back(event["item"]);
    }
    if (type == "response.output_item.done") done.push_back(event["item"]);
    if (!event.contains("item_id")) continue;
    Json& item = output.at(event["output_index"].get<size_t>());
    EXPECT_EQ(event["item_id"], item["id"]);
    if (type == "response.content_part.added") item["content"].push_back(event["part"]);
    if (event.contains("part")) {
      EXPECT_EQ(event["part"], item["content"][0]);
    }
    const bool call = item["type"] == "function_call";
    std::string text = (call ? item["arguments"] : item["content"][0]["text"]).get<std::string>();
    if (event.contains("delta")) {
      text += event["delta"].get<std::string>();
      (call ? item["arguments"] : item["content"][0]["text"]) = text;
      if (event.contains("logprobs"))
        for (const Json& token : event["logprobs"]) item["content"][0]["logprobs"].push_back(token);
    } else if (event.contains("text") || event.contains("arguments")) {
      EXPECT_EQ(event[call ? "arguments" : "text"], text);
    }
  }
  for (Json& item : output) item["status"] = "completed";
  EXPECT_EQ(output, done);
  EXPECT_EQ(done, events.back()["response"]["output"]);
  std::vector<std::string> want = {"response.created", "response.in_progress"};
  for (const std::string name : {"reasoning_text", "output_text", "function_call_arguments"}) {
    const bool part = name != "function_call_arguments";
    want.emplace_back("response.output_item.added");
    if (part) want.emplace_back("response.content_part.added");
    want.push_back("response." + name + ".delta");
    want.push_back("response." + name + ".done");
    if (part) want.emplace_back("response.content_part.done");
    want.emplace_back("response.output_item.done");
  }
  want.emplace_back("response.completed");
  EXPECT_EQ(types, want);
}

TEST_F(ResponsesTest, WhatIsCutShortIsIncomplete) {
  start();
  Json body = saying_all();
  for (const int64_t most : {9, 21, 50}) {  // inside of the reasoning, the text, the call's arguments
    body["max_output_tokens"] = most, body["stream"] = false;
    const Json whole = Json::parse(respond(body).body);
    EXPECT_EQ(whole["status"], "incomplete");
    EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");
    EXPECT_EQ(whole["output"].back()["status"], "incomplete") << whole["output"];
    EXPECT_EQ(whole["usage"]["output_tokens"], most);
    body["stream"] = true;
    const Json last = typed_events(respond(body).body).back();
    EXPECT_EQ(last["type"], "response.incomplete");
    EXPECT_EQ(without_names(last["response"]), without_names(whole));
  }
}

TEST_F(ResponsesTest, AStreamThatFailsSaysSoInItsLastEvent) {
  start({}, 0, /*step_seconds=*/0.02);
  const std::string body = Json{{"input", "Hi"}, {"ignore_eos", true}, {"stream", true}}.dump();
  Peer peer(server_->port());
  peer.send("POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: " +
            std::to_string(body.size()) + "\r\n\r\n" + body);
  peer.read("response.output_text.delta");
  server_->end_all(20);
  const std::string text = peer.read();
  const std::vector<Json> events = typed_events(joined(text.substr(text.find("\r\n\r\n") + 4)));
  EXPECT_EQ(events.back()["type"], "response.failed");
  EXPECT_EQ(events.back()["response"]["status"], "failed");
  EXPECT_EQ(events.back()["response"]["error"]["code"], "server_error");
  EXPECT_NE(events.back()["response"]["error"]["message"].get<std::string>().find("shutting down"), std::string::npos);
}

TEST_F(ResponsesTest, ItemsAreMessages) {
  start();
  const Json body = Json::parse(R"({"instructions": "Be", "tool_choice": "none", "reasoning": {"effort": "low"},
    "input": [{"role": "developer", "content": "so"},
              {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
              {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
              {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
               "content": [{"type": "output_text", "text": "ok", "annotations": []}]},
              {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get", "arguments": "{\"x\": 1}"},
              {"type": "function_call", "call_id": "c2", "name": "put", "arguments": "{\"x\": 2}"},
              {"type": "function_call_output", "call_id": "c1", "output": "one"},
              {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
              {"type": "reasoning", "summary": [], "encrypted_content": "x"},
              {"type": "function_call", "call_id": "c3", "name": "get", "arguments": "{\"x\": 3}"},
              {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "leads nowhere"}]},
              {"role": "user", "content": "So"}]})");
  EXPECT_EQ(prompt_of(body),
            "<system>Be//so<user>Hi<assistant>[hm]ok!get1!put2<tool>one<tool>two<assistant>!get3<user>So"
            "<assistant>low");
  Fields fields(body);
  const ChatInput input = read_response_input(fields, tiny_->model, Json::array());
  EXPECT_EQ(input.messages[4]["tool_call_id"], "c1");
  EXPECT_EQ(input.messages[3]["tool_calls"][1]["id"], "c2");
  EXPECT_FALSE(input.choice.calls);
}

TEST_F(ResponsesTest, ToolsHaveTheFormOfChatCompletions) {
  start();
  const Json body = {{"input", "Hi"},
                     {"tools", Json::parse(kTools)},
                     {"parallel_tool_calls", false},
                     {"tool_choice", {{"type", "function"}, {"name", "get"}}}};
  Fields fields(body);
  const ChatInput input = read_response_input(fields, tiny_->model, Json::array());
  EXPECT_EQ(input.tools.dump(), R"([{"type":"function","function":{"name":"get","parameters":{"type":"object"}}}])");
  EXPECT_TRUE(input.choice.required && !input.choice.parallel);
  EXPECT_EQ(input.choice.only, "get");
}

TEST_F(ResponsesTest, TextFormatGuidesTheText) {
  start();
  const Json schema = Json::parse(R"({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
                                      "additionalProperties": false})");
  const Json format = {{"type", "json_schema"}, {"name", "n"}, {"strict", true}, {"schema", schema}};
  const Json json = Json::parse(respond({{"input", "Hi"}, {"text", {{"format", format}}}}).body);
  EXPECT_TRUE(Json::parse(json["output"][0]["content"][0]["text"].get<std::string>())["a"].is_boolean()) << json;
  EXPECT_EQ(json["text"]["format"], format);
}

TEST_F(ResponsesTest, AConversationGoesOnFromWhatIsKept) {
  start({}, 8);
  Json body = saying_all();
  body["instructions"] = "Be";
  const Json first = Json::parse(respond(body).body);
  const std::string id = first["id"];
  EXPECT_EQ(first["store"], true);
  EXPECT_EQ(Json::parse(kept("GET", id).body), first);
  const Json& output = first["output"];
  const Json next = {
      {"previous_response_id", id},
      {"input", {{{"type", "function_call_output"}, {"call_id", output[2]["call_id"]}, {"output", "42"}}}},
      {"seed", 3},
      {"structured_outputs", {{"regex", "[a-f]{3}"}}}};
  const Json second = Json::parse(respond(next).body);
  Json by_hand = next;  // instructions are not carried over
  by_hand["input"] = Json::array({{{"role", "user"}, {"content", "Hi"}}});
  for (const Json& item : output) by_hand["input"].push_back(item);
  by_hand["input"].push_back(next["input"][0]);
  by_hand.erase("previous_response_id");
  const std::string prompt = prompt_of(by_hand);
  EXPECT_TRUE(prompt.starts_with("<user>Hi<assistant>[")) << prompt;
  EXPECT_EQ(second["usage"]["input_tokens"], prompt.size());
  EXPECT_EQ(second["previous_response_id"], id);
  const Json same = Json::parse(respond(by_hand).body);
  EXPECT_EQ(without_names(same)["output"], without_names(second)["output"]);

  body["store"] = false, body["stream"] = true;
  const Json last = typed_events(respond(body).body).back()["response"];
  EXPECT_EQ(last["store"], false);
  EXPECT_EQ(kept("GET", last["id"]).status, 404);
  EXPECT_EQ(Json::parse(kept("DELETE", id).body), Json({{"id", id}, {"object", "response"}, {"deleted", true}}));
  EXPECT_EQ(kept("DELETE", id).status, 404);
  const Answer gone = respond(next);
  EXPECT_EQ(gone.status, 404);
  EXPECT_EQ(gone.json()["error"]["param"], "previous_response_id");
  EXPECT_NE(gone.body.find(id), std::string::npos);
  EXPECT_EQ(kept("GET", second["id"]).status, 200);  // what was built on it stays
  EXPECT_NE(kept("PUT", id).head.find("\r\nAllow: GET, DELETE"), std::string::npos);
}

TEST_F(ResponsesTest, KeysReadTheirOwnOnly) {
  const std::string path = testing::TempDir() + "/octet_responses_keys_" + std::to_string(::getpid());
  const std::string a = make_key(), b = make_key();
  write_file(path, key_line("a", a) + "\n" + key_line("b", b) + "\n");
  start({.keys = path}, 8);
  const std::string as_a = "Authorization: Bearer " + a + "\r\n", as_b = "Authorization: Bearer " + b + "\r\n";
  const std::string id = Json::parse(respond(saying("ok"), as_a).body)["id"];
  Json next = saying("ok");
  next["previous_response_id"] = id;
  EXPECT_EQ(respond(next, as_b).status, 404);
  EXPECT_EQ(kept("GET", id, as_b).status, 404);
  EXPECT_EQ(kept("DELETE", id, as_b).status, 404);
  EXPECT_EQ(respond(next, as_a).status, 200);
  EXPECT_EQ(kept("GET", id, as_a).status, 200);
  remove_path(path);
}

TEST_F(ResponsesTest, NothingIsKeptByDefault) {
  start();
  Json body = saying("ok");
  body["store"] = true;
  const Json json = Json::parse(respond(body).body);
  EXPECT_EQ(json["store"], false);
  EXPECT_EQ(kept("GET", json["id"]).status, 404);
  EXPECT_NE(kept("DELETE", json["id"]).body.find("--response-memory"), std::string::npos);
  body["previous_response_id"] = json["id"];
  const Answer answer = respond(body);
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("--response-memory"), std::string::npos);
}

TEST(ResponseStore, KeepsTheLastOfEachKey) {
  ResponseStore store({.responses = 2, .bytes = 100});
  const auto put = [&](const std::string& key, const std::string& id, size_t size) {
    store.put(key, id, {.body = std::string(size - 1, 'b'), .messages = "m"});
  };
  put("a", "1", 10), put("a", "2", 10), put("b", "1", 10);
  put("a", "3", 10);  // a third one
  EXPECT_EQ(store.find("a", "1"), nullptr);
  EXPECT_EQ(store.find("a", "2")->body.size(), 9u);
  EXPECT_NE(store.find("b", "1"), nullptr);
  EXPECT_EQ(store.find("c", "1"), nullptr);
  put("a", "4", 91);  // too many bytes with any other
  EXPECT_EQ(store.find("a", "3"), nullptr);
  EXPECT_NE(store.find("a", "4"), nullptr);
  put("a", "5", 101);  // too many alone
  EXPECT_EQ(store.find("a", "5"), nullptr);
  EXPECT_NE(store.find("a", "4"), nullptr);
  EXPECT_FALSE(store.remove("b", "4"));
  EXPECT_TRUE(store.remove("a", "4"));
  EXPECT_FALSE(store.remove("a", "4"));
  put("a", "6", 100);  // the bytes of removed ones are free
  EXPECT_NE(store.find("a", "6"), nullptr);
}

TEST_F(ResponsesTest, WhatCannotBeServedIsNamed) {
  start();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"input": 3})", "input is 3"},
      {R"({"input": []})", "at least one item"},
      {R"({"input": [3]})", "input[0]: want an object"},
      {R"({"input": [{"type": "item_reference", "id": "x"}]})", "input[0].type: 'item_reference'"},
      {R"({"input": [{"type": 3}]})", "input[0].type: want a string"},
      {R"({"input": [{"content": "x"}]})", "input[0].role"},
      {R"({"input": [{"role": "tool", "content": "x"}]})", "input[0].role: 'tool'"},
      {R"({"input": [{"role": "user"}]})", "input[0].content"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})", "input[0].content[0].type"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_text"}]}]})", "input[0].content[0].text"},
      {R"({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "[1]"}]})",
       "input[0].arguments"},
      {R"({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]})", "input[0].call_id"},
      {R"({"input": [{"type": "function_call_output", "output": "x"}]})", "input[0].call_id"},
      {R"({"input": [{"type": "function_call_output", "call_id": "c", "output": 3}]})", "input[0].output"},
      {R"({"input": [{"type": "reasoning", "content": 3}]})", "input[0].content"},
      {R"({"input": [{"type": "reasoning"}]})", "reasoning alone"},
      {R"({"instructions": 3})", "instructions"},
      {R"({"tools": 3})", "tools is 3"},
      {R"({"tools": [3]})", "tools[0]: want an object"},
      {R"({"tools": [{"type": "web_search"}]})", "tools[0].type: 'web_search'"},
      {R"({"tools": [{"type": "function"}]})", "tools[0].name"},
      {R"({"tools": [{"type": "function", "name": "f", "parameters": 3}]})", "tools[0].parameters"},
      {R"({"tool_choice": "some"})", "tool_choice"},
      {R"({"tool_choice": {"type": "allowed_tools"}})", "tool_choice"},
      {R"({"tool_choice": {"type": "function", "name": 3}})", "tool_choice.name"},
      {R"({"parallel_tool_calls": 3})", "parallel_tool_calls"},
      {R"({"text": 3})", "text"},
      {R"({"text": {"format": {"type": "xml"}}})", "text.format is"},
      {R"({"text": {"format": {"type": "json_schema", "name": "n"}}})", "json_schema with a schema"},
      {R"({"text": {"format": {"type": "json_schema", "schema": {"uniqueItems": true, "type": "array"}}}})",
       "text.format.json: "},
      {R"({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}})", "text.format"},
      {R"({"reasoning": 3})", "reasoning"},
      {R"({"reasoning": {"effort": 3}})", "reasoning.effort"},
      {R"({"max_output_tokens": 0})", "max_output_tokens"},
      {R"({"temperature": "hot"})", "temperature"},
      {R"({"stream": 3})", "stream"},
      {R"({"store": 3})", "store"},
      {R"({"n": 2})", "n is 2"},
      {R"({"include": "x"})", "include"},
      {R"({"include": ["file_search_call.results"]})", "include"},
      {R"({"top_logprobs": 2})", "top_logprobs"},
      {R"({"top_logprobs": 30, "include": ["message.output_text.logprobs"]})", "top_logprobs"},
      {R"({"metadata": {"a": 3}})", "metadata"},
      {R"({"metadata": 3})", "metadata"},
      {R"({"truncation": "auto"})", "truncation"},
      {R"({"background": true})", "background"},
      {R"({"conversation": "c"})", "conversation"},
      {R"({"prompt": {"id": "p"}})", "prompt"},
      {R"({"previous_response_id": 3})", "previous_response_id"},
      {R"({"chat_template_kwargs": {"tools": 1}})", "chat_template_kwargs.tools"},
      {R"({"chat_template": "x"})", "chat_template"},
  };
  for (const auto& [text, want] : cases) {
    Json body = {{"input", "Hi"}, {"max_output_tokens", 2}};
    body.update(Json::parse(text));
    const Answer answer = respond(body);
    EXPECT_EQ(answer.status, 400) << text << answer.body;
    EXPECT_NE(answer.json()["error"]["message"].get<std::string>().find(want), std::string::npos)
        << text << answer.body;
  }
  EXPECT_EQ(respond({{"model", "other"}, {"input", "Hi"}}).status, 404);
  // What says nothing new is taken.
  const Answer harmless = respond(Json::parse(
      R"({"input": "Hi", "max_output_tokens": 2, "truncation": "disabled", "background": false, "user": "u", "text": {},
          "include": ["reasoning.encrypted_content"], "tools": [], "service_tier": "auto", "max_tool_calls": 3,
          "tool_choice": "none", "stream_options": {"include_obfuscation": false}, "metadata": null})"));
  EXPECT_EQ(harmless.status, 200) << harmless.body;
  EXPECT_EQ(harmless.json()["metadata"], nlohmann::json::object());
}

}  // namespace
}  // namespace octet::serve
