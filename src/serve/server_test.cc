// The server over the engine on the fake runner, by real sockets.
#include "serve/server.h"

#include <gtest/gtest.h>

#include <list>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/testing/test_error.h"
#include "infer/engine_settings.h"
#include "infer/testing/engine_test.h"
#include "serve/testing/answer.h"

namespace octet::serve {
namespace {

using Json = nlohmann::json;

class ServerTest : public testing::Test {
 protected:
  void start(ServerOptions options = {}, FakeOptions fake = {.limits = fake_limits()},
             const EngineOptions& engine = {}) {
    engine_ = test_engine(std::move(fake), engine);
    tokenizer_ = test_tokenizer();
    model_.engine = engine_.get(), model_.tokenizer = tokenizer_.get();
    model_.names = {"tiny", "alias"}, model_.max_texts = 16;
    options.http.port = 0;
    model_.version = "0.1";
    server_ = std::make_unique<Server>(model_, options);
  }

  Answer ask(const std::string& method, const std::string& path, const std::string& body = {},
             const std::string& fields = {}) const {
    return serve::ask(server_->port(), method, path, body, fields);
  }
  Answer complete(const Json& body, const std::string& fields = {}) const {
    return ask("POST", "/v1/completions", body.dump(), fields);
  }
  void wait_idle() const {
    EXPECT_TRUE(eventually([&] { return engine_->stats().running == 0 && engine_->stats().waiting == 0; }));
  }

