#include "serve/server.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/api_request.h"
#include "serve/gzip.h"
#include "serve/kserve.h"
#include "serve/page.h"
#include "serve/reader_pool.h"
#include "serve/reply_job.h"
#include "serve/server_metrics.h"
#include "serve/token_rules.h"

namespace octet::serve {
namespace {

constexpr const char* kJson = "application/json";
constexpr size_t kLargeBody = 256 << 10;  // read in a lane of its own

bool asks_live(std::string_view path) { return path == "/livez" || path == "/v2/health/live"; }

// ApiError for another encoding than gzip.
bool is_packed(const HttpRequest& request) {
  const std::string_view encoding = request.field("Content-Encoding");
  if (request.body.empty() || encoding.empty() || encoding == "identity") return false;
  if (encoding == "gzip" || encoding == "x-gzip") return true;
  throw ApiError(fmt::format("Content-Encoding is '{}' (want gzip, or none)", encoding), "Content-Encoding", 415);
}

// The host of "name:port", "[::1]:port" or "http://name:port".
std::string host_of(std::string_view text) {
  if (const size_t scheme = text.find("://"); scheme != std::string_view::npos) text.remove_prefix(scheme + 3);
  const size_t bracket = text.find(']');
  const size_t end = bracket != std::string_view::npos ? bracket + 1 : text.find(':');
  std::string host(text.substr(0, end));
  std::ranges::transform(host, host.begin(), [](unsigned char c) { return std::tolower(c); });
  return host;
}

}  // namespace

struct Server::Impl {
  Impl(const ApiModel& served, const ServerOptions& opts)
      : model(served),
        options(opts),
        log(opts.log),
        metrics(
            opts.metric_prefix, *served.engine, [this] { return front ? front->waiting() : 0; }, log),
        front(std::make_unique<Front>(*served.engine, opts.keys.empty() ? std::vector<ApiKey>{} : read_keys(opts.keys),
                                      opts.front, &metrics)),
        readers(std::make_unique<ReaderPool>(opts.parsers)) {}

  ~Impl() {
    readers.reset();
    front.reset();
  }

  // --- every request
  bool known_host(const std::string& host) const {
    static const std::set<std::string> kLoopback = {"localhost", "127.0.0.1", "[::1]"};
    return kLoopback.contains(host) || std::ranges::find(options.hosts, host) != options.hosts.end();
  }

  void check_host(const HttpRequest& request) const {
    if (options.any_host) return;
    // A page of another site must not reach what listens on loopback, by a name of its own or by a script.
    const std::string host = host_of(request.field("Host"));
    if (!host.empty() && !known_host(host))
      throw ApiError(fmt::format("this server is not known as '{}' (allow the name with --allow-host)", host), "Host",
                     421);
    const std::string_view origin = request.field("Origin");
    if (!origin.empty() && !known_host(host_of(origin)))
      throw ApiError(fmt::format("pages of '{}' may not use this server (allow them with --allow-host)", origin),
                     "Origin", 403);
  }

  // What a browser wants to know before a page of another origin, which is allowed, may ask and read (CORS). True: that
  // was all.
  bool admit_page(const HttpRequest& request, HttpReply& reply) const {
    const std::string origin(request.field("Origin"));
    if (origin.empty() || !known_host(host_of(origin))) return false;
    reply.add_field("Access-Control-Allow-Origin", origin);
    reply.add_field("Vary", "Origin");
    reply.add_field("Access-Control-Expose-Headers", "X-Request-Id, Request-Id, Retry-After, X-Ignored-Fields");
    if (request.method != "OPTIONS" || request.field("Access-Control-Request-Method").empty()) return false;
    reply.add_field("Access-Control-Allow-Methods", "GET, POST, DELETE");
    reply.add_field("Access-Control-Allow-Headers", std::string(request.field("Access-Control-Request-Headers")));
    reply.add_field("Access-Control-Max-Age", "600");
    reply.send(200, "text/plain", "");
    return true;
  }

