#include "serve/server.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "base/json.h"
#include "base/log.h"
#include "serve/chat.h"
#include "serve/server_metrics.h"

namespace octet::serve {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kJson = "application/json";

// Threads that read requests: JSON, templates, tokens. At most `most` requests wait.
class ReaderPool {
 public:
  explicit ReaderPool(int64_t threads) {
    for (int64_t i = 0; i < std::max<int64_t>(threads, 1); ++i) threads_.emplace_back([this] { work(); });
  }
  ~ReaderPool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  bool add(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      if (tasks_.size() >= kMost) return false;
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
    return true;
  }

 private:
  static constexpr size_t kMost = 4096;
  void work() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
        if (stop_) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  bool stop_ = false;
};

void send_error(HttpReply& reply, const ApiError& error) { reply.send(error.status(), kJson, error_body(error)); }

// The host of "name:port", "[::1]:port" or "http://name:port".
std::string host_of(std::string_view text) {
  if (const size_t scheme = text.find("://"); scheme != std::string_view::npos) text.remove_prefix(scheme + 3);
  const size_t end = text.starts_with('[') ? text.find(']') + 1 : text.find(':');
  std::string host(text.substr(0, end));
  std::ranges::transform(host, host.begin(), [](unsigned char c) { return std::tolower(c); });
  return host;
}

}  // namespace

struct Server::Impl {
  Impl(const ApiModel& served, const ServerOptions& opts)
      : model(served),
        options(opts),
        metrics(opts.metric_prefix, *served.engine, [this] { return front ? front->waiting() : 0; }),
        front(std::make_unique<Front>(*served.engine, opts.keys.empty() ? std::vector<ApiKey>{} : read_keys(opts.keys),
                                      opts.front, &metrics)),
        readers(std::make_unique<ReaderPool>(opts.parsers)),
        http(std::make_unique<HttpServer>(opts.http, [this](HttpRequest request, HttpReply reply) {
          handle(std::make_shared<HttpRequest>(std::move(request)), std::move(reply));
        })) {}

  ~Impl() {
    http.reset();
    readers.reset();
    front.reset();
  }

  // --- every request
  void check_host(const HttpRequest& request) const {
    if (options.any_host) return;
    // A page of another site must not reach what listens on loopback, by a name of its own or by a script.
    const auto known = [&](const std::string& host) {
      static const std::set<std::string> kLoopback = {"localhost", "127.0.0.1", "[::1]"};
      return kLoopback.contains(host) || std::ranges::find(options.hosts, host) != options.hosts.end();
    };
    const std::string host = host_of(request.field("Host"));
    if (!host.empty() && !known(host))
      throw ApiError(fmt::format("this server is not called '{}' (allow names by --allow-host)", host), "Host", 421);
    const std::string_view origin = request.field("Origin");
    if (!origin.empty() && !known(host_of(origin)))
      throw ApiError(fmt::format("pages of '{}' may not ask this server (allow them by --allow-host)", origin),
                     "Origin", 403);
  }

  std::string check_key(const HttpRequest& request) const {
    const std::vector<ApiKey> keys = front->keys();
    if (keys.empty()) return {};
    std::string_view given = request.field("Authorization");
    if (given.empty()) given = request.field("X-Api-Key");
    const int64_t key = find_key(keys, given);
    if (key < 0)
      throw ApiError(given.empty() ? "an API key is wanted: Authorization: Bearer KEY" : "this API key is not known",
                     {}, 401, "invalid_api_key");
    return keys[static_cast<size_t>(key)].name;
  }

  void handle(std::shared_ptr<HttpRequest> request, HttpReply reply) {
    std::string id(request->field("X-Request-Id").substr(0, 128));
    if (id.empty()) id = make_id("");
    reply.add_field("X-Request-Id", id);
    try {
      check_host(*request);
      route(std::move(request), reply);
    } catch (const ApiError& error) {
      metrics.refused(error.status() == 401 ? "key" : "invalid");
      send_error(reply, error);
    }
  }

