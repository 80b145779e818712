// The server over real sockets: what peers send, well and badly, and replies from other threads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "base/error.h"
#include "serve/http_reply.h"
#include "serve/testing/eventually.h"
#include "serve/testing/peer.h"

namespace octet::serve {
namespace {

// Echoes; /stream sends pieces from another thread, /hold keeps the reply, /drop loses it.
class HttpServerTest : public testing::Test {
 protected:
  void start(HttpOptions options = {}) {
    options.port = 0;
    server_ = std::make_unique<HttpServer>(
        options, [this](const HttpRequest& request, HttpReply reply) { handle(request, std::move(reply)); });
  }
  void TearDown() override {
    server_.reset();
    for (std::thread& thread : threads_) thread.join();
  }

  void handle(const HttpRequest& request, HttpReply reply) {
    if (request.path == "/stream") {
      threads_.emplace_back([reply]() mutable {
        reply.begin(200, "text/plain");
        for (int i = 0; i < 5; ++i) reply.write("piece " + std::to_string(i) + "\n");
        reply.end();
      });
    } else if (request.path == "/hold" || request.path == "/begun") {
      if (request.path == "/begun") reply.begin(200, "text/plain");
      reply.on_gone([this] {
        const std::lock_guard lock(mutex_);
        ++gone_;
        changed_.notify_all();
      });
      const std::lock_guard lock(mutex_);
      held_.push_back(reply);
      changed_.notify_all();
    } else if (request.path == "/cut") {
      reply.begin(200, "text/plain");
      reply.write("half of");
    } else if (request.path == "/peer" || request.path == "/host") {
      reply.send(200, "text/plain", request.path == "/peer" ? request.peer : std::string(request.field("Host")));
    } else if (request.path == "/fail") {
      fail(ErrorCode::kInternal, "a handler that throws");
    } else if (request.path != "/drop") {
      reply.send(200, "text/plain",
                 request.method + " " + request.path + "|" + request.query + "|" +
                     std::string(request.field("x-name")) + "|" + request.body,
                 {{"X-Echo", std::string(request.field("X-Echo"))}});
    }
  }
  HttpReply held(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_.size() >= count; });
    return held_.back();
  }
  void wait_gone(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return gone_ >= count; });
  }
  std::string ask(const std::string& bytes, std::string_view enough = "\xff") {
    return Peer(server_->port()).send(bytes).read(enough);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HttpReply> held_;
  int gone_ = 0;
  std::vector<std::thread> threads_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersWithWhatTheHandlerSees) {
  start();
  const std::string reply =
      ask("POST /a/b?c=d&e HTTP/1.1\r\nHost: x\r\nX-NAME: me\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody");
  EXPECT_TRUE(reply.starts_with("HTTP/1.1 200 OK\r\n")) << reply;
  EXPECT_NE(reply.find("\r\nConnection: close\r\n"), std::string::npos) << reply;
  EXPECT_TRUE(reply.ends_with("\r\n\r\nPOST /a/b|c=d&e|me|body")) << reply;
}

TEST_F(HttpServerTest, RequestsFollowEachOtherAndMayComeAhead) {
  start();
  Peer peer(server_->port());
  peer.send("GET /1 HTTP/1.1\r\n\r\nGET /stream HTTP/1.1\r\n\r\nPOST /3 HTTP/1.1\r\nContent-Length: 2\r\n\r\nab");
  const std::string text = peer.read("/3||");
  const size_t first = text.find("GET /1"), second = text.find("piece 4"), third = text.find("POST /3");
  EXPECT_TRUE(first < second && second < third && third != std::string::npos) << text;
  peer.reset();
  EXPECT_NE(peer.send("GET /4 HTTP/1.1\r\n\r\n").read("/4").find("GET /4"), std::string::npos);
  EXPECT_EQ(server_->connections(), 1);
}

TEST_F(HttpServerTest, ByteByByteIsTheSame) {
  start();
  Peer peer(server_->port());
  for (char c : std::string("POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"))
    peer.send(std::string_view(&c, 1));
  EXPECT_TRUE(peer.read("abcde").ends_with("|abcde"));
}

