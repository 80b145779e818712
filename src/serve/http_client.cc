#include "serve/http_client.h"

#include <fmt/format.h>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include <exception>
#include <future>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace octet::serve {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using Tls = asio::ssl::stream<tcp::socket&>;
constexpr size_t kMaxBytes = 256 << 20;  // of a body, or of one event

struct Url {
  bool secure = false;
  std::string authority, host, port, path;
};

Url parse_url(const std::string& text) {
  Url url{.secure = text.starts_with("https://")};
  const size_t begin = url.secure ? 8 : 7, slash = std::min(text.find('/', begin), text.size());
  check(
      (url.secure || text.starts_with("http://")) && slash > begin && text.find_first_of(" \r\n") == std::string::npos,
      ErrorCode::kInvalidArgument, "'{}' is not the URL of a server: want http://HOST:PORT or https://HOST", text);
  const std::string& authority = url.authority = text.substr(begin, slash - begin);
  const size_t colon = authority.find(':', authority.starts_with('[') ? authority.find(']') : 0);
  url.host = authority.substr(0, colon);
  url.port = colon < authority.size() ? authority.substr(colon + 1) : url.secure ? "443" : "80";
  if (url.host.starts_with('[') && url.host.ends_with(']')) url.host = url.host.substr(1, url.host.size() - 2);
  url.path = text.substr(slash, text.ends_with('/') ? text.size() - 1 - slash : std::string::npos);
  return url;
}

// A body that is given away as it comes; false: it is too long.
struct Sink {
  using value_type = std::function<bool(std::string_view)>;
  class reader {
   public:
    template <bool kRequest, class Fields>
    reader(http::header<kRequest, Fields>&, value_type& sink) : sink_(sink) {}
    void init(const boost::optional<uint64_t>&, error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      size_t count = 0;
      for (const asio::const_buffer buffer : boost::beast::buffers_range_ref(buffers)) {
        if (!sink_({static_cast<const char*>(buffer.data()), buffer.size()})) error = http::error::body_limit;
        count += buffer.size();
      }
      return count;
    }
    void finish(error_code& error) { error = {}; }

   private:
    value_type& sink_;
  };
};

struct Connection {
  explicit Connection(asio::io_context& io) : socket(io) {}
  tcp::socket socket;
  std::optional<Tls> tls;
  boost::beast::flat_buffer buffer;
};

struct Call {
  explicit Call(asio::io_context& io) : timer(io) {}
  http::request<http::string_body> request;
  HttpClient::OnEvent on_event;
  HttpClient::OnEnd on_end;
  HttpAnswer answer;
  asio::steady_timer timer;
  double timeout = 0;
  tcp::socket* socket = nullptr;
  bool late = false;
};

template <class Stream>
asio::awaitable<bool> exchange(Stream& stream, boost::beast::flat_buffer& buffer, Call& call) {
  co_await http::async_write(stream, call.request, asio::use_awaitable);
  http::response_parser<Sink> parser;
  parser.body_limit(boost::none);
  SseSplitter splitter;
  std::optional<bool> events;
  const auto take = [&](std::string_view bytes) {
    if (!events) events = parser.get()[http::field::content_type].starts_with("text/event-stream");
    call.answer.status = parser.get().result_int();
    if (*events && call.on_event) {
      const auto arrived = HttpClient::Clock::now();
      splitter.push(bytes, [&](std::string_view data) { call.on_event(data, arrived); });
    } else {
      call.answer.body.append(bytes);
    }
    return splitter.held() <= kMaxBytes && call.answer.body.size() <= kMaxBytes;
  };
  std::exception_ptr thrown;  // must not pass through what Beast runs outside of this coroutine
  parser.get().body() = [&](std::string_view bytes) {
    try {
      return take(bytes);
    } catch (...) {
      thrown = std::current_exception();
      return false;
    }
  };
  error_code error;
  co_await http::async_read(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
  if (thrown) std::rethrow_exception(thrown);
  if (error) throw boost::system::system_error(error);
  call.answer.status = parser.get().result_int();
  co_return parser.keep_alive();
}

}  // namespace

void SseSplitter::push(std::string_view bytes, const std::function<void(std::string_view data)>& on_data) {
  for (size_t end; (end = bytes.find('\n')) != std::string_view::npos; bytes.remove_prefix(end + 1)) {
    std::string_view line = bytes.substr(0, end);
    if (!line_.empty()) line = line_.append(line);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("data:")) {
      line.remove_prefix(line.starts_with("data: ") ? 6 : 5);
      if (std::exchange(has_data_, true)) data_ += '\n';
      data_ += line;
    } else if (line.empty() && std::exchange(has_data_, false)) {
      on_data(data_);
      data_.clear();
    }
    line_.clear();
  }
  line_ += bytes;
}