  void check_key(const HttpRequest& request, ApiRequest& asked) const {
    const auto kept = front->keys();
    const std::vector<ApiKey>& keys = *kept;
    if (keys.empty()) return;
    std::string_view given = request.field("Authorization");
    if (given.empty()) given = request.field("X-Api-Key");
    const int64_t key = find_key(keys, given);
    if (key < 0)
      throw ApiError(given.empty() ? "an API key is required: Authorization: Bearer KEY" : "unknown API key", {}, 401,
                     "invalid_api_key");
    const ApiKey& own = keys[static_cast<size_t>(key)];
    asked.key = own.name, asked.admin = own.admin, asked.models = own.models;
  }

  void handle(const std::shared_ptr<HttpRequest>& request, HttpReply reply) {
    std::string id(request->field("X-Request-Id").substr(0, 128));
    if (id.empty()) id = make_id("");
    reply.add_field("X-Request-Id", id);
    reply.add_field("Request-Id", id);  // where Anthropic's clients look
    const std::shared_ptr<RequestRecord> record = log.begin(*request, id);
    if (record) reply.on_outcome([record](const HttpOutcome& outcome) { record->outcome = outcome; });
    try {
      check_host(*request);
      if (admit_page(*request, reply)) return;
      dispatch(id, request, record, reply);
    } catch (const ApiError& error) {
      metrics.refused("invalid");
      if (record) record->error = error_code(error);
      ApiError named = error;
      named.set_request_id(id);
      reply.send(error.status(), kJson, error_at(request->path, named));
    }
  }

  void dispatch(const std::string& id, const std::shared_ptr<HttpRequest>& request,
                const std::shared_ptr<RequestRecord>& record, HttpReply& reply) {
    const std::string& path = request->path;
    const bool get = request->method == "GET" || request->method == "HEAD";
    if (is_probe(path) || asks_model_ready(path, model)) {
      if (record) record->probe = true;
      if (get) return probe(path, reply);
      return wrong_method(*request, "GET", reply);
    }
    std::string methods;
    for (const Route& route : routes()) {
      auto asked = std::make_shared<ApiRequest>();
      if (!fits(route, path, model.names, asked->parts)) continue;
      methods += methods.empty() ? route.method : fmt::format(", {}", route.method);
      asked->id = id;
      if (get ? route.method != std::string_view("GET") : route.method != request->method) continue;
      asked->record = record;
      return accept(route, asked, request, reply);
    }
    if (!methods.empty()) return wrong_method(*request, methods, reply);
    throw ApiError(fmt::format("there is no {}", path), {}, 404);
  }

  static void wrong_method(const HttpRequest& request, const std::string& methods, HttpReply& reply) {
    reply.add_field("Allow", methods);
    throw ApiError(fmt::format("{} takes {}, not {}", request.path, methods, request.method), {}, 405);
  }

  static std::string error_code(const ApiError& error) {
    return error.code().empty() ? std::to_string(error.status()) : error.code();
  }

  static void send_error(const Route& route, const ApiRequest& asked, ApiError error, HttpReply& reply) {
    if (asked.record) asked.record->error = error_code(error);
    error.set_request_id(asked.id);
    reply.send(error.status(), kJson, route.error(error));
  }

  void refuse(const Route& route, const ApiRequest& asked, const ApiError& error, HttpReply& reply) {
    metrics.refused(error.status() == 401 ? "key" : error.status() == 503 ? "queue" : "invalid");
    send_error(route, asked, error, reply);
  }

  void accept(const Route& route, const std::shared_ptr<ApiRequest>& asked, const std::shared_ptr<HttpRequest>& request,
              HttpReply& reply) {
    try {
      if (asked->record) asked->record->route = route.path;
      check_key(*request, *asked);
      if (asked->record) asked->record->key = asked->key;
      if (route.prepare != nullptr)
        if (const std::optional<Refusal> full = front->full()) {  // known without reading it
          metrics.refused(*full);
          return send_error(route, *asked, refusal_error(*full, reply), reply);
        }
      const bool packed = is_packed(*request);
      const size_t size = packed ? gzip_size(request->body) : request->body.size();
      const auto read = [this, &route, asked, request, reply, packed]() mutable {
        if (reply.gone()) return;
        try {
          if (packed) request->body = unpack_gzip(request->body, static_cast<size_t>(options.http.max_body_bytes));
          asked->path = std::move(request->path), asked->fields = std::move(request->fields);
          asked->body = std::move(request->body);
          serve(route, *asked, reply);
        } catch (const ApiError& error) {
          refuse(route, *asked, error, reply);
        } catch (const Error& error) {
          refuse(route, *asked, ApiError(error.message()), reply);
        } catch (const std::exception& error) {
          log_warning("{} of {}: {}", asked->path, request->peer, error.what());
          send_error(route, *asked, ApiError("the request could not be read", {}, 500), reply);
        }
      };
      if (!readers->add(read, size > kLargeBody))
        throw refusal_error({503, "queue", "too many requests are waiting to be read", 1}, reply);
    } catch (const ApiError& error) {
      refuse(route, *asked, error, reply);
    }
  }

