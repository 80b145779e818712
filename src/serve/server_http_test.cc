// What HTTP asks of the server, whatever is served: names in paths, pages of other origins, packed bodies, a start.
#include <gtest/gtest.h>
#include <zlib.h>

#include "base/testing/test_error.h"
#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

using Json = nlohmann::json;

std::string gzip(const std::string& text) {
  std::string packed(text.size() + 1000, 0);
  z_stream stream = {};
  deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data()), stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

TEST(ServerHttp, ModelNamesHaveSlashes) {
  TinyServer server;
  server.model.names = {"tiny", "org/tiny", "org/tiny/2"};
  for (const char* path : {"/v1/models/org/tiny", "/v1/models/org%2Ftiny", "/v2/models/org/tiny/ready",
                           "/v2/models/org%2ftiny/versions/1", "/v2/models/org/tiny/config", "/v1/models/org/tiny/2"})
    EXPECT_EQ(server.ask("GET", path).status, 200) << path;
  EXPECT_EQ(server.ask("GET", "/v1/models/org/tiny").json()["id"], "org/tiny");
  EXPECT_EQ(server.ask("GET", "/v1/models/org/tiny/2").json()["id"], "org/tiny/2");
  EXPECT_EQ(server.ask("POST", "/v2/models/org/tiny/generate", R"({"text_input": "B"})").status, 200);
  for (const char* path : {"/v1/models/org", "/v1/models/org/other", "/v1/models/%", "/v1/models/"})
    EXPECT_EQ(server.ask("GET", path).status, 404) << path;
}

TEST(ServerHttp, PagesOfAllowedOriginsMayAskAndRead) {
  const TinyServer server({.hosts = {"ui.example"}});
  const auto with = [&](const char* method, const std::string& origin, const std::string& more = {}) {
    return server.ask(method, "/v1/models", "", "Origin: " + origin + "\r\n" + more);
  };
  const std::string asks = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n";
  const Answer preflight = with("OPTIONS", "https://ui.example", asks);
  EXPECT_EQ(preflight.status, 200);
  for (const char* field :
       {"Access-Control-Allow-Origin: https://ui.example\r\n", "Vary: Origin\r\n",
        "Access-Control-Allow-Headers: authorization\r\n", "Access-Control-Allow-Methods: GET, POST"})
    EXPECT_NE(preflight.head.find(field), std::string::npos) << field << preflight.head;
  const Answer reply = with("GET", "https://ui.example");
  EXPECT_EQ(reply.status, 200);
  EXPECT_NE(reply.head.find("Access-Control-Allow-Origin: https://ui.example\r\n"), std::string::npos);
  for (const char* method : {"GET", "OPTIONS"}) {
    const Answer evil = with(method, "https://evil.example", asks);
    EXPECT_EQ(evil.status, 403);
    EXPECT_EQ(evil.head.find("Access-Control"), std::string::npos) << evil.head;
  }
  EXPECT_EQ(server.ask("OPTIONS", "/v1/models").status, 405);
}

// The host of an absolute target counts, not the field.
TEST(ServerHttp, AnAbsoluteTargetNamesItsHost) {
  const TinyServer server;
  EXPECT_EQ(server.ask("GET", "http://localhost/version").status, 200);
  EXPECT_EQ(server.ask("GET", "http://evil.example/version").status, 421);
}

TEST(ServerHttp, BodiesMayBePacked) {
  const TinyServer server({.http = {.max_body_bytes = 100'000}});
  const auto post = [&](const std::string& body, const char* encoding = "gzip") {
    return server.ask("POST", "/v1/completions", body, std::string("Content-Encoding: ") + encoding + "\r\n");
  };
  const std::string body = Json{{"prompt", "Hi"}, {"max_tokens", 3}}.dump();
  EXPECT_EQ(post(gzip(body)).status, 200);
  EXPECT_EQ(post(body, "identity").status, 200);
  EXPECT_EQ(post(gzip(Json{{"prompt", std::string(8'000'000, 'a')}}.dump())).status, 413);  // of 8 kB
  EXPECT_EQ(post(body, "br").status, 415);
  std::string damaged = gzip(body);
  for (const std::string& bad : {body, damaged.substr(0, damaged.size() / 2), damaged + "x", gzip(body) + gzip(body)})
    EXPECT_TRUE(post(bad).status == 400 || post(bad).status == 413) << bad.size();  // by what its end says
  EXPECT_EQ(post(body).status, 400);
  damaged[damaged.size() - 4] = 1;  // says that it is shorter
  EXPECT_EQ(post(damaged).status, 400);
}

TEST(ServerHttp, ListensBeforeThereIsAModel) {
  TinyModel tiny;
  Server server(ServerOptions{.http = {.port = 0}});
  EXPECT_NE(error_of([&] { Server{ServerOptions{.http = {.port = server.port()}}}; }).find("cannot listen"),
            std::string::npos);
  EXPECT_EQ(ask(server.port(), "GET", "/livez").status, 200);
  for (const char* path : {"/readyz", "/health", "/v1/models", "/v2/health/ready"}) {
    const Answer answer = ask(server.port(), "GET", path);
    EXPECT_EQ(answer.status, 503) << path;
    EXPECT_NE(answer.head.find("\r\nRetry-After: "), std::string::npos) << answer.head;
  }
  server.open(tiny.model);
  EXPECT_EQ(ask(server.port(), "GET", "/readyz").status, 200);
  EXPECT_EQ(ask(server.port(), "GET", "/v1/models").status, 200);
}

TEST(ServerHttp, StreamsHaveOneCacheControl) {
  const TinyServer server;
  const std::string body = R"({"prompt": "Hi", "stream": true})";
  for (const char* version : {"1.0", "1.1"}) {
    const std::string reply =
        Peer(server.server->port())
            .send(std::string("POST /v1/completions HTTP/") + version +
                  "\r\nHost: localhost\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
                  "\r\n\r\n" + body)
            .read();
    const size_t first = reply.find("Cache-Control: no-cache\r\n");
    EXPECT_NE(first, std::string::npos) << reply;
    EXPECT_EQ(reply.find("Cache-Control", first + 1), std::string::npos) << reply;
  }
}

}  // namespace
}  // namespace octet::serve
