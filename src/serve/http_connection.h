// One connection: a coroutine that reads what comes, and one that parses requests and writes replies. All in the
// server's thread. Boost.Asio and Boost.Beast are included here and in http_server.cc alone.
#pragma once

#include <fmt/format.h>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http.hpp>

#include <atomic>
#include <chrono>
#include <deque>
#include <optional>

#include "base/log.h"
#include "serve/http_reply.h"
#include "serve/trusted_proxies.h"

namespace octet::serve {

namespace asio = boost::asio;
using Socket = asio::generic::stream_protocol::socket;
using TlsStream = asio::ssl::stream<Socket>;

// Who reads a block of a body next, one at a time: between two blocks all else that is ready in the server's thread
// runs, so that no number of large bodies holds up a probe. In that thread alone.
class BodyTurns {
 public:
  asio::awaitable<void> next() {
    const auto executor = co_await asio::this_coro::executor;
    asio::steady_timer turn(executor, asio::steady_timer::time_point::max());
    waiting_.push_back(&turn);
    if (waiting_.size() == 1) give(executor);
    boost::system::error_code woken;
    co_await turn.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }

 private:
  void give(const asio::any_io_executor& executor) {
    asio::post(executor, [this, executor] {
      waiting_.front()->cancel();
      waiting_.pop_front();
      if (!waiting_.empty()) give(executor);
    });
  }
  std::deque<asio::steady_timer*> waiting_;
};

// What connections share.
struct HttpShared {
  HttpOptions options;
  HttpHandler handler;
  bool draining = false;
  TrustedProxies proxies;
  BodyTurns body_turns;
  std::atomic<int64_t> running = 0;
  std::atomic<int64_t> body_bytes = 0;  // of requests that come or wait to be read
};

// An amount that is part of a count while this lives.
class Counted {
 public:
  Counted(std::shared_ptr<HttpShared> shared, std::atomic<int64_t>& count, int64_t amount = 0)
      : shared_(std::move(shared)), count_(count) {
    set(amount);
  }
  Counted(const Counted&) = delete;
  ~Counted() { set(0); }
  int64_t amount() const { return amount_; }
  void set(int64_t amount) { count_ += amount - std::exchange(amount_, amount); }

 private:
  const std::shared_ptr<HttpShared> shared_;
  std::atomic<int64_t>& count_;
  int64_t amount_ = 0;
};

class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  virtual void start() = 0;
  virtual void close() = 0;            // now
  virtual void close_when_idle() = 0;  // behind the reply that runs
};

template <class Stream>
class StreamConnection final : public HttpConnection, public std::enable_shared_from_this<StreamConnection<Stream>> {
 public:
  static constexpr bool kTls = std::is_same_v<Stream, TlsStream>;

  StreamConnection(Stream stream, std::string peer, std::shared_ptr<HttpShared> shared, std::shared_ptr<void> place)
      : stream_(std::move(stream)),
        signal_(stream_.get_executor()),
        write_limit_(stream_.get_executor()),
        peer_(std::move(peer)),
        shared_(std::move(shared)),
        place_(std::move(place)) {}

  void start() override {
    const auto ended = [self = this->shared_from_this()](const std::exception_ptr&) { self->close(); };
    asio::co_spawn(
        stream_.get_executor(), [self = this->shared_from_this()] { return self->serve(); }, ended);
  }

  void close() override {
    closed_ = true;
    boost::system::error_code ignored;
    socket().close(ignored);
    signal_.cancel();
    write_limit_.cancel();
    if (room_ != nullptr) room_->cancel();
    if (reply_) reply_->set_gone();
  }