struct HttpClient::Impl {
  explicit Impl(const std::string& text) : url(parse_url(text)) {
    error_code error;
    tcp::resolver resolver(io);
    endpoints = resolver.resolve(url.host, url.port, error);
    check(!error, ErrorCode::kIo, "{}: cannot resolve '{}' port {}: {}", text, url.host, url.port, error.message());
    if (url.secure) tls.set_default_verify_paths();
    tls.set_verify_mode(asio::ssl::verify_peer);
    thread = std::thread([this] { io.run(); });
  }
  ~Impl() {
    io.stop();
    thread.join();
  }

  asio::awaitable<std::unique_ptr<Connection>> connect(Call& call) {
    auto connection = std::make_unique<Connection>(io);
    call.socket = &connection->socket;
    co_await asio::async_connect(connection->socket, endpoints, asio::use_awaitable);
    connection->socket.set_option(tcp::no_delay(true));
    if (url.secure) {
      Tls& stream = connection->tls.emplace(connection->socket, tls);
      SSL_set_tlsext_host_name(stream.native_handle(), url.host.c_str());
      stream.set_verify_callback(asio::ssl::host_name_verification(url.host));
      co_await stream.async_handshake(asio::ssl::stream_base::client, asio::use_awaitable);
    }
    co_return connection;
  }

  asio::awaitable<void> run(std::shared_ptr<Call> call) {
    for (bool again = true; again;) {
      again = false;
      std::unique_ptr<Connection> connection;
      const bool kept = !idle.empty();
      if (kept) connection = std::move(idle.back()), idle.pop_back();
      try {
        if (!kept) connection = co_await connect(*call);
        call->socket = &connection->socket;
        const bool keeps = connection->tls ? co_await exchange(*connection->tls, connection->buffer, *call)
                                           : co_await exchange(connection->socket, connection->buffer, *call);
        if (keeps) idle.push_back(std::move(connection));
      } catch (const std::exception& failure) {
        const auto* network = dynamic_cast<const boost::system::system_error*>(&failure);
        // The server may have closed a kept connection meanwhile: once more, by another one.
        again = network != nullptr && kept && call->answer.status == 0 && !call->late;
        const std::string why = network != nullptr ? network->code().message() : failure.what();
        call->answer.error = call->late ? fmt::format("no complete reply within {} s", call->timeout)
                                        : fmt::format("{}: {}", url.authority, why);
      }
      call->socket = nullptr;
      if (again) call->answer = {};
    }
    call->timer.cancel();
    call->on_end(std::move(call->answer));
  }

  void start_timer(const std::shared_ptr<Call>& call) {
    call->timer.expires_after(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(call->timeout)));
    call->timer.async_wait([weak = std::weak_ptr<Call>(call)](const error_code& error) {
      const auto late = weak.lock();
      if (error || !late) return;
      late->late = true;
      error_code ignored;
      if (late->socket != nullptr) late->socket->close(ignored);
    });
  }

  const Url url;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
  asio::ssl::context tls{asio::ssl::context::tls_client};
  tcp::resolver::results_type endpoints;
  std::vector<std::unique_ptr<Connection>> idle;
  std::thread thread;
};

HttpClient::HttpClient(const std::string& url) : impl_(std::make_unique<Impl>(url)) {}
HttpClient::~HttpClient() = default;

void HttpClient::send(Request request, OnEvent on_event, OnEnd on_end) {
  auto call = std::make_shared<Call>(impl_->io);
  const Url& url = impl_->url;
  auto& message = call->request;
  message.version(11);
  message.method_string(request.method);
  const std::string target = url.path + request.target;
  message.target(target.empty() ? "/" : target);
  message.set(http::field::host, url.authority);
  if (!request.body.empty()) message.set(http::field::content_type, "application/json");
  for (const HttpField& field : request.fields) message.set(field.name, field.value);
  message.body() = std::move(request.body);
  message.prepare_payload();
  call->on_event = std::move(on_event), call->on_end = std::move(on_end);
  call->timeout = request.timeout_seconds;
  asio::post(impl_->io, [impl = impl_.get(), call] {
    if (call->timeout > 0) impl->start_timer(call);
    asio::co_spawn(impl->io, impl->run(call), asio::detached);
  });
}

HttpAnswer HttpClient::ask(Request request) {
  std::promise<HttpAnswer> answer;
  send(std::move(request), {}, [&](HttpAnswer got) { answer.set_value(std::move(got)); });
  return answer.get_future().get();
}

HttpAnswer post(const std::string& url, const std::string& body, const HttpFields& fields, double timeout_seconds) {
  try {
    return HttpClient(url).ask({.target = "", .body = body, .fields = fields, .timeout_seconds = timeout_seconds});
  } catch (const std::exception& error) {  // Asio's too, for want of file descriptors
    return {.error = error.what()};
  }
}

}  // namespace octet::serve
