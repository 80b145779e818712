// The client against our server, against peers that answer badly or not at all, and by TLS.
#include "serve/http_client.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <future>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "serve/testing/certificate.h"

namespace octet::serve {
namespace {

std::string url_of(int port) { return "http://127.0.0.1:" + std::to_string(port); }

// A peer that answers each connection with the next of these bytes and closes it; "hold" keeps it open in silence.
class RawServer {
 public:
  explicit RawServer(std::vector<std::string> replies) : replies_(std::move(replies)) {
    sockaddr_in at{.sin_family = AF_INET};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(::listen(socket_, 16), 0);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&at), &size);
    port_ = ntohs(at.sin_port);
    thread_ = std::thread([this] { work(); });
  }
  ~RawServer() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    for (const int held : held_) ::close(held);
    ::close(socket_);
  }
  int port() const { return port_; }

 private:
  void work() {
    for (const std::string& reply : replies_) {
      const int peer = ::accept(socket_, nullptr, nullptr);
      if (peer < 0) return;
      std::string head;
      for (char c = 0; head.find("\r\n\r\n") == std::string::npos && ::recv(peer, &c, 1, 0) == 1;) head += c;
      if (reply == "hold") {
        held_.push_back(peer);
        continue;
      }
      ::send(peer, reply.data(), reply.size(), MSG_NOSIGNAL);
      ::close(peer);
    }
  }
  const std::vector<std::string> replies_;
  int socket_ = -1, port_ = 0;
  std::vector<int> held_;
  std::thread thread_;
};

// A stream's events and its end, waited for.
struct Stream {
  std::vector<std::string> events;
  std::vector<HttpClient::Clock::time_point> times;
  HttpAnswer answer;

  void send(HttpClient& client, HttpClient::Request request) {
    client.send(
        std::move(request),
        [this](std::string_view data, HttpClient::Clock::time_point arrived) {
          events.emplace_back(data), times.push_back(arrived);
        },
        [this](HttpAnswer got) {
          const std::lock_guard lock(mutex_);
          EXPECT_FALSE(ended_);
          answer = std::move(got), ended_ = true;
          changed_.notify_all();
        });
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
};

TEST(SseSplitter, EventsAreTheSameHoweverTheyAreCut) {
  const std::string text =
      ": a comment\n\ndata: one\n\nevent: x\r\nid: 7\r\ndata:two\r\ndata:  lines\r\n\r\ndata\n\ndata: \n\ndata: "
      "{\"a\": \"b\"}\n\n"
      "data: never ends\n";
  const std::vector<std::string> want = {"one", "two\n lines", "", "{\"a\": \"b\"}"};
  for (size_t first = 0; first <= text.size(); ++first)
    for (size_t second = first; second <= text.size(); ++second) {
      SseSplitter splitter;
      std::vector<std::string> got;
      const std::string_view whole = text;
      for (const std::string_view part :
           {whole.substr(0, first), whole.substr(first, second - first), whole.substr(second)})
        splitter.push(part, [&](std::string_view data) { got.emplace_back(data); });
      ASSERT_EQ(got, want) << first << " " << second;
      ASSERT_EQ(splitter.held(), std::string("never ends").size());
    }
}

class HttpClientTest : public testing::Test {
 protected:
  // Echoes; /events streams as many as the body says.
  HttpServer server_{HttpOptions{.port = 0}, [](const HttpRequest& request, HttpReply reply) {
                       if (request.path != "/base/events")
                         return reply.send(request.path == "/base/none" ? 404 : 200, "text/plain",
                                           request.method + " " + request.path + "|" +
                                               std::string(request.field("X-Name")) + "|" +
                                               std::string(request.field("Host")) + "|" + request.body);
                       reply.begin(200, "text/event-stream");
                       for (int i = 0; i < std::stoi(request.body); ++i)
                         reply.write("data: " + std::to_string(i) + "\n\n");
                       reply.end();
                     }};
  const std::string url_ = url_of(server_.port()) + "/base";
};

TEST_F(HttpClientTest, WholeRepliesByOneConnection) {
  HttpClient client(url_);
  for (int i = 0; i < 3; ++i) {
    const HttpAnswer answer = client.ask({.target = "/x", .body = "abc", .fields = {{"X-Name", "me"}}});
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.error, "");
    EXPECT_EQ(answer.body, "POST /base/x|me|127.0.0.1:" + std::to_string(server_.port()) + "|abc");
  }
  EXPECT_EQ(client.ask({.target = "/none", .method = "GET"}).status, 404);
  EXPECT_EQ(server_.connections(), 1);
  EXPECT_TRUE(post(url_ + "/p", "x").body.starts_with("POST /base/p|"));
}

