// libFuzzer: what one connection sends to a server over the fake runner, by a UNIX socket. A first byte below the
// number of routes picks one, and the rest is the body of a request to it, whole or in chunks; other bytes are sent as
// they are. The server answers without a status 5xx or an internal error, closes the connection, and keeps nothing of
// it.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "serve/api_request.h"
#include "serve/response_store.h"
#include "serve/server.h"
#include "serve/testing/eventually.h"
#include "serve/testing/peer.h"
#include "serve/testing/tiny_model.h"

namespace octet::serve {
namespace {

struct FuzzedServer : TinyModel {
  FuzzedServer() {
    model.max_texts = 16, model.responses = &responses, model.request_templates = std::make_shared<TemplateCache>();
    ServerOptions options;
    options.http = {.unix_socket = path,
                    .max_head_bytes = 4000,
                    .max_body_bytes = 60'000,
                    .head_seconds = kPatience,
                    .body_seconds = kPatience,
                    .idle_seconds = kPatience};
    server = std::make_unique<Server>(model, options);
  }
  int64_t left() const {
    const EngineStats stats = engine->stats();
    return stats.running + stats.waiting + stats.kv_blocks_used + server->running() + server->connections();
  }

  static constexpr double kPatience = 0.02;  // with what is no whole request, or does not close its connection
  const std::string path = std::filesystem::temp_directory_path() / fmt::format("octet_request_fuzz_{}", getpid());
  ResponseStore responses{{.responses = 8, .bytes = 1 << 20}};
  std::unique_ptr<Server> server;
};

std::string request_to(const Route& route, std::string_view body) {
  std::string path = route.path;
  while (path.find('{') != std::string::npos)
    path.replace(path.find('{'), path.find('}') - path.find('{') + 1, path.ends_with("{id}") ? "resp_1" : "tiny");
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", route.method, path);
  if (body.size() % 2 == 0) return text + fmt::format("Content-Length: {}\r\n\r\n", body.size()).append(body);
  text += "Transfer-Encoding: chunked\r\n\r\n";
  for (; !body.empty(); body.remove_prefix(std::min<size_t>(body.size(), 50)))
    text += fmt::format("{:x}\r\n", std::min<size_t>(body.size(), 50)).append(body.substr(0, 50)).append("\r\n");
  return text + "0\r\n\r\n";
}

void expect(bool holds, std::string_view what, const std::string& sent, const std::string& answer) {
  if (holds) return;
  fmt::print(stderr, "{}\n--- sent\n{}\n--- answer\n{}\n", what, sent, answer);
  std::abort();
}

void talk(FuzzedServer& served, std::string_view input, const std::string& sent) {
  std::string answer;
  {
    Peer peer(served.path);
    const bool ended = peer.send(sent).ends();
    answer = peer.text();
    expect(ended, "silence for 20 s", sent, answer);
  }
  // The server's own words, where they are no echo.
  for (const char* fault : {"\nHTTP/1.1 5", "}HTTP/1.1 5", "\"type\":\"server_error\"", "\"type\":\"api_error\""})
    expect(answer.find(fault) == std::string::npos || input.find(fault) != std::string_view::npos, "an internal error",
           sent, answer);
  expect(!answer.starts_with("HTTP/1.1 5"), "a status 5xx", sent, answer);
  expect(eventually([&] { return served.left() == 0; }), "something stays", sent, answer);
}

void fuzz(std::string_view bytes) {
  static FuzzedServer served;
  const size_t route = bytes.empty() ? routes().size() : static_cast<unsigned char>(bytes[0]);
  talk(served, bytes, route < routes().size() ? request_to(routes()[route], bytes.substr(1)) : std::string(bytes));
}

}  // namespace
}  // namespace octet::serve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  octet::serve::fuzz({reinterpret_cast<const char*>(data), size});
  return 0;
}