  void check_task(const Route& route) const {
    const bool encodes = model.engine->encoder() != nullptr;
    if (route.encodes == encodes) return;
    throw ApiError(
        encodes ? fmt::format("'{}' is an encoder and generates no text: use /v1/embeddings, /v1/rerank or /v1/score",
                              model.names[0])
                : fmt::format("'{}' is served for generation: {} requires an encoder, or octet serve --task embed",
                              model.names[0], route.path));
  }

  // What the request calls the model; the model's own name where it says nothing. ApiError 403 where the key is not for
  // that.
  std::string model_of(const Route& route, const ApiRequest& asked) const {
    const std::string_view path = route.path;
    std::string name = model.names[0];
    if (asked.json.is_object() && asked.json.contains("model") && asked.json["model"].is_string())
      name = asked.json["model"].get<std::string>();
    if (path.find("{model}") != std::string_view::npos) name = asked.parts.at(0);
    const bool names = route.prepare != nullptr || name != model.names[0];
    if (names && !asked.may_use(name))
      throw ApiError(
          fmt::format("this key is not for the model '{}' (it is for {})", name, fmt::join(asked.models, ", ")),
          "model", 403, "model_not_allowed");
    return name;
  }

  // In a reader's thread.
  void serve(const Route& route, ApiRequest& asked, HttpReply& reply) {
    if (route.json && route.method == std::string_view("POST")) asked.json = parse_body(asked.body), asked.body = {};
    if (route.prepare != nullptr) check_task(route);
    const std::string name = model_of(route, asked);
    if (route.answer != nullptr) return reply.send(200, kJson, route.answer(asked, model));
    Prepared prepared = route.prepare(asked, model, reply);
    if (asked.record) describe(route, asked, *prepared.job, *asked.record);
    if (asked.json.is_object() && !route.encodes) restrict_tokens(asked.json, model, prepared.job->prompts);
    metrics.ignored_fields(static_cast<int64_t>(prepared.unknown.size()));
    if (!prepared.unknown.empty()) reply.add_field("X-Ignored-Fields", name_ignored(prepared.unknown));
    prepared.job->key = asked.key, prepared.job->record = asked.record;
    if (!route.encodes && model.is_adapter(name)) {
      prepared.job->adapter = name;
      for (GenerationRequest& prompt : prepared.job->prompts) prompt.adapter = name;
    }
    for (GenerationRequest& prompt : prepared.job->prompts)
      if (prompt.timeout_seconds == 0) prompt.timeout_seconds = options.request_timeout;
    if (!asked.key.empty())  // what one key has in the prefix cache is none of another's
      for (GenerationRequest& prompt : prepared.job->prompts)
        prompt.cache_salt = fmt::format("{} {} {}", asked.key.size(), asked.key, prompt.cache_salt);
    reply.on_gone([this, weak = std::weak_ptr<Job>(prepared.job)] {
      if (const auto job = weak.lock()) front->cancel(job);
    });
    front->submit(prepared.job, prepared.prompt_tokens);
  }

  // At most 16 names of 64 printable bytes, in the log at most 256.
  std::string name_ignored(const std::vector<std::string>& fields) {
    std::vector<std::string> names;
    const std::lock_guard lock(ignored_mutex);
    for (size_t i = 0; i < std::min<size_t>(fields.size(), 16); ++i) {
      std::string& name = names.emplace_back(fields[i].substr(0, 64));
      std::ranges::replace_if(
          name, [](char c) { return c <= ' ' || c > '~' || c == ','; }, '?');
      if (ignored.size() < 256 && ignored.insert(name).second)
        log_warning("ignored the unknown field '{}' of a request", name);
    }
    return fmt::format("{}", fmt::join(names, ", "));
  }