  std::unique_ptr<EngineLoop> engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ApiModel model_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, ACompletionIsTheEnginesText) {
  start();
  const Collected want =
      alone({.prompt_ids = {1, 2, 3}, .sampling = {.temperature = 0}, .max_tokens = 9}, 0, fake_limits());
  for (const Json& prompt : {Json("BCD"), Json({1, 2, 3})}) {
    const Answer answer = complete({{"prompt", prompt}, {"max_tokens", 9}, {"temperature", 0}, {"model", "alias"}});
    ASSERT_EQ(answer.status, 200) << answer.body;
    const Json json = answer.json();
    EXPECT_EQ(json["object"], "text_completion");
    EXPECT_EQ(json["model"], "tiny");
    EXPECT_TRUE(json["id"].get<std::string>().starts_with("cmpl-"));
    EXPECT_EQ(json["choices"][0]["text"], want.text);
    EXPECT_EQ(json["choices"][0]["finish_reason"], finish_reason_name(want.finished));
    EXPECT_EQ(json["usage"]["prompt_tokens"], 3);
    EXPECT_EQ(json["usage"]["completion_tokens"], want.ids.size());
  }
}

TEST_F(ServerTest, StreamsJoinToTheWholeReply) {
  start();
  Json body = {{"prompt", {"BCD", "EE"}}, {"n", 2}, {"max_tokens", 7}, {"seed", 5}, {"logprobs", 2}, {"echo", false}};
  const Json whole = complete(body).json();
  body["stream"] = true, body["stream_options"] = {{"include_usage", true}};
  const Answer streamed = complete(body);
  EXPECT_NE(streamed.head.find("Content-Type: text/event-stream"), std::string::npos);
  std::vector<std::string> texts(4), reasons(4);
  std::vector<Json> tokens(4, Json::array());
  const std::vector<Json> list = events(streamed);
  for (const Json& event : list) {
    EXPECT_EQ(event["id"], list[0]["id"]);
    EXPECT_EQ(event["usage"].is_null(), !event["choices"].empty());
    for (const Json& choice : event["choices"]) {
      const auto index = choice["index"].get<size_t>();
      texts.at(index) += choice["text"].get<std::string>();
      for (const Json& token : choice["logprobs"]["tokens"]) tokens[index].push_back(token);
      if (!choice["finish_reason"].is_null()) reasons[index] = choice["finish_reason"];
    }
  }
  EXPECT_EQ(list.back()["usage"], whole["usage"]);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(texts[i], whole["choices"][i]["text"]);
    EXPECT_EQ(reasons[i], whole["choices"][i]["finish_reason"]);
    EXPECT_EQ(tokens[i], whole["choices"][i]["logprobs"]["tokens"]);
  }
}

TEST_F(ServerTest, EchoIdsAndStops) {
  start();
  const Json plain =
      complete({{"prompt", "BCD"}, {"temperature", 0}, {"max_tokens", 8}, {"return_token_ids", true}}).json();
  const std::string text = plain["choices"][0]["text"];
  EXPECT_EQ(plain["choices"][0]["prompt_token_ids"], Json({1, 2, 3}));
  const std::string stop = text.substr(2, 1);
  Json body = {{"prompt", "BCD"}, {"temperature", 0}, {"max_tokens", 8}, {"echo", true}, {"stop", stop}};
  const Json echoed = complete(body).json()["choices"][0];
  EXPECT_EQ(echoed["text"], "BCD" + text.substr(0, text.find(stop)));
  EXPECT_EQ(echoed["stop_reason"], stop);
  EXPECT_EQ(echoed["finish_reason"], "stop");
  body["include_stop_str_in_output"] = true;
  EXPECT_EQ(complete(body).json()["choices"][0]["text"], "BCD" + text.substr(0, text.find(stop) + 1));
}

TEST_F(ServerTest, WhatCannotBeServedIsNamed) {
  start();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "the body"},
      {"[]", "not a JSON object"},
      {"{\"a\": 1, \"a\": 2}", "a"},
      {std::string(100'000, '['), "deeper than 64 levels"},
      {"{\"prompt\": \"\xff\"}", "the body"},
      {"{}", "prompt is missing"},
      {R"({"prompt": ""})", "a prompt is empty"},
      {R"({"prompt": []})", "prompt"},
      {R"({"prompt": [[]]})", "a prompt is empty"},
      {R"({"prompt": [1e30]})", "token ids below 61"},
      {R"({"prompt": [61]})", "token ids below 61"},
      {R"({"prompt": [-1]})", "token ids below 61"},
      {R"({"prompt": [0.5]})", "token ids below 61"},
      {R"({"prompt": {"a": 1}})", "prompt is {\"a\":1}"},
      {R"({"prompt": "B", "n": 1000000000})", "n is 1000000000 (want a whole number from 1 to 16)"},
      {R"({"prompt": "B", "n": 99999999999999999999999})", "n is"},
      {R"({"prompt": "B", "max_tokens": 0})", "max_tokens is 0"},
      {R"({"prompt": "B", "max_tokens": "9"})", "max_tokens is \"9\""},
      {R"({"prompt": "B", "temperature": -1})", "temperature is -1"},
      {R"({"prompt": "B", "temperature": null, "top_p": 2})", "top_p is 2"},
      {R"({"prompt": "B", "logprobs": 21})", "logprobs is 21"},
      {R"({"prompt": "B", "stop": [1]})", "stop is [1]"},
      {R"({"prompt": "B", "logit_bias": {"61": 1}})", "'61' is not a token id"},
      {R"({"prompt": "B", "logit_bias": {"1": 1e9}})", "from -100 to 100"},
      {R"({"prompt": "B", "suffix": "x"})", "suffix"},
      {R"({"prompt": "B", "best_of": 3})", "best_of"},
      {R"({"prompt": "B", "length_penalty": 2})", "length_penalty"},
      {R"({"prompt": "B", "early_stopping": true})", "early_stopping"},
      {R"({"prompt": "B", "stream_options": {"include_usage": true}})", "requires stream"},
      {R"({"prompt": ["B", "C"], "n": 9})", "more than 16 completions"},
  };
  for (const auto& [body, message] : cases) {
    const Answer answer = ask("POST", "/v1/completions", body);
    EXPECT_EQ(answer.status, 400) << body.substr(0, 100) << " gives " << answer.body;
    EXPECT_NE(answer.json()["error"]["message"].get<std::string>().find(message), std::string::npos)
        << body.substr(0, 100) << " gives " << answer.body;
  }
  EXPECT_EQ(complete({{"prompt", "B"}, {"model", "other"}}).status, 404);
  EXPECT_EQ(complete({{"prompt", std::string(65, 'B')}}).status, 400);  // longer than the context
  EXPECT_EQ(ask("GET", "/v1/completions").status, 405);
  EXPECT_EQ(ask("POST", "/v1/nothing").status, 404);
  EXPECT_EQ(complete({{"prompt", "B"}, {"no_such_field", 1}, {"user", "me"}}).status, 200);
  EXPECT_NE(ask("GET", "/metrics").body.find("octet_ignored_fields_total 1\n"), std::string::npos);
}

TEST_F(ServerTest, OnlyThisMachinesNamesReachLoopback) {
  start({.hosts = {"example.org"}});
  const auto with = [&](const std::string& fields) {
    return Peer(server_->port())
        .send("GET /version HTTP/1.1\r\nConnection: close\r\n" + fields + "\r\n")
        .read()
        .substr(9, 3);
  };
  EXPECT_EQ(with("Host: 127.0.0.1:8000\r\n"), "200");
  EXPECT_EQ(with("Host: [::1]:8000\r\n"), "200");
  EXPECT_EQ(with("Host: EXAMPLE.org\r\n"), "200");
  EXPECT_EQ(with("Host: evil.com\r\n"), "421");
  EXPECT_EQ(with("Host: localhost.evil.com\r\n"), "421");
  EXPECT_EQ(with("Host: localhost\r\nOrigin: http://localhost:3000\r\n"), "200");
  EXPECT_EQ(with("Host: localhost\r\nOrigin: https://evil.com\r\n"), "403");
  EXPECT_EQ(with("Host: localhost\r\nOrigin: null\r\n"), "403");
}

TEST_F(ServerTest, KeysAreAskedForAndLimited) {
  const std::string path = testing::TempDir() + "/octet_server_keys_" + std::to_string(::getpid());
  const std::string a = make_key(), b = make_key();
  Json line = Json::parse(key_line("a", a));
  line["requests_per_minute"] = 2;
  write_file(path, line.dump() + "\n");
  start({.keys = path});
  const auto status = [&](const std::string& key) {
    return complete({{"prompt", "B"}}, key.empty() ? "" : "Authorization: Bearer " + key + "\r\n").status;
  };
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(status(b), 401);
  EXPECT_EQ(status(a), 200);
  EXPECT_EQ(ask("GET", "/v1/models").status, 401);
  EXPECT_EQ(ask("GET", "/livez").status, 200);
  EXPECT_EQ(ask("GET", "/metrics").status, 200);
  EXPECT_EQ(status(a), 200);
  const Answer refused = complete({{"prompt", "B"}}, "X-Api-Key: " + a + "\r\n");
  EXPECT_EQ(refused.status, 429);
  EXPECT_NE(refused.head.find("\r\nRetry-After: "), std::string::npos) << refused.head;
  write_file(path, key_line("b", b) + "\n");
  server_->reload();
  EXPECT_EQ(status(a), 401);
  EXPECT_EQ(status(b), 200);
  write_file(path, "rubbish");
  EXPECT_NE(error_of([&] { server_->reload(); }), "(no error)");
  EXPECT_EQ(status(b), 200);
  remove_path(path);
}

TEST_F(ServerTest, AFullQueueIsToldAtOnce) {
  start({.front = {.queue = {.requests = 1}, .ahead = 0, .ahead_tokens = 100, .ahead_most = 0, .sequences = 0}});
  Peer waits(server_->port());
  waits.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"B\"}");
  ASSERT_TRUE(eventually(
      [&] { return ask("GET", "/metrics").body.find("octet_num_requests_waiting 1\n") != std::string::npos; }));
  const Answer refused = complete({{"prompt", "B"}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.head.find("\r\nRetry-After: "), std::string::npos);
  EXPECT_NE(ask("GET", "/metrics").body.find("octet_requests_refused_total{reason=\"queue\"} 1\n"), std::string::npos);
}

TEST_F(ServerTest, AClientThatLeavesFreesItsBlocks) {
  start({}, {.limits = fake_limits(), .step_seconds = 1e-3});
  for (const bool stream : {true, false}) {
    Peer peer(server_->port());
    const std::string body = Json{{"prompt", "B"}, {"max_tokens", 60}, {"ignore_eos", true}, {"stream", stream}}.dump();
    peer.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
    ASSERT_TRUE(eventually([&] { return engine_->stats().running > 0; }));
    peer.half_close();
    wait_idle();
  }
  EXPECT_EQ(engine_->stats().cancelled, 2);
  EXPECT_EQ(engine_->stats().kv_blocks_used, 0);
}

TEST_F(ServerTest, ADeviceErrorIsAReplyAndTurnsLivezRed) {
  start({}, {.limits = fake_limits(), .fail_step = 1});
  const Answer answer = complete({{"prompt", "B"}});
  EXPECT_EQ(answer.status, 503) << answer.body;
  EXPECT_EQ(answer.json()["error"]["code"], "device");
  ASSERT_TRUE(eventually([&] { return engine_->stats().broken; }));
  const Answer live = ask("GET", "/livez");
  EXPECT_EQ(live.status, 503);
  EXPECT_NE(live.body.find("the device has failed"), std::string::npos) << live.body;
  EXPECT_EQ(complete({{"prompt", "B"}}).json()["error"]["code"], "device");
}

TEST_F(ServerTest, ADeviceErrorEndsRunningStreamsWithItsReason) {
  start({}, {.limits = fake_limits(), .fail_wait = 50, .step_seconds = 2e-3});
  const Answer answer = complete({{"prompt", "B"}, {"max_tokens", 60}, {"ignore_eos", true}, {"stream", true}});
  ASSERT_EQ(answer.status, 200);
  const std::vector<Json> list = events(answer);
  ASSERT_GE(list.size(), 2u);
  EXPECT_TRUE(list.front().contains("choices"));
  EXPECT_EQ(list.back()["error"]["code"], "device");
  EXPECT_NE(list.back()["error"]["message"].get<std::string>().find("device lost in step 50"), std::string::npos);
}

// A tenant cannot tell what others have asked: their blocks of the cache are not its own.
TEST_F(ServerTest, PrefixesOfOneKeyAreNoneOfAnothers) {
  const std::string path = testing::TempDir() + "/octet_server_tenants_" + std::to_string(::getpid());
  const std::string a = make_key(), b = make_key();
  write_file(path, key_line("a", a) + "\n" + key_line("b", b) + "\n");
  start({.keys = path});
  const auto cached = [&](const std::string& key, const std::string& salt) {
    const Json body = {{"prompt", std::string(40, 'B')}, {"max_tokens", 2}, {"cache_salt", salt}};
    const Json usage = complete(body, "Authorization: Bearer " + key + "\r\n").json()["usage"];
    return usage["prompt_tokens_details"]["cached_tokens"].get<int64_t>();
  };
  EXPECT_EQ(cached(a, ""), 0);
  EXPECT_GT(cached(a, ""), 0);
  EXPECT_EQ(cached(b, ""), 0);
  EXPECT_EQ(cached(a, "other"), 0);
  EXPECT_EQ(cached(b, "1 a "), 0);  // what the server makes of the first one
  remove_path(path);
}

// The first step after a long pause is no step that hangs.
TEST_F(ServerTest, AnIdleEngineIsLive) {
  start({.stall_seconds = 0.2}, {.limits = fake_limits(), .step_seconds = 0.02});
  ASSERT_TRUE(eventually([&] { return engine_->stats().since_step >= 0.3; }));
  Peer peer(server_->port());
  peer.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"B\"}");
  ASSERT_TRUE(eventually([&] { return engine_->stats().running + engine_->stats().steps > 0; }));
  EXPECT_EQ(ask("GET", "/livez").status, 200);
}

// The model's vocabulary may be larger than the tokenizer's: padded rows are sampled by random weights.
TEST_F(ServerTest, TokensWithoutTextAreNoEnd) {
  start();
  const Json choice =
      complete(
          {{"prompt", "B"}, {"max_tokens", 4}, {"logit_bias", {{"60", 100}}}, {"ignore_eos", true}, {"logprobs", 3}})
          .json()["choices"][0];
  EXPECT_EQ(choice["text"], "");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"", "", "", ""}));
}