TEST_F(HttpClientTest, ManyStreamsAtOnce) {
  HttpClient client(url_);
  std::vector<Stream> streams(50);
  for (size_t i = 0; i < streams.size(); ++i)
    streams[i].send(client, {.target = "/events", .body = std::to_string(3 * i)});
  for (size_t i = 0; i < streams.size(); ++i) {
    streams[i].wait();
    EXPECT_EQ(streams[i].answer.status, 200) << streams[i].answer.error;
    ASSERT_EQ(streams[i].events.size(), 3 * i);
    for (size_t k = 0; k < 3 * i; ++k) EXPECT_EQ(streams[i].events[k], std::to_string(k));
    EXPECT_TRUE(std::is_sorted(streams[i].times.begin(), streams[i].times.end()));
  }
}

TEST_F(HttpClientTest, WhatAnEventThrowsEndsItsRequestAlone) {
  HttpClient client(url_);
  std::promise<HttpAnswer> ended;
  client.send(
      {.target = "/events", .body = "3"},
      [](std::string_view, HttpClient::Clock::time_point) { throw std::runtime_error("no room"); },
      [&](HttpAnswer got) { ended.set_value(std::move(got)); });
  EXPECT_NE(ended.get_future().get().error.find("no room"), std::string::npos);
  EXPECT_EQ(client.ask({.target = "/x"}).status, 200);
}

TEST(HttpClient, AConnectionThatTheServerClosedIsReplaced) {
  const std::string reply = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
  const RawServer server({reply + "ab", reply + "cd"});
  HttpClient client(url_of(server.port()));
  EXPECT_EQ(client.ask({.target = "/"}).body, "ab");
  EXPECT_EQ(client.ask({.target = "/"}).body, "cd");
}

TEST(HttpClient, RepliesThatAreNotWholeAreErrors) {
  const std::string head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::vector<std::string> replies = {"", "nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
                                            head + "zz\r\nabc", head + "b\r\ndata: one\n\n\r\n"};
  const RawServer server(replies);
  HttpClient client(url_of(server.port()));
  for (const std::string& reply : replies) {
    Stream stream;
    stream.send(client, {.target = "/"});
    stream.wait();
    EXPECT_NE(stream.answer.error, "") << reply;
    EXPECT_EQ(stream.events.size(), reply == replies.back() ? 1u : 0u);
  }
}

TEST(HttpClient, NobodyThereIsAnError) {
  int port = 0;
  {
    const RawServer gone({});
    port = gone.port();
  }
  HttpClient client(url_of(port));
  const HttpAnswer answer = client.ask({.target = "/"});
  EXPECT_EQ(answer.status, 0);
  EXPECT_NE(answer.error.find("refused"), std::string::npos) << answer.error;
  EXPECT_NE(post("localhost:8000", "x").error.find("want http://"), std::string::npos);
  for (const char* bad : {"", "ftp://x", "http://", "http:///x", "http://a b"})
    EXPECT_THROW(HttpClient{bad}, Error) << bad;
}

TEST(HttpClient, WithoutFileDescriptorsIsAnError) {
#ifdef OCTET_SANITIZED
  GTEST_SKIP() << "checks of virtual tables ask by a pipe whether memory can be read";
#endif
  const int next = ::dup(STDERR_FILENO);
  ::close(next);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(next), .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  HttpAnswer answer;
  EXPECT_NO_THROW(answer = post("http://127.0.0.1:1", "x"));
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(answer.status, 0);
  EXPECT_NE(answer.error.find("Too many open files"), std::string::npos) << answer.error;
}

TEST(HttpClient, SilenceEndsByTheTimeoutOrTheClient) {
  const RawServer server({"hold", "hold"});
  HttpClient client(url_of(server.port()));
  const HttpAnswer answer = client.ask({.target = "/", .timeout_seconds = 0.05});
  EXPECT_EQ(answer.error, "no complete reply within 0.05 s");
  client.send({.target = "/"}, {}, [](const HttpAnswer&) { ADD_FAILURE() << "the client is gone"; });
}

TEST(HttpClient, ByTlsTheCertificateMustBeKnown) {
  const std::string folder = testing::TempDir() + "/octet_client_tls_" + std::to_string(::getpid());
  make_folders(folder);
  const HttpOptions options = write_certificate(folder, "a", 1);
  HttpServer server(options, [](const HttpRequest& request, HttpReply reply) {
    reply.send(200, "text/plain", request.secure ? "secure" : "plain");
  });
  const std::string port = std::to_string(server.port());
  EXPECT_NE(post("https://localhost:" + port, "x").error.find("certificate verify failed"), std::string::npos);
  ::setenv("SSL_CERT_FILE", options.certificate.c_str(), 1);  // what the system knows
  const HttpAnswer answer = post("https://localhost:" + port, "x");
  EXPECT_EQ(answer.body, "secure") << answer.error;
  EXPECT_NE(post("https://127.0.0.1:" + port, "x").error, "") << "the certificate has another name";
  ::unsetenv("SSL_CERT_FILE");
  remove_path(folder);
}

}  // namespace
}  // namespace octet::serve
