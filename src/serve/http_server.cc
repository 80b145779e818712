#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstring>
#include <future>
#include <list>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "serve/http_connection.h"

namespace boost {
// Strangers' bytes are in Beast's hands: what it did not expect ends their connection.
void assertion_failed(const char* condition, const char*, const char* file, long line) {
  octet::fail(octet::ErrorCode::kInternal, "{} line {}: {} does not hold", file, line, condition);
}
void assertion_failed_msg(const char* condition, const char*, const char*, const char* file, long line) {
  assertion_failed(condition, nullptr, file, line);
}
}  // namespace boost

namespace octet::serve {

using asio::ip::tcp;
using Local = asio::local::stream_protocol;
using Error = boost::system::error_code;

namespace {

std::string peer_name(const Socket& socket) {
  Error error;
  const auto remote = socket.remote_endpoint(error);
  if (error || remote.protocol().family() == AF_UNIX) return "unix";
  tcp::endpoint endpoint;
  endpoint.resize(remote.size());
  std::memcpy(endpoint.data(), remote.data(), remote.size());
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", address, endpoint.port())
                                    : fmt::format("{}:{}", address, endpoint.port());
}

std::shared_ptr<asio::ssl::context> read_certificate(const HttpOptions& options) {
  if (options.certificate.empty()) return nullptr;
  auto tls = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  SSL_CTX_set_min_proto_version(tls->native_handle(), TLS1_2_VERSION);
  Error error;
  tls->use_certificate_chain_file(options.certificate, error);
  check(!error, ErrorCode::kInvalidArgument, "TLS certificate {}: {}", options.certificate, error.message());
  tls->use_private_key_file(options.private_key, asio::ssl::context::pem, error);
  check(!error, ErrorCode::kInvalidArgument, "TLS key {}: {} (want the PEM key of {})", options.private_key,
        error.message(), options.certificate);
  return tls;
}

// A socket file that nobody listens at any more is in the way of a new one.
void remove_stale(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return;
  asio::io_context io;
  Local::socket probe(io);
  Error error;
  probe.connect(Local::endpoint(path), error);
  check(error == asio::error::connection_refused, ErrorCode::kIo,
        "cannot listen at {}: another process listens there (stop it, or give another path)", path);
  ::unlink(path.c_str());
}

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpOptions& options, HttpHandler handler) : shared(std::make_shared<HttpShared>()) {
    shared->options = options;
    shared->proxies = TrustedProxies(options.trusted_proxies);
    shared->handler = std::move(handler);
    tls = read_certificate(options);
    if (options.unix_socket.empty()) {
      listen_tcp();
    } else {
      remove_stale(options.unix_socket);
      locals.emplace(io);
      open(*locals, Local::endpoint(options.unix_socket), options.unix_socket);
      accept(*locals);
    }
    thread = std::thread([this] { run(); });
  }

  ~Impl() {
    asio::post(io, [this] {
      stopped = true;
      stop_listening();
      for (const auto& weak : std::list(connections))
        if (const auto connection = weak.lock()) connection->close();
      guard.reset();
    });
    thread.join();
    if (!shared->options.unix_socket.empty()) ::unlink(shared->options.unix_socket.c_str());
  }

  // What fails here, for want of memory, ends one connection and not the others.
  void run() {
    for (;;) {
      try {
        io.run();
        return;
      } catch (const std::exception& error) {
        log_warning("HTTP: {}", error.what());
      }
    }
  }

  void listen_tcp() {
    const HttpOptions& options = shared->options;
    Error error;
    const auto found = tcp::resolver(io).resolve(options.address, std::to_string(options.port),
                                                 tcp::resolver::passive | tcp::resolver::numeric_service, error);
    check(!error && !found.empty(), ErrorCode::kIo, "cannot listen at {}: {} (want an address of this machine)",
          options.address, error.message());
    for (const auto& entry : found) {
      tcp::endpoint endpoint = entry.endpoint();
      if (port != 0) endpoint.port(static_cast<uint16_t>(port));
      open(acceptors.emplace_back(io), endpoint, fmt::format("{} port {}", options.address, endpoint.port()));
      port = acceptors.back().local_endpoint().port();
    }
    for (tcp::acceptor& acceptor : acceptors) accept(acceptor);
  }