  void close_when_idle() override {
    last_ = true;
    Error ignored;
    if (running_ || reply_) return;
    // What has come and is not read yet is a request that a peer has sent in time.
    if (input_.empty() && socket().available(ignored) == 0) return close();
    running_.emplace(shared_, shared_->running, 1);
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Error = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  static Clock::time_point in(double seconds) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  Socket& socket() {
    if constexpr (kTls) {
      return stream_.next_layer();
    } else {
      return stream_;
    }
  }

  // Until something has happened; false: not by then.
  asio::awaitable<bool> wait(Clock::time_point until) {
    Error woken;
    signal_.expires_at(until);
    co_await signal_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
    co_return woken == asio::error::operation_aborted || closed_;
  }

  asio::awaitable<void> read_all() {
    std::vector<char> block;
    while (!closed_) {
      // As much as one request, which its parser takes at once, and a little of the next.
      if (input_.size() >= kReadAhead) {
        asio::steady_timer timer(stream_.get_executor(), in(shared_->options.idle_seconds));
        Error ignored;
        room_ = &timer;
        co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
        room_ = nullptr;
        continue;
      }
      if (wants_body_) co_await shared_->body_turns.next();
      block.resize(wants_body_ ? kBodyBlock : kBlock);
      Error error;
      const size_t count =
          co_await stream_.async_read_some(asio::buffer(block), asio::redirect_error(asio::use_awaitable, error));
      if (error) {
        input_ended_ = true;
        signal_.cancel();
        if (reply_) reply_->set_gone();
        co_return;
      }
      input_.append(block.data(), count);
      signal_.cancel();
    }
  }

  void consume(size_t count) {
    input_.erase(0, count);
    if (room_ != nullptr && input_.size() < kReadAhead) room_->cancel();
  }

  asio::awaitable<bool> write(std::string_view bytes) {
    while (!bytes.empty() && !closed_) {
      const std::string_view piece = bytes.substr(0, kWriteBlock);
      write_limit_.expires_at(in(shared_->options.idle_seconds));
      write_limit_.async_wait([weak = this->weak_from_this()](const Error& error) {
        if (const auto self = weak.lock(); self && !error) self->close();
      });
      Error error;
      co_await asio::async_write(stream_, asio::buffer(piece), asio::redirect_error(asio::use_awaitable, error));
      write_limit_.cancel();
      if (error) co_return false;
      bytes.remove_prefix(piece.size());
      if (reply_) reply_->sent(piece.size());
    }
    co_return !closed_;
  }

  // A reply to what is no request that a handler could see; the connection ends behind it.
  asio::awaitable<void> refuse(int status, std::string_view why) {
    HttpReply::State refusal({.keeps = false}, [] {});
    refusal.send(status, "application/json",
                 fmt::format(R"({{"error":{{"message":"{}","type":"invalid_request_error","code":{}}}}})", why, status),
                 status == 503 ? HttpFields{{"Retry-After", "1"}} : HttpFields{});
    const std::string bytes = refusal.take().bytes;
    if (!reply_ && shared_->options.refused)
      shared_->options.refused(peer_, {.status = status, .bytes = static_cast<int64_t>(bytes.size())});
    co_await write(bytes);
  }

  // Another coding than chunked, or one of several, would have its body taken for the next request.
  static bool known_coding(const Parser::value_type& message) {
    const auto [first, end] = message.equal_range(boost::beast::http::field::transfer_encoding);
    if (first == end) return true;
    return message.version() >= 11 && std::next(first) == end && boost::beast::iequals(first->value(), "chunked");
  }

  // The absolute form, "http://host/path", becomes a path; its host is the one that counts (RFC 9112, 3.2.2).
  static void take_authority(std::string& target, Parser::value_type& message) {
    for (const std::string_view scheme : {"http://", "https://"}) {
      if (!boost::beast::iequals(std::string_view(target).substr(0, scheme.size()), scheme)) continue;
      target.erase(0, scheme.size());
      const size_t end = std::min(target.find_first_of("/?"), target.size());
      message.set(boost::beast::http::field::host, target.substr(0, end));
      target.erase(0, end);
      if (!target.starts_with('/')) target.insert(0, "/");
      return;
    }
  }

  // The next request; none: the connection is to be closed.
  asio::awaitable<std::optional<HttpRequest>> read_request(bool first) {
    namespace http = boost::beast::http;
    const HttpOptions& options = shared_->options;
    Parser parser;
    parser.eager(true);
    parser.header_limit(static_cast<uint32_t>(options.max_head_bytes));
    parser.body_limit(static_cast<uint64_t>(options.max_body_bytes));
    auto deadline = in(first ? options.head_seconds : options.idle_seconds);
    bool began = first, continued = false;
    auto body = std::make_shared<Counted>(shared_, shared_->body_bytes);
    while (!parser.is_done()) {
      // Beast's parser does not bear fewer bytes behind a last chunk's size; so many are left of any chunked body.
      const size_t least = parser.is_header_done() && parser.chunked() ? 5 : 1;
      if (input_.size() >= least) {
        if (!began) deadline = in(options.head_seconds), began = true;
        if (!running_) running_.emplace(shared_, shared_->running, 1);
        Error error;
        const bool had_head = parser.is_header_done();
        const size_t taken = parser.put(asio::buffer(input_), error);
        consume(taken);
        if (error == http::error::need_more) error = {};
        if (error) {
          const bool head = error == http::error::header_limit, whole = error == http::error::body_limit;
          const std::string why = head    ? fmt::format("the head is longer than {} bytes", options.max_head_bytes)
                                  : whole ? fmt::format("the body is longer than {} bytes", options.max_body_bytes)
                                          : fmt::format("not a request of HTTP/1.1: {}", error.message());
          co_await refuse(head ? 431 : whole ? 413 : 400, why);
          co_return std::nullopt;
        }
        if (parser.is_header_done() && !had_head && !known_coding(parser.get())) {
          co_await refuse(400, "Transfer-Encoding: want chunked, or a Content-Length");
          co_return std::nullopt;
        }
        body->set(static_cast<int64_t>(parser.get().body().size()));
        if (body->amount() > 0 && shared_->body_bytes > options.max_waiting_bytes) {
          co_await refuse(503, "the bodies of other requests take all the memory for request bodies");
          co_return std::nullopt;
        }
        if (parser.is_done()) break;
        if (parser.is_header_done() && !had_head) {
          deadline = in(options.body_seconds), wants_body_ = true;
          if (!continued && boost::beast::iequals(parser.get()[http::field::expect], "100-continue")) {
            continued = true;
            if (!co_await write("HTTP/1.1 100 Continue\r\n\r\n")) co_return std::nullopt;
          }
        }
        if (taken > 0) continue;
        if (input_.size() >= kReadAhead) {  // a head that the parser cannot take
          co_await refuse(431, fmt::format("the head is longer than {} bytes", options.max_head_bytes));
          co_return std::nullopt;
        }
      }
      if (input_ended_) {
        if (began && (parser.got_some() || !input_.empty())) co_await refuse(400, "the request ends too early");
        co_return std::nullopt;
      }
      if (!co_await wait(deadline)) {
        if (began && !closed_) co_await refuse(408, "the request did not arrive in time");
        co_return std::nullopt;
      }
      if (closed_) co_return std::nullopt;
    }
    wants_body_ = false;
    auto message = parser.release();
    HttpRequest request{.method = std::string(message.method_string()), .secure = kTls};
    std::string target(message.target());
    take_authority(target, message);
    request.path = target.substr(0, target.find('?'));
    if (request.path.size() < target.size()) request.query = target.substr(request.path.size() + 1);
    for (const auto& field : message)
      request.fields.push_back({std::string(field.name_string()), std::string(field.value())});
    request.peer = shared_->proxies.client(peer_, request.fields);
    request.body = std::move(message.body());
    request.counted = std::move(body);
    chunked_ = message.version() >= 11;
    keeps_ = message.keep_alive();
    co_return request;
  }

  asio::awaitable<void> serve() {
    if constexpr (kTls) {
      Error error;
      write_limit_.expires_at(in(shared_->options.head_seconds));
      write_limit_.async_wait([weak = this->weak_from_this()](const Error& late) {
        if (const auto self = weak.lock(); self && !late) self->close();
      });
      co_await stream_.async_handshake(asio::ssl::stream_base::server,
                                       asio::redirect_error(asio::use_awaitable, error));
      write_limit_.cancel();
      if (error) co_return close();
    }
    asio::co_spawn(
        stream_.get_executor(), [self = this->shared_from_this()] { return self->read_all(); }, asio::detached);
    for (bool first = true; !closed_; first = false) {
      std::optional<HttpRequest> request = co_await read_request(first);
      if (!request) break;
      const bool more = co_await answer(std::move(*request));
      running_.reset();
      if (!more) break;
      if (last_ || shared_->draining || input_ended_) break;
    }
    running_.reset();
    co_await end();
  }

  asio::awaitable<bool> answer(HttpRequest request) {
    const bool keeps = keeps_ && !last_ && !shared_->draining;
    const auto wake = [executor = stream_.get_executor(), weak = this->weak_from_this()] {
      asio::post(executor, [weak] {
        const auto self = weak.lock();
        if (!self) return;
        self->signal_.cancel();
        if (self->reply_ && self->reply_->too_slow()) self->close();
      });
    };
    reply_ = std::make_shared<HttpReply::State>(HttpReply::State::Kind{.head = request.method == "HEAD",
                                                                       .chunked = chunked_,
                                                                       .keeps = keeps && chunked_,
                                                                       .most = shared_->options.max_unread_bytes},
                                                wake);
    {
      HttpReply reply(reply_);
      try {
        shared_->handler(std::move(request), reply);
      } catch (const std::exception& error) {
        log_warning("a handler of {} failed: {}", peer_, error.what());
      }
    }
    bool whole = false;
    while (!closed_) {
      const HttpReply::State::Taken taken = reply_->take();
      if (!taken.bytes.empty() && !co_await write(taken.bytes)) break;
      if (taken.ended) {
        whole = !taken.broken;
        break;
      }
      if (input_ended_) {
        if (!reply_->begun()) co_await refuse(499, "the connection was closed before the reply; keep it open");
        break;
      }
      if (taken.bytes.empty()) co_await wait(Clock::time_point::max());
    }
    reply_->set_gone();
    reply_->tell_outcome();
    reply_ = nullptr;
    co_return whole&& keeps&& chunked_;
  }

  // What the peer still sends is read for a moment: a reset would take the reply from it.
  asio::awaitable<void> end() {
    if (!closed_) {
      Error ignored;
      last_ = true;
      socket().shutdown(Socket::shutdown_send, ignored);
      const auto until = in(kLinger);
      while (!closed_ && !input_ended_ && Clock::now() < until) {
        consume(input_.size());
        if (!co_await wait(until)) break;
      }
    }
    close();
  }

  static constexpr size_t kBlock = 2 << 10, kBodyBlock = 16 << 10, kReadAhead = 128 << 10, kWriteBlock = 64 << 10;
  static constexpr double kLinger = 1;

  Stream stream_;
  asio::steady_timer signal_;           // what serve() waits for
  asio::steady_timer write_limit_;      // a write's time
  asio::steady_timer* room_ = nullptr;  // of read_all(), while there is too much input
  const std::string peer_;
  const std::shared_ptr<HttpShared> shared_;
  const std::shared_ptr<void> place_;  // among the server's connections
  std::string input_;
  std::optional<Counted> running_;  // from a request's first byte to the end of its reply
  std::shared_ptr<HttpReply::State> reply_;
  bool closed_ = false, input_ended_ = false, last_ = false, wants_body_ = false;
  bool chunked_ = true, keeps_ = true;  // of the last request
};

}  // namespace octet::serve
