// Ten thousand requests that are nearly right, over real sockets, to every route: each is answered by 2xx or 4xx or its
// connection is closed, others are served all the time, and nothing stays behind.
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "serve/api_request.h"
#include "serve/testing/answer.h"
#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;

Json body_of(const std::string& path) {
  // Fields of all wire forms: those that a route does not know are ignored.
  Json body = Json::parse(R"({"model": "tiny", "max_tokens": 3, "temperature": 0.5, "seed": 1, "stop": ["zz", "y"],
    "n": 2, "logit_bias": {"3": 5, "4": -5}, "stream": false, "top_k": 5, "user": "u", "metadata": {"a": "b"}})");
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "get", "description": "d", "parameters":
    {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}}])");
  if (path.find("chat") != std::string::npos) {
    body["messages"] = Json::parse(R"([{"role": "system", "content": "Be brief"},
      {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function":
        {"name": "get", "arguments": "{\"x\": 1}"}}]}, {"role": "tool", "tool_call_id": "c1", "content": "7"}])");
    body["tools"] = tools, body["tool_choice"] = "auto", body["chat_template_kwargs"] = {{"think", true}};
    body["logprobs"] = true, body["top_logprobs"] = 2;
    body["response_format"] = Json::parse(R"({"type": "json_schema", "json_schema": {"name": "s", "schema": {"type":
      "object", "properties": {"a": {"type": "string", "pattern": "^[a-c]*$"}, "b": {"enum": [1, "x"]}}}}})");
  } else if (path.find("messages") != std::string::npos) {
    body["messages"] = Json::parse(R"([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])");
    body["system"] = "Be brief", body["stop_sequences"] = {"zz"};
    body["tools"] = {{{"name", "get"}, {"input_schema", {{"type", "object"}}}}};
  } else if (path.find("responses") != std::string::npos) {
    body["input"] = Json::parse(R"([{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}])");
    body["tools"] = {{{"type", "function"}, {"name", "get"}, {"parameters", {{"type", "object"}}}}};
  } else if (path.find("v2") != std::string::npos) {
    body["text_input"] = "Hi", body["id"] = "1", body["parameters"] = {{"max_tokens", 3}};
    body["inputs"] = Json::parse(R"([{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hi"]},
      {"name": "max_tokens", "shape": [1], "datatype": "INT32", "data": [3]}])");
  } else if (path == "/detokenize") {
    body["tokens"] = {1, 2, 3};
  } else {
    body["prompt"] = {"Hi", "you"}, body["logprobs"] = 2, body["echo"] = false, body["best_of"] = 2;
    body["structured_outputs"] = {{"regex", "[a-z]{1,5}"}};
  }
  if (path == "/tokenize") body["prompt"] = "Hi", body.erase("logprobs");
  return body;
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  size_t draw(size_t below) { return static_cast<size_t>(random_() % below); }
  bool one_in(size_t count) { return draw(count) == 0; }

  // A value replaced, lost, wrapped, doubled or renamed.
  void change(Json& root) {
    std::vector<Json*> nodes;
    collect(root, nodes);
    Json& node = *nodes[draw(nodes.size())];
    switch (draw(6)) {
      case 0:
        if (node.is_structured() && !node.empty()) {
          node.erase(std::next(node.begin(), static_cast<int>(draw(node.size()))));
          break;
        }
        [[fallthrough]];
      case 1: node = Json::array({node}); break;
      case 2: node = {{"type", node}}; break;
      case 3:
        if (node.is_array() && !node.empty()) node.push_back(node[draw(node.size())]);
        if (node.is_object()) node["x" + std::to_string(draw(9))] = *nodes[draw(nodes.size())];
        if (node.is_string()) node = node.get<std::string>() + node.get<std::string>();
        break;
      default: node = value();
    }
  }

  void change(std::string& bytes) {
    for (size_t changes = 1 + draw(4); changes > 0; --changes) {
      if (bytes.empty()) bytes = "\n";
      const size_t at = draw(bytes.size());
      switch (draw(5)) {
        case 0: bytes[at] = static_cast<char>(draw(256)); break;
        case 1: bytes.erase(at, 1 + draw(9)); break;
        case 2: bytes.insert(at, std::string_view("\xff\xc0\x80\xed\xa0\x80").substr(draw(5), 2)); break;
        case 3: bytes.insert(at, std::string(1 + draw(100), "[{\"\\,:0 \r\n"[draw(10)])); break;
        default: bytes.insert(at, bytes.substr(draw(bytes.size()), 1 + draw(40)));
      }
    }
  }

 private:
  static void collect(Json& node, std::vector<Json*>& nodes) {
    nodes.push_back(&node);
    if (node.is_structured())
      for (Json& inner : node) collect(inner, nodes);
  }
  Json value() {
    static const Json kValues =
        Json::parse(R"json([null, true, false, 0, -1, 1, 0.5, 2, 16, 17, 1e308, -1e308, 2147483648,
      9223372036854775807, 9223372036854775808, -9223372036854775808, 18446744073709551615, 1e-320, "", "a", "\u0000", "é",
      "\ud83d\ude00", "(a|a)*b", "[", "(?=a)", "\\1", "root ::= root", "{{ 1 / 0 }}", [], {}, [[]], [{}], [null], {
      "" : ""},
      {
      "type" : "object"}, {"$ref": "#"}, {"type": ["string", 3]}, {"not": {}}, "<|im_start|>system", "function",
      "required", "json_object", [1, "a", null, [2]], [-1, 1000000], {
      "1" : null}, {
      "-1" : 1}, "text", "assistant"])json");
    if (one_in(30)) return std::string(1 + draw(5000), 'a');
    if (one_in(50)) {
      Json deep = 1;
      for (size_t i = draw(100); i > 0; --i) deep = Json::array({deep});
      return deep;
    }
    return kValues[draw(kValues.size())];
  }

  std::mt19937_64 random_;
};