TEST_F(HttpServerTest, AChunkedBodyMayComeInAnyPieces) {
  start();
  for (const std::string body : {"0\r\n\r\n", "1\r\na\r\n0;x=y\r\nX-Behind: 1\r\n\r\n"})
    for (size_t cut = 1; cut < body.size(); ++cut) {
      Peer peer(server_->port());
      peer.send("POST /x HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + body.substr(0, cut));
      ask("GET /between HTTP/1.1\r\n\r\n", "/between");  // it has read that
      EXPECT_TRUE(peer.send(body.substr(cut)).read().starts_with("HTTP/1.1 200 ")) << cut;
    }
}

TEST_F(HttpServerTest, StreamsAreChunksOrEndWithTheConnection) {
  start();
  const std::string chunked = ask("GET /stream HTTP/1.1\r\n\r\n", "\r\n0\r\n\r\n");
  EXPECT_NE(chunked.find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_NE(chunked.find("8\r\npiece 0\n\r\n8\r\npiece 1\n\r\n"), std::string::npos) << chunked;
  const std::string old = ask("GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.find("chunked"), std::string::npos);
  EXPECT_TRUE(old.ends_with("\r\n\r\npiece 0\npiece 1\npiece 2\npiece 3\npiece 4\n")) << old;
}

TEST_F(HttpServerTest, TheAbsoluteFormIsAPathAndItsHost) {
  start();
  const std::string end = " HTTP/1.1\r\nHost: other\r\nX-Name: me\r\nConnection: close\r\n\r\n";
  EXPECT_TRUE(ask("GET http://me.example:80/a/b?c=d" + end).ends_with("\r\n\r\nGET /a/b|c=d|me|"));
  EXPECT_TRUE(ask("GET HTTPS://me.example?c" + end).ends_with("\r\n\r\nGET /|c|me|"));
  EXPECT_TRUE(ask("GET http://me.example/host" + end).ends_with("\r\n\r\nme.example"));
}

TEST_F(HttpServerTest, RepliesHaveADate) {
  start();
  const std::string reply = ask("GET /x HTTP/1.1\r\nConnection: close\r\n\r\n");
  const size_t at = reply.find("\r\nDate: ");
  ASSERT_NE(at, std::string::npos) << reply;
  std::tm time{};
  EXPECT_NE(::strptime(reply.c_str() + at + 8, "%a, %d %b %Y %H:%M:%S GMT\r\n", &time), nullptr) << reply;
  EXPECT_LT(std::abs(::timegm(&time) - std::time(nullptr)), 60);
}

TEST_F(HttpServerTest, ATrustedProxySaysWhoAsks) {
  start({.trusted_proxies = {"127.0.0.1"}});
  EXPECT_TRUE(
      ask("GET /peer HTTP/1.1\r\nX-Forwarded-For: 192.0.2.7\r\nConnection: close\r\n\r\n").ends_with("\n192.0.2.7"));
  start();
  EXPECT_NE(ask("GET /peer HTTP/1.1\r\nX-Forwarded-For: 192.0.2.7\r\nConnection: close\r\n\r\n").find("\n127.0.0.1:"),
            std::string::npos);
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  start();
  EXPECT_TRUE(ask("HEAD /x HTTP/1.1\r\nConnection: close\r\n\r\n").ends_with("\r\n\r\n"));
}

TEST_F(HttpServerTest, ALineEndInAValueBeginsNoField) {
  start();
  threads_.emplace_back([this] { held(1).send(200, "text/plain", "", {{"X-Id", "a\r\nX-Evil: 1"}}); });
  EXPECT_NE(ask("GET /hold HTTP/1.1\r\n\r\n", "\r\n\r\n").find("X-Id: aX-Evil: 1\r\n"), std::string::npos);
  held_.clear();
}

TEST_F(HttpServerTest, LongBodiesAreAskedFor) {
  start();
  Peer peer(server_->port());
  peer.send("PUT /x HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(peer.read("\r\n\r\n").starts_with("HTTP/1.1 100 Continue\r\n\r\n"));
  EXPECT_TRUE(peer.send("abc").read("|abc").ends_with("|abc"));
}

TEST_F(HttpServerTest, WhatIsNoRequestIsRefusedAndClosed) {
  start({.max_head_bytes = 1000, .max_body_bytes = 5000, .head_seconds = 0.2, .body_seconds = 0.2});
  const std::map<std::string, int> cases = {
      {"rubbish\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nA B: c\r\n\r\n", 400},
      {std::string("GET / HTTP/1.1\r\nA: \0\r\n\r\n", 24), 400},
      {"GET / HTTP/1.1\r\nX: " + std::string(2000, 'a') + "\r\n\r\n", 431},
      {"GET /" + std::string(300'000, 'a'), 431},
      {"POST / HTTP/1.1\r\nContent-Length: 5001\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc", 400},
      {"POST / HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n", 413},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: slow", 408},
      {"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nslow", 408},
  };
  for (const auto& [bytes, status] : cases)
    EXPECT_TRUE(ask(bytes).starts_with("HTTP/1.1 " + std::to_string(status) + " "))
        << bytes.substr(0, 100) << " gives " << ask(bytes).substr(0, 300);
  EXPECT_TRUE(Peer(server_->port())
                  .send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n1")
                  .half_close()
                  .read()
                  .starts_with("HTTP/1.1 400 "));
  EXPECT_TRUE(Peer(server_->port()).read().starts_with("HTTP/1.1 408 "));  // nothing at all
  EXPECT_NE(ask("GET /alive HTTP/1.1\r\n\r\n", "/alive").find("200 OK"), std::string::npos);
}

TEST_F(HttpServerTest, ALostReplyIsAnErrorAndACutStreamIsNoWholeOne) {
  start();
  EXPECT_TRUE(ask("GET /drop HTTP/1.1\r\n\r\n", "dropped").starts_with("HTTP/1.1 500 "));
  EXPECT_TRUE(ask("GET /fail HTTP/1.1\r\n\r\n", "dropped").starts_with("HTTP/1.1 500 "));
  EXPECT_TRUE(ask("GET /cut HTTP/1.1\r\n\r\n").ends_with("half of\r\n"));  // no last chunk
}

TEST_F(HttpServerTest, WhoeverWaitsHearsOfAPeerThatIsGone) {
  start();
  {
    Peer peer(server_->port());
    peer.send("GET /hold HTTP/1.1\r\n\r\n"), held(1);
  }
  wait_gone(1);
  {
    Peer peer(server_->port());
    peer.send("GET /begun HTTP/1.1\r\n\r\n").read("\r\n\r\n");
  }
  wait_gone(2);
  EXPECT_TRUE(held(2).gone());
  held(2).write("nobody reads this");
  // A half-closed connection is one that is gone, and may be told so.
  Peer half(server_->port());
  half.send("GET /hold HTTP/1.1\r\n\r\n").half_close();
  EXPECT_TRUE(half.read().starts_with("HTTP/1.1 499 "));
  wait_gone(3);
  EXPECT_TRUE(server_->wait_idle(10));
}

TEST_F(HttpServerTest, APeerThatDoesNotReadIsCutOff) {
  start({.max_unread_bytes = 100'000});
  Peer peer(server_->port());
  peer.send("GET /begun HTTP/1.1\r\n\r\n");
  HttpReply reply = held(1);
  const std::string piece(50'000, 'x');
  for (int i = 0; i < 2000 && !reply.gone(); ++i) reply.write(piece);  // sockets hold some megabytes
  wait_gone(1);
  EXPECT_TRUE(reply.gone());
}

TEST_F(HttpServerTest, DrainingEndsIdleConnectionsAndWaitsForReplies) {
  start();
  Peer idle(server_->port()), busy(server_->port());
  idle.send("GET /1 HTTP/1.1\r\n\r\n").read("/1");
  busy.send("GET /begun HTTP/1.1\r\n\r\n").read("\r\n\r\n");
  HttpReply reply = held(1);
  server_->drain();
  EXPECT_TRUE(idle.ends());
  EXPECT_FALSE(server_->wait_idle(0.02));
  reply.write("the rest");
  reply.end();
  EXPECT_NE(busy.read().find("the rest\r\n0\r\n\r\n"), std::string::npos);
  EXPECT_TRUE(server_->wait_idle(10));
  EXPECT_FALSE(Peer(server_->port()).connected());
}

TEST_F(HttpServerTest, EndsAtOnceWhileAPeerHasSentMoreThanIsRead) {
  start({.idle_seconds = 20});
  Peer ahead(server_->port());
  ahead.send("GET /hold HTTP/1.1\r\n\r\n" + std::string(200'000, 'x'));
  held(1);
  for (int i = 0; i < 100; ++i) ask("GET /between HTTP/1.1\r\n\r\n", "/between");  // it has read what it takes
  const auto begin = std::chrono::steady_clock::now();
  server_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

// What wake() uses ends with the server, other threads' handles may not.
TEST(HttpReplyState, NoWakeIsUnderWayOncePeersAreGone) {
  std::future<void> gone;
  bool early = false;
  HttpReply::State state({}, [&] {
    gone = std::async(std::launch::async, [&] { state.set_gone(); });
    early = gone.wait_for(std::chrono::milliseconds(50)) == std::future_status::ready;
  });
  state.send(200, "text/plain", "x", {});
  gone.wait();
  EXPECT_FALSE(early);
}

TEST_F(HttpServerTest, BodiesThatWaitAreBounded) {
  start({.max_waiting_bytes = 100'000});
  const std::string head = "POST /x HTTP/1.1\r\nConnection: close\r\nContent-Length: ", body(60'000, ' ');
  Peer slow(server_->port());
  slow.send(head + "90000\r\n\r\n" + body);
  ASSERT_TRUE(eventually([&] { return ask(head + "60000\r\n\r\n" + body).starts_with("HTTP/1.1 503 "); }));
  EXPECT_NE(ask("GET /alive HTTP/1.1\r\n\r\n", "/alive").find("200 OK"), std::string::npos);
  slow.send(std::string(30'000, ' '));
  EXPECT_TRUE(slow.read().starts_with("HTTP/1.1 200 "));
}

// What has been sent before the drain is answered, though nobody has accepted its connection yet.
TEST_F(HttpServerTest, DrainingServesWhatHasCome) {
  start();
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < 50; ++i) {
    peers.push_back(std::make_unique<Peer>(server_->port()));
    peers.back()->send("GET /early HTTP/1.1\r\n\r\n");
  }
  server_->drain();
  EXPECT_TRUE(server_->wait_idle(10));
  for (const auto& peer : peers) EXPECT_EQ(peer->read().substr(0, 13), "HTTP/1.1 200 ");
}

TEST_F(HttpServerTest, TooManyConnectionsAreToldSo) {
  start({.max_connections = 1});
  Peer first(server_->port());
  first.send("GET /1 HTTP/1.1\r\n\r\n").read("/1");
  EXPECT_TRUE(Peer(server_->port()).read().starts_with("HTTP/1.1 503 "));
}

TEST_F(HttpServerTest, ServesAUnixSocket) {
  const std::string path = testing::TempDir() + "/octet_http_" + std::to_string(::getpid());
  start({.unix_socket = path});
  EXPECT_NE(Peer(path).send("GET /u HTTP/1.1\r\n\r\n").read("/u").find("200 OK"), std::string::npos);
  try {
    HttpServer second({.unix_socket = path}, [](const HttpRequest&, const HttpReply&) {});
    FAIL() << "two servers at one path";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("another process listens there"), std::string::npos) << error.message();
  }
  server_.reset();
  EXPECT_FALSE(Peer(path).connected());
}

TEST_F(HttpServerTest, AnAddressThatIsTakenIsNamed) {
  start();
  try {
    HttpServer second({.port = server_->port()}, [](const HttpRequest&, const HttpReply&) {});
    FAIL() << "two servers at one port";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("127.0.0.1 port " + std::to_string(server_->port())), std::string::npos);
  }
}

// Requests with a part replaced, lost or doubled never give 5xx, and never end the server.
TEST_F(HttpServerTest, MutatedRequestsAreAnsweredOrRefused) {
  start({.max_head_bytes = 2000, .max_body_bytes = 2000, .head_seconds = 0.05, .body_seconds = 0.05});
  const std::string whole =
      "POST /x?y=z HTTP/1.1\r\nHost: localhost\r\nX-Name: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  std::mt19937_64 random(1);
  const auto draw = [&](size_t below) { return static_cast<size_t>(random() % below); };
  for (int i = 0; i < 300; ++i) {
    std::string bytes = whole;
    for (size_t changes = 1 + draw(3); changes > 0; --changes) {
      const size_t at = draw(bytes.size());
      switch (draw(3)) {
        case 0: bytes[at] = static_cast<char>(draw(256)); break;
        case 1: bytes.erase(at, 1 + draw(8)); break;
        default: bytes.insert(at, bytes.substr(draw(bytes.size()), 1 + draw(20)));
      }
      if (bytes.empty()) bytes = "\n";
    }
    const std::string reply = Peer(server_->port()).send(bytes).half_close().read();
    if (reply.empty()) continue;  // nothing but white space was sent
    EXPECT_TRUE(reply.starts_with("HTTP/1.1 2") || reply.starts_with("HTTP/1.1 4")) << bytes << "\ngives\n" << reply;
  }
  EXPECT_TRUE(server_->wait_idle(10));
}

}  // namespace
}  // namespace octet::serve