  void describe(const Route& route, const ApiRequest& asked, const Job& job, RequestRecord& record) const {
    const GenerationRequest& first = job.prompts.front();
    record.operation = route.operation, record.reply_id = job.reply_id;
    const bool named = asked.json.is_object() && asked.json.contains("model") && asked.json["model"].is_string();
    record.model = named ? asked.json["model"].get<std::string>() : model.names[0];
    record.max_tokens = first.max_tokens, record.choices = first.n;
    record.temperature = first.sampling.temperature, record.top_p = first.sampling.top_p;
  }

  // --- the page and probes, answered by the server's thread at once
  static bool is_probe(std::string_view path) {
    static const std::set<std::string_view> kProbes = {
        "/livez", "/readyz", "/health", "/ping", "/metrics", "/version", "/v2/health/live", "/v2/health/ready", "/"};
    return kProbes.contains(path);
  }

  void probe(const std::string& path, HttpReply& reply) {
    if (path == "/metrics") return reply.send(200, "text/plain; version=0.0.4; charset=utf-8", metrics.print());
    if (path == "/") return reply.send(200, "text/html; charset=utf-8", page_text(), page_fields());
    if (path == "/version") return reply.send(200, kJson, dump({{"version", model.version}}));
    const std::string fault = unready && !asks_live(path) ? "draining" : not_live();
    reply.send(fault.empty() ? 200 : 503, kJson, dump({{"status", fault.empty() ? "ok" : fault}}));
  }

  std::string not_live() const {
    const EngineStats stats = model.engine->stats();
    if (stats.broken) return "the device has failed";
    const bool busy = stats.in_step || stats.running > 0 || stats.waiting > 0;
    if (!busy || stats.since_step < options.stall_seconds) return {};
    return fmt::format("no step has finished for {:.0f} s while {} sequences run", stats.since_step, stats.running);
  }

  const ApiModel& model;
  const ServerOptions options;
  std::atomic<bool> unready = false;
  std::mutex ignored_mutex;
  std::set<std::string> ignored;  // fields that the log has named
  RequestLog log;
  ServerMetrics metrics;
  std::unique_ptr<Front> front;
  std::unique_ptr<ReaderPool> readers;
};

Server::Server(const ServerOptions& options) : options_(options) {
  HttpOptions http = options.http;
  http.refused = [this](const std::string& peer, const HttpOutcome& outcome) {
    if (const Impl* impl = opened_) impl->log.refused(peer, outcome);
  };
  http_ = std::make_unique<HttpServer>(
      http, [this](HttpRequest request, HttpReply reply) { answer(std::move(request), std::move(reply)); });
}
Server::~Server() { http_.reset(); }  // before what its handler uses

void Server::open(const ApiModel& model) {
  impl_ = std::make_unique<Impl>(model, options_);
  opened_ = impl_.get();
}

void Server::answer(HttpRequest request, HttpReply reply) {
  if (Impl* impl = opened_) return impl->handle(std::make_shared<HttpRequest>(std::move(request)), std::move(reply));
  if (asks_live(request.path)) return reply.send(200, kJson, dump({{"status", "starting"}}));
  const ApiError error = refusal_error({503, "starting", "the model is being loaded", 5}, reply);
  reply.send(503, kJson, error_at(request.path, error));
}

int Server::port() const { return http_->port(); }

void Server::reload() {
  impl_->log.reopen();
  if (!options_.keys.empty()) impl_->front->set_keys(read_keys(options_.keys));
  if (!options_.http.certificate.empty()) http_->reload_certificate();
}

void Server::set_unready() { impl_->unready = true; }

void Server::drain() {
  impl_->unready = true;
  http_->drain();
}

int64_t Server::running() const { return http_->running(); }
int64_t Server::connections() const { return http_->connections(); }

void Server::end_all(double seconds) {
  drain();
  impl_->front->refuse_all({503, "shutdown", "the server is shutting down", 1});
  http_->wait_idle(seconds);
}

}  // namespace octet::serve