class MutationTest : public testing::Test {
 protected:
  static constexpr int kRequests = 10'000, kClients = 4;

  std::string head(const std::string& method, std::string path, const std::string& fields) const {
    if (const size_t brace = path.find('{'); brace != std::string::npos)
      path.replace(brace, path.find('}') - brace + 1, "tiny");
    return method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n";
  }
  static std::string length(size_t bytes) { return "Content-Length: " + std::to_string(bytes) + "\r\n"; }
  static std::string chunks(std::string_view body, Mutator& mutator) {
    std::string text;
    while (!body.empty()) {
      const std::string_view piece = body.substr(0, 1 + mutator.draw(60));
      text += fmt::format("{:x}{}\r\n", piece.size(), mutator.one_in(9) ? ";x=y" : "").append(piece).append("\r\n");
      body.remove_prefix(piece.size());
    }
    return text + "0\r\n" + (mutator.one_in(9) ? "X-Behind: 1\r\n" : "") + "\r\n";
  }

  // One request of the seed: what was sent, and what came back.
  std::pair<std::string, std::string> send(uint64_t seed) {
    Mutator mutator(seed);
    const Route& route = routes()[mutator.draw(routes().size())];
    const bool post = route.method == std::string_view("POST");
    Json json = post ? body_of(route.path) : Json::object();
    const size_t how = mutator.draw(16);
    if (post && mutator.one_in(3)) json["stream"] = true;
    if (how < 9)
      for (size_t changes = 1 + mutator.draw(3); changes > 0; --changes) mutator.change(json);
    std::string body = post ? json.dump(-1, ' ', false, Json::error_handler_t::replace) : "";
    if (how == 9 || how == 10) mutator.change(body);
    const std::string close = "Connection: close\r\n";
    std::string text = head(route.method, route.path, close + length(body.size())) + body;
    bool half = false;
    switch (how) {
      case 11: mutator.change(text), half = true; break;
      case 12:
        text = head(route.method, route.path, close + "Transfer-Encoding: chunked\r\n");
        text += chunks(body, mutator);
        if (mutator.one_in(2)) mutator.change(text), half = true;
        break;
      case 13:  // lengths that are wrong, or two of them
        text = head(route.method, route.path,
                    close + length(body.size() + mutator.draw(9)) +
                        (mutator.one_in(2) ? length(mutator.draw(9)) : "Transfer-Encoding: chunked\r\n")) +
               body;
        half = true;
        break;
      case 14:  // several behind each other, the last with an end
        text = head(route.method, route.path, length(body.size())) + body + head("GET", "/livez", "") + text;
        break;
      case 15:
        if (mutator.one_in(2))
          text = head("GET", "/" + std::string(6000, 'x'), "");
        else
          text = head("POST", route.path, length(1 << 20)) + std::string(80'000, ' ');
        break;
      default: break;
    }
    Peer peer(server_.server->port());
    if (mutator.one_in(20)) {  // leaves in the middle, or right behind
      peer.send(text.substr(0, mutator.draw(text.size() + 1)));
      return {text, ""};
    }
    peer.send(text);
    if (half) peer.half_close();
    return {text, peer.read()};
  }

  static void check_answer(uint64_t seed, const std::string& sent, const std::string& answer) {
    const bool fine = answer.empty() || answer.starts_with("HTTP/1.1 2") || answer.starts_with("HTTP/1.1 4");
    EXPECT_TRUE(fine && answer.find("server_error") == std::string::npos &&
                answer.find("api_error") == std::string::npos)
        << "request " << seed << "\n"
        << sent.substr(0, 3000) << "\ngives\n"
        << answer.substr(0, 1000);
  }

  TinyServer server_{{.http = {.max_head_bytes = 4000,
                               .max_body_bytes = 60'000,
                               .head_seconds = 5,
                               .body_seconds = 5,
                               .idle_seconds = 0.3}}};
};

TEST_F(MutationTest, EachIsAnsweredAndNothingStays) {
  std::atomic<int> next = 0;
  std::atomic<bool> over = false;
  std::vector<std::unique_ptr<Peer>> slow;  // begin and never end
  for (int i = 0; i < 100; ++i) {
    slow.push_back(std::make_unique<Peer>(server_.server->port()));
    slow.back()->send(i % 2 == 0 ? "POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{" : "GET /livez HT");
  }
  std::thread control([&] {
    while (!over) {
      EXPECT_EQ(ask(server_.server->port(), "GET", "/livez").status, 200);
      const Answer answer =
          ask(server_.server->port(), "POST", "/v1/completions", R"({"prompt": "Hi", "max_tokens": 2})");
      EXPECT_EQ(answer.status, 200) << answer.body;
    }
  });
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i)
    clients.emplace_back([&] {
      for (int seed = next++; seed < kRequests && !HasFailure(); seed = next++) {
        const auto [sent, answer] = send(static_cast<uint64_t>(seed));
        check_answer(static_cast<uint64_t>(seed), sent, answer);
      }
    });
  for (std::thread& client : clients) client.join();
  over = true;
  control.join();
  slow.clear();
  const auto left = [&] {
    const EngineStats stats = server_.engine->stats();
    return stats.running + stats.waiting + stats.kv_blocks_used + server_.server->running() +
           server_.server->connections();
  };
  EXPECT_TRUE(eventually([&] { return left() == 0; })) << left();
}

}  // namespace
}  // namespace octet::serve
