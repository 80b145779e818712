// An HTTP/1.1 server whose replies may be given at once or streamed for minutes, by any thread.
//
// One thread reads and writes all connections; a handler that has more to do than to look at the request gives the work
// to a thread of its own and keeps the reply. Nothing a peer sends or leaves unread ends the server or holds up others:
// heads, bodies, their time and unread bytes are bounded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace octet::serve {

struct HttpField {
  std::string name, value;
};
using HttpFields = std::vector<HttpField>;
// The value of the first field of this name in any case; empty: none.
std::string_view find_field(const HttpFields& fields, std::string_view name);

struct HttpRequest {
  std::string method;
  std::string path, query;  // of the target, as sent: parts before and behind '?'
  HttpFields fields;
  std::string body;
  std::string peer;     // "127.0.0.1:40000", "[::1]:40000", "unix"; "192.0.2.1", "[2001:db8::1]" behind a trusted proxy
  bool secure = false;  // it came by TLS
  std::shared_ptr<const void> counted = {};  // the body, among those that wait

  std::string_view field(std::string_view name) const { return find_field(fields, name); }
};

// What became of a reply. Seconds count from the request's last byte.
struct HttpOutcome {
  int status = 499;   // 499: its peer went before it began
  int64_t bytes = 0;  // sent, the head too
  double first_byte = 0, seconds = 0;
};

// What a handler answers with. Copies are handles of one reply; from any thread. Where the last one goes before the
// reply has ended, a reply that has not begun becomes status 500 and a stream is cut off. Bytes for a peer that has
// gone are dropped.
class HttpReply {
 public:
  class State;
  explicit HttpReply(std::shared_ptr<State> state);

  // A field of the head, whatever the reply will be.
  void add_field(const std::string& name, const std::string& value);
  // The whole reply. A second call, or one after begin(), is ignored.
  void send(int status, std::string_view content_type, std::string_view body, const HttpFields& fields = {});

  // A stream: its head, then pieces, then its end.
  void begin(int status, std::string_view content_type, const HttpFields& fields = {});
  void write(std::string_view piece);
  void end();

  bool begun() const;
  bool gone() const;  // the peer has closed, or reads too slowly
  // `call` runs once, in the server's thread, when the peer goes before the reply has ended; now, if it has gone.
  void on_gone(std::function<void()> call);
  // `call` runs once, in the server's thread, when the last byte is written or the peer has gone. None: the server
  // ends.
  void on_outcome(std::function<void(const HttpOutcome& outcome)> call);

 private:
  struct Handle;
  std::shared_ptr<Handle> handle_;
};

using HttpHandler = std::function<void(HttpRequest request, HttpReply reply)>;

struct HttpOptions {
  std::string address = "127.0.0.1";
  int port = 8000;               // 0: a free one
  std::string unix_socket = {};  // a path, instead of address and port
  std::string certificate = {};  // PEM files of the chain and its key: TLS
  std::string private_key = {};
  std::vector<std::string> trusted_proxies = {};  // whose X-Forwarded-For is believed, as TrustedProxies takes them
  int64_t max_head_bytes = 16 << 10;
  int64_t max_body_bytes = 32 << 20;
  int64_t max_waiting_bytes = 1 << 30;  // of the bodies of all requests that come or wait to be read; more get 503
  int64_t max_unread_bytes = 1 << 20;   // of a stream; its peer counts as gone above that
  int64_t max_connections = 20'000;     // more get status 503
  double head_seconds = 10;             // for a request's head, from its first byte or the connection's opening
  double body_seconds = 60;
  double idle_seconds = 75;  // between requests, and for a peer to read some of what it was sent
  // Hears of bytes that were refused as they came and no handler has seen.
  std::function<void(const std::string& peer, const HttpOutcome& outcome)> refused = {};
};

class HttpServer {
 public:
  // Listens and serves. Throws kIo for an address that cannot be had, kInvalidArgument for a certificate or key that
  // cannot be used, naming them.
  HttpServer(const HttpOptions& options, HttpHandler handler);
  ~HttpServer();  // closes all connections
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;  // 0 for a UNIX socket
  int64_t connections() const;
  int64_t running() const;  // requests that have begun to come and whose reply has not ended

  // New connections get the certificate that the files hold now. Throws as the constructor, with the old one kept.
  void reload_certificate();
  // Ends listening, closes idle connections, and each other one behind its reply. Requests that have reached this
  // machine are counted as running when it returns.
  void drain();
  // Until no reply runs, at most so long; whether none does.
  bool wait_idle(double seconds) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

const char* http_status_name(int status);  // "Not Found"; "" for unknown ones

}  // namespace octet::serve