  template <class Acceptor, class Endpoint>
  void open(Acceptor& acceptor, const Endpoint& endpoint, const std::string& where) {
    Error error;
    acceptor.open(endpoint.protocol(), error);
    if constexpr (std::is_same_v<Acceptor, tcp::acceptor>) {
      acceptor.set_option(tcp::acceptor::reuse_address(true), error);
      if (endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(true), error);
    }
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    check(!error, ErrorCode::kIo, "cannot listen at {}: {} (want a free port; 0 takes any)", where, error.message());
  }

  template <class Acceptor>
  void accept(Acceptor& acceptor) {
    auto socket = std::make_shared<Socket>(io);
    acceptor.async_accept(*socket, [this, &acceptor, socket](const Error& error) {
      if (stopped) return;
      if (!error) {  // also one that was accepted just before the drain
        if (acceptor.is_open()) accept(acceptor);
        return admit(std::move(*socket));
      }
      if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
      // No file descriptors, most likely: others must end first.
      log_warning("cannot accept a connection: {}", error.message());
      auto pause = std::make_shared<asio::steady_timer>(io, std::chrono::milliseconds(100));
      pause->async_wait([this, &acceptor, pause](const Error&) {
        if (acceptor.is_open()) accept(acceptor);
      });
    });
  }

  void admit(Socket socket) {
    Error ignored;
    const std::string peer = peer_name(socket);
    if (peer != "unix") socket.set_option(tcp::no_delay(true), ignored);
    if (count >= shared->options.max_connections) {
      static constexpr std::string_view kFull =
          "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n";
      socket.non_blocking(true, ignored);
      socket.send(asio::buffer(kFull), 0, ignored);
      return;
    }
    ++count;
    const auto at = connections.emplace(connections.end());
    const auto place = std::shared_ptr<void>(nullptr, [this, at](void*) { connections.erase(at), --count; });
    std::shared_ptr<HttpConnection> connection;
    if (tls) {
      connection =
          std::make_shared<StreamConnection<TlsStream>>(TlsStream(std::move(socket), *tls), peer, shared, place);
    } else {
      connection = std::make_shared<StreamConnection<Socket>>(std::move(socket), peer, shared, place);
    }
    *at = connection;
    connection->start();
  }

  void stop_listening() {
    Error ignored;
    for (tcp::acceptor& acceptor : acceptors) acceptor.close(ignored);
    if (locals) locals->close(ignored);
  }

  template <class Acceptor>
  void accept_waiting(Acceptor& acceptor) {
    Error error;
    acceptor.non_blocking(true, error);
    while (!error) {
      Socket socket(io);
      acceptor.accept(socket, error);
      if (!error) admit(std::move(socket));
    }
  }

  // Runs it in the server's thread, behind all that is ready there.
  void run_there(const std::function<void()>& task) {
    std::promise<void> done;
    asio::post(io, [&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }

  void drain() {
    run_there([this] {
      for (tcp::acceptor& acceptor : acceptors) accept_waiting(acceptor);
      if (locals) accept_waiting(*locals);
      shared->draining = true;
      stop_listening();
    });
    // What a connection has read is with it some turns later.
    for (int turns = 0; turns < 8; ++turns) run_there([] {});
    run_there([this] {
      for (const auto& weak : std::list(connections))
        if (const auto connection = weak.lock()) connection->close_when_idle();
    });
  }

  std::shared_ptr<HttpShared> shared;
  std::list<std::weak_ptr<HttpConnection>> connections;
  std::atomic<int64_t> count = 0;
  asio::io_context io{1};  // below what connections that end with it still use
  asio::executor_work_guard<asio::io_context::executor_type> guard = asio::make_work_guard(io);
  std::shared_ptr<asio::ssl::context> tls;  // of new connections; each keeps its own
  std::list<tcp::acceptor> acceptors;
  std::optional<Local::acceptor> locals;
  int port = 0;
  bool stopped = false;
  std::thread thread;
};

HttpServer::HttpServer(const HttpOptions& options, HttpHandler handler)
    : impl_(std::make_unique<Impl>(options, std::move(handler))) {}
HttpServer::~HttpServer() = default;

int HttpServer::port() const { return impl_->port; }
int64_t HttpServer::connections() const { return impl_->count; }
int64_t HttpServer::running() const { return impl_->shared->running; }

void HttpServer::reload_certificate() {
  auto tls = read_certificate(impl_->shared->options);
  asio::post(impl_->io, [impl = impl_.get(), tls] { impl->tls = tls; });
}

void HttpServer::drain() { impl_->drain(); }

bool HttpServer::wait_idle(double seconds) const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (running() > 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return running() == 0;
}

}  // namespace octet::serve