  void route(std::shared_ptr<HttpRequest> request, HttpReply& reply) {
    const std::string& path = request->path;
    const bool get = request->method == "GET" || request->method == "HEAD", post = request->method == "POST";
    const auto only = [&](bool fits, const char* method) {
      if (fits) return;
      reply.add_field("Allow", method);
      throw ApiError(fmt::format("{} takes {}, not {}", path, method, request->method), {}, 405);
    };
    if (path == "/livez" || path == "/readyz" || path == "/health" || path == "/ping" || path == "/metrics" ||
        path == "/version") {
      only(get, "GET");
      return probe(path, reply);
    }
    if (path == "/v1/models" || path.starts_with("/v1/models/") || path == "/server_info") {
      only(get, "GET");
      check_key(*request);
      return path == "/server_info" ? server_info(reply) : models(path, reply);
    }
    static const std::set<std::string> kRead = {"/v1/completions", "/v1/chat/completions",
                                                "/v1/chat/completions/render", "/tokenize", "/detokenize"};
    if (kRead.contains(path)) {
      only(post, "POST");
      const std::string key = check_key(*request);
      const bool added = readers->add([this, request, reply, key]() mutable {
        try {
          read(*request, key, reply);
        } catch (const ApiError& error) {
          metrics.refused("invalid");
          send_error(reply, error);
        } catch (const std::exception& error) {
          log_warning("{} of {}: {}", request->path, request->peer, error.what());
          send_error(reply, ApiError("the request could not be read", {}, 500));
        }
      });
      if (!added) throw ApiError("too many requests wait to be read", {}, 503);
      return;
    }
    throw ApiError(fmt::format("there is no {}", path), {}, 404);
  }

  // --- without a body
  void probe(const std::string& path, HttpReply& reply) {
    if (path == "/metrics") return reply.send(200, "text/plain; version=0.0.4; charset=utf-8", metrics.print());
    if (path == "/version") return reply.send(200, kJson, dump({{"version", options.version}}));
    const std::string fault = path == "/livez" ? not_live() : unready ? "draining" : not_live();
    reply.send(fault.empty() ? 200 : 503, kJson, dump({{"status", fault.empty() ? "ok" : fault}}));
  }

  std::string not_live() const {
    const EngineStats stats = model.engine->stats();
    if (stats.broken) return "the device has failed";
    const bool busy = stats.in_step || stats.running > 0 || stats.waiting > 0;
    if (!busy || stats.since_step < options.stall_seconds) return {};
    return fmt::format("no step has finished for {:.0f} s while {} texts run", stats.since_step, stats.running);
  }

  Json model_json(const std::string& name) const {
    return {{"id", name},
            {"object", "model"},
            {"created", model.created},
            {"owned_by", "octet"},
            {"root", model.names[0]},
            {"parent", nullptr},
            {"max_model_len", model.engine->context()}};
  }

  void models(const std::string& path, HttpReply& reply) {
    if (path == "/v1/models") {
      Json list = Json::array();
      for (const std::string& name : model.names) list.push_back(model_json(name));
      return reply.send(200, kJson, dump({{"object", "list"}, {"data", list}}));
    }
    const std::string name = path.substr(std::string_view("/v1/models/").size());
    if (std::ranges::find(model.names, name) == model.names.end())
      throw ApiError(fmt::format("the model '{}' is not served here (there is {})", name, fmt::join(model.names, ", ")),
                     "model", 404, "model_not_found");
    reply.send(200, kJson, dump(model_json(name)));
  }

  void server_info(HttpReply& reply) {
    const EngineOptions& engine = model.engine->options();
    reply.send(200, kJson,
               dump({{"version", options.version},
                     {"model", model.names},
                     {"device", engine.device},
                     {"recipe", engine.recipe},
                     {"kv_cache", engine.kv_cache},
                     {"context", model.engine->context()},
                     {"vocab_size", model.engine->vocab_size()},
                     {"max_sequences", engine.max_sequences},
                     {"max_step_tokens", engine.max_step_tokens},
                     {"block_size", engine.block_size},
                     {"kv_blocks", model.engine->stats().kv_blocks}}));
  }