TEST_F(ServerTest, ATextThatTakesTooLongIsLate) {
  start({.request_timeout = 0.05}, {.limits = fake_limits(), .step_seconds = 0.02});
  const Answer late = complete({{"prompt", "BC"}, {"max_tokens", 60}, {"ignore_eos", true}});
  EXPECT_EQ(late.status, 504);
  EXPECT_NE(late.body.find("timeout_seconds of 0.05 exceeded"), std::string::npos) << late.body;
}

TEST_F(ServerTest, LivezIsRedWhileNoStepEnds) {
  start({.stall_seconds = 0.05}, {.limits = fake_limits(), .step_seconds = 0.5});
  EXPECT_EQ(ask("GET", "/livez").status, 200);
  Peer peer(server_->port());
  peer.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"B\"}");
  ASSERT_TRUE(eventually([&] { return ask("GET", "/livez").status != 200; }));
  EXPECT_EQ(ask("GET", "/readyz").status, 503);
}

TEST_F(ServerTest, DrainingFinishesWhatRuns) {
  start({}, {.limits = fake_limits(), .step_seconds = 2e-3});
  Peer peer(server_->port());
  const std::string body = Json{{"prompt", "B"}, {"max_tokens", 20}, {"ignore_eos", true}}.dump();
  peer.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
            "\r\n\r\n" + body);
  ASSERT_TRUE(eventually([&] { return engine_->stats().running > 0; }));
  server_->set_unready();
  EXPECT_EQ(ask("GET", "/readyz").status, 503);
  EXPECT_EQ(ask("GET", "/livez").status, 200);
  server_->drain();
  EXPECT_TRUE(peer.read().starts_with("HTTP/1.1 200 OK"));
}

