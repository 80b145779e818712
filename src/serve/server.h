// The server: routes of its wire forms, probes and metrics over one engine.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "serve/api.h"
#include "serve/front.h"
#include "serve/http.h"
#include "serve/request_log.h"

namespace octet::serve {

struct ServerOptions {
  HttpOptions http;
  FrontOptions front;
  RequestLogOptions log;
  std::string keys = {};                 // file of API keys; empty: none is asked for
  std::string metric_prefix = "octet_";  // "vllm:" for tools that know those names
  std::vector<std::string> hosts =
      {};                      // names that a request's Host and Origin may have beside this machine's loopback ones
  bool any_host = false;       // true where not loopback is listened at
  int64_t parsers = 2;         // threads that read requests
  double request_timeout = 0;  // seconds of a text in the engine, where its request says none; 0: any
  double stall_seconds = 30;   // without a finished step while texts run: not live
};

class Server {
 public:
  // Listens: /livez is 200, all else 503, until it has a model.
  explicit Server(const ServerOptions& options);
  Server(const ApiModel& model, const ServerOptions& options) : Server(options) { open(model); }
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Serves the model, which outlives it, as `engine` and `tokenizer` of it do. Throws for keys that cannot be read.
  void open(const ApiModel& model);
  int port() const;
  // Certificate and keys, from their files, and the access log's file. Throws with the old ones kept.
  void reload();
  // Not ready any more, but serving.
  void set_unready();
  // No new connections, and no more requests on the old ones.
  void drain();
  int64_t running() const;  // requests whose reply has not ended
  int64_t connections() const;
  // Ends what waits and runs, streams by an error event; waits until all is told, at most so long.
  void end_all(double seconds);

 private:
  struct Impl;
  void answer(HttpRequest request, HttpReply reply);

  const ServerOptions options_;
  std::unique_ptr<Impl> impl_;           // none: there is no model yet
  std::atomic<Impl*> opened_ = nullptr;  // the same, for the server's thread
  std::unique_ptr<HttpServer> http_;
};

}  // namespace octet::serve
