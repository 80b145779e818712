// An HTTP/1.1 client of one server: many requests at once on one thread, by http:// or https://, connections kept.
//
// Replies come whole or, where they are server-sent events, event by event with the time each arrived.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "serve/http.h"

namespace octet::serve {

struct HttpAnswer {
  int status = 0;     // 0: no head of a reply came
  std::string body;   // of a reply that is not a stream of events
  std::string error;  // why no whole reply came; empty: it did
};

// Cuts a stream of server-sent events, in whatever pieces it comes, into the data of its events. Lines end with LF or
// CRLF; names and ids of events are passed over.
class SseSplitter {
 public:
  void push(std::string_view bytes, const std::function<void(std::string_view data)>& on_data);
  size_t held() const { return line_.size() + data_.size(); }  // bytes of an event that has not ended

 private:
  std::string line_, data_;
  bool has_data_ = false;
};

class HttpClient {
 public:
  using Clock = std::chrono::steady_clock;
  // Both are called in the client's thread, must not block, and may send more requests. What on_event throws ends its
  // request; on_end must not throw.
  using OnEvent = std::function<void(std::string_view data, Clock::time_point arrived)>;
  using OnEnd = std::function<void(HttpAnswer answer)>;
  struct Request {
    std::string target;  // behind the URL's own path: "/v1/models"
    std::string body = {};
    HttpFields fields = {};  // beside Host and the body's type (application/json) and length
    std::string method = "POST";
    double timeout_seconds = 0;  // for all of the reply; 0: none
  };

  // `url`: http://HOST[:PORT][/PATH] or https://, whose certificate must be known to the system. Looks the host up.
  // Throws kInvalidArgument for what is no such URL, kIo for a host without an address.
  explicit HttpClient(const std::string& url);
  ~HttpClient();  // requests that run are dropped, without a call
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // From any thread. `on_end` is called once, behind all events; errors of connections are told by it too.
  void send(Request request, OnEvent on_event, OnEnd on_end);
  // The same, waiting for the whole reply; not in the client's thread.
  HttpAnswer ask(Request request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One request, by a connection of its own. Does not throw for what the network does.
HttpAnswer post(const std::string& url, const std::string& body, const HttpFields& fields = {},
                double timeout_seconds = 30);

}  // namespace octet::serve