TEST_F(ServerTest, WhatOutlivesTheDrainIsEndedByAnError) {
  start({.front = {.ahead = 2}}, {.limits = fake_limits(), .step_seconds = 2e-3});
  std::list<Peer> peers;
  for (const bool stream : {true, false, true, false}) {  // two of them wait in the queue
    const std::string body = Json{{"prompt", "B"}, {"max_tokens", 60}, {"ignore_eos", true}, {"stream", stream}}.dump();
    peers.emplace_back(server_->port())
        .send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  }
  peers.front().read("data: ");
  server_->end_all(20);
  EXPECT_EQ(server_->running(), 0);
  for (Peer& peer : peers) {
    const std::string text = peer.read();
    const bool whole = text.starts_with("HTTP/1.1 200") && text.find("finish_reason\":\"length") != std::string::npos;
    EXPECT_TRUE(whole || text.find("the server is shutting down") != std::string::npos) << text;
  }
  wait_idle();
}

TEST_F(ServerTest, TokensModelsAndInfo) {
  start();
  EXPECT_EQ(ask("POST", "/tokenize", R"({"prompt": "BCD", "return_token_strs": true})").json(),
            Json::parse(R"({"count": 3, "max_model_len": 64, "tokens": [1, 2, 3], "token_strs": ["B", "C", "D"]})"));
  EXPECT_EQ(ask("POST", "/detokenize", R"({"tokens": [1, 2, 3]})").json()["prompt"], "BCD");
  EXPECT_EQ(ask("GET", "/v1/models").json()["data"].size(), 2u);
  EXPECT_EQ(ask("GET", "/v1/models/alias").json()["root"], "tiny");
  EXPECT_EQ(ask("GET", "/v1/models/none").status, 404);
  const Json info = ask("GET", "/server_info").json();
  EXPECT_EQ(info["vocab_size"], 61);
  EXPECT_EQ(info["block_size"], 4);
  EXPECT_EQ(info["policy"], "max-utilization");
  EngineOptions engine;
  for (const std::string& name : settings_of(engine).names()) EXPECT_TRUE(info.contains(name)) << name;
  EXPECT_NE(ask("GET", "/version", "", "X-Request-Id: mine\r\n").head.find("\r\nX-Request-Id: mine"),
            std::string::npos);
}

}  // namespace
}  // namespace octet::serve