  // --- with a body, in a reader's thread
  void read(const HttpRequest& request, const std::string& key, HttpReply& reply) {
    const nlohmann::json body = parse_body(request.body);
    if (request.path == "/tokenize") return tokenize(body, reply);
    if (request.path == "/detokenize") return detokenize(body, reply);
    if (request.path == "/v1/chat/completions/render") return render(body, Json::parse(request.body), reply);
    Prepared prepared = request.path == "/v1/completions" ? prepare_completion(body, model, reply)
                                                          : prepare_chat(body, Json::parse(request.body), model, reply);
    metrics.ignored_fields(static_cast<int64_t>(prepared.unknown.size()));
    prepared.job->key = key;
    reply.on_gone([this, weak = std::weak_ptr<Job>(prepared.job)] {
      if (const auto job = weak.lock()) front->cancel(job);
    });
    front->submit(prepared.job, prepared.prompt_tokens);
  }

  void render(const nlohmann::json& json, const Json& ordered, HttpReply& reply) {
    Fields fields(json);
    model.check_name(fields);
    const ChatPrompt prompt = chat_prompt(fields, ordered, model);
    reply.send(200, kJson, dump({{"prompt", prompt.text}, {"token_ids", prompt.ids}}));
  }

  void tokenize(const nlohmann::json& body, HttpReply& reply) {
    Fields fields(body);
    model.check_name(fields);
    const std::optional<std::string> prompt = fields.text("prompt");
    if (!prompt) fields.fail("prompt", "want a text");
    const bool special = fields.flag("add_special_tokens").value_or(true);
    const std::vector<int32_t> ids =
        model.tokenizer->encode(*prompt, {.add_bos = special && model.tokenizer->adds_bos()});
    Json json = {{"count", ids.size()}, {"max_model_len", model.engine->context()}, {"tokens", ids}};
    if (fields.flag("return_token_strs").value_or(false)) {
      json["token_strs"] = Json::array();
      for (int32_t id : ids) json["token_strs"].push_back(token_text(*model.tokenizer, id));
    }
    reply.send(200, kJson, dump(json));
  }

  void detokenize(const nlohmann::json& body, HttpReply& reply) {
    Fields fields(body);
    model.check_name(fields);
    std::vector<int32_t> ids;
    for (int64_t id : fields.integers("tokens", 0, model.tokenizer->vocab_size() - 1, 1'000'000))
      ids.push_back(static_cast<int32_t>(id));
    if (fields.find("tokens") == nullptr) fields.fail("tokens", "want token ids");
    reply.send(200, kJson, dump({{"prompt", model.tokenizer->decode(ids)}}));
  }

  const ApiModel& model;
  const ServerOptions options;
  std::atomic<bool> unready = false;
  ServerMetrics metrics;
  std::unique_ptr<Front> front;
  std::unique_ptr<ReaderPool> readers;
  std::unique_ptr<HttpServer> http;
};

Server::Server(const ApiModel& model, const ServerOptions& options) : impl_(std::make_unique<Impl>(model, options)) {}
Server::~Server() = default;

int Server::port() const { return impl_->http->port(); }

void Server::reload() {
  if (!impl_->options.keys.empty()) impl_->front->set_keys(read_keys(impl_->options.keys));
  if (!impl_->options.http.certificate.empty()) impl_->http->reload_certificate();
}

void Server::set_unready() { impl_->unready = true; }

void Server::drain() {
  impl_->unready = true;
  impl_->http->drain();
}

int64_t Server::running() const { return impl_->http->running(); }

void Server::end_all(double seconds) {
  drain();
  impl_->front->refuse_all({503, "shutdown", "the server is shutting down", 1});
  impl_->http->wait_idle(seconds);
}

}  // namespace octet::serve
