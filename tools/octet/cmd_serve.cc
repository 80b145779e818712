// octet serve: the engine behind HTTP.
#include <sys/resource.h>

#include <CLI/CLI.hpp>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/threads.h"
#include "build_info.h"
#include "chat/reply_parser.h"
#include "dist/launch.h"
#include "human.h"
#include "io/tokenizer.h"
#include "numbers.h"
#include "octet/commands.h"
#include "serve/response_store.h"
#include "serve/server.h"
#include "weights/adapter_folder.h"

namespace octet {
namespace {

struct Options {
  std::string model, metric_names = "octet", new_key, chat_template, reply_format, otlp_endpoint, adapter_root;
  std::vector<std::string> names;
  EngineOptions engine = {.max_sequences = 256};
  serve::ServerOptions server;
  double drain_delay = 0, drain_timeout = 30;
  int64_t responses = 0;  // kept for each key
  bool trust_templates = false, open_tool_schemas = false;
  int threads = 0;
};

// Signals are waited for, not handled: blocked before any thread is made.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  // The next one, at most so many seconds from now; 0: none came.
  int wait(double seconds) const {
    const timespec time{static_cast<time_t>(seconds), static_cast<long>((seconds - std::floor(seconds)) * 1e9)};
    return std::max(sigtimedwait(&set_, nullptr, &time), 0);
  }
  int wait() const {
    int signal = 0;
    sigwait(&set_, &signal);
    return signal;
  }
  // Until `done`, at most so many seconds; false: another signal to end came first.
  template <typename Done>
  bool wait_until(const Done& done, double seconds) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!done() && std::chrono::steady_clock::now() < until) {
      const int signal = wait(0.02);
      if (signal == SIGTERM || signal == SIGINT) return false;
    }
    return true;
  }

 private:
  sigset_t set_;
};

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

// Each connection is an open file; some are left for the rest of the process.
void raise_file_limit(int64_t& max_connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  max_connections = std::clamp<int64_t>(static_cast<int64_t>(limit.rlim_cur) - 200, 16, max_connections);
}

void end_server(serve::Server& server, const Signals& signals, const Options& options) {
  server.set_unready();
  if (options.drain_delay > 0) log_info("shutting down: serving requests for another {} s", options.drain_delay);
  if (signals.wait_until([] { return false; }, options.drain_delay)) {
    server.drain();
    log_info("shutting down: waiting up to {1} s for {0} running requests", server.running(), options.drain_timeout);
    signals.wait_until([&] { return server.running() == 0; }, options.drain_timeout);
  }
  if (const int64_t left = server.running(); left > 0) log_warning("shutting down: cancelled {} requests", left);
  server.end_all(2);
}

std::string url_of(const serve::HttpOptions& http, int port) {
  if (!http.unix_socket.empty()) return http.unix_socket;
  const bool bare = http.address.find(':') != std::string::npos && !http.address.starts_with('[');  // IPv6
  return fmt::format("{}://{}:{}", http.certificate.empty() ? "http" : "https",
                     bare ? "[" + http.address + "]" : http.address, port);
}

// What the server runs on, and what it does with chats and tools.
void tell_start(const serve::ApiModel& model, const EnginePlan& plan, const std::string& chat_template) {
  const EngineOptions& engine = model.engine->options();
  const EngineStats stats = model.engine->stats();
  log_info("device {}, recipe {}: {} for weights, {} for activations; context {} tokens", engine.device, engine.recipe,
           human_bytes(plan.weight_bytes), human_bytes(plan.activation_bytes), model.engine->context());
  if (model.engine->encoder() != nullptr) return;
  log_info("KV cache {}: {} in {} blocks of {} tokens, for up to {} sequences", engine.kv_cache,
           human_bytes(stats.kv_bytes), stats.kv_blocks, engine.block_size, engine.max_sequences);
  const int64_t room = stats.kv_blocks * engine.block_size;
  if (room < model.engine->context())
    log_warning("the KV cache holds {} tokens, less than the context: longer requests are refused", room);
  if (!model.chat) return log_info("no chat template: chat requests are refused (give one with --chat-template)");
  log_info("chat template: {}; tool calls: {}", chat_template.empty() ? "the folder's" : chat_template,
           !model.reply_format.empty()
               ? model.reply_format
               : "unknown format, so calls stay in the content (name the format with --tool-calls)");
}

// Mistakes are told before the model loads.
void check_adapters(Options& options) {
  bool admin = false;
  if (!options.server.keys.empty())
    for (const serve::ApiKey& key : serve::read_keys(options.server.keys)) admin |= key.admin;
  if (options.adapter_root.empty()) return;
  check(path_exists(options.adapter_root), ErrorCode::kNotFound, "--adapter-root: {} does not exist",
        options.adapter_root);
  check(admin, ErrorCode::kInvalidArgument,
        "--adapter-root requires an admin's key: --api-keys FILE with \"admin\": true in the line of a key");
  constexpr int64_t kRoom = 8;
  if (options.engine.max_adapters == 0)
    options.engine.max_adapters = std::max<int64_t>(kRoom, std::ssize(options.engine.adapters));
}

void run_serve(Options& options) {
  if (!options.new_key.empty()) {
    const std::string key = serve::make_key();
    fmt::print("{}\n", key);
    fmt::print(stderr, "# the key above is not stored; the next line admits it in the file of --api-keys\n{}\n",
               serve::key_line(options.new_key, key));
    return;
  }
  const Signals signals;
  set_thread_count(options.threads);
  check_adapters(options);
  check(!options.engine.random_weights || path_exists(options.model) || !options.engine.tokenizer.empty(),
        ErrorCode::kInvalidArgument, "{} is not a folder: random weights of a named model require --tokenizer FOLDER",
        options.model);
  const std::string folder = resolve_models(options.model, options.engine);
  options.server.log.traces = serve::read_otlp_options(options.otlp_endpoint);
  options.server.log.traces.version = version_text("octet");
  { const serve::RequestLog opens(options.server.log); }
  serve::ServerOptions& server_options = options.server;
  server_options.parsers = std::clamp(thread_count() / 4, 2, 8);
  server_options.front.ahead_tokens = 2 * options.engine.max_step_tokens;
  server_options.front.ahead_most = server_options.front.sequences = options.engine.max_sequences;
  server_options.metric_prefix = options.metric_names == "vllm" ? "vllm:" : "octet_";
  server_options.any_host = !server_options.http.unix_socket.empty() || !is_loopback(server_options.http.address);
  if (server_options.keys.empty() && server_options.http.unix_socket.empty() &&
      !is_loopback(server_options.http.address))
    log_warning("anyone who can reach {} may use the server: give --api-keys to require a key",
                server_options.http.address);
  raise_file_limit(server_options.http.max_connections);
  // The server ends before what it serves.
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Engine> engine;
  serve::ApiModel model;
  serve::ResponseStore responses({.responses = options.responses, .bytes = options.responses << 18});
  std::optional<serve::Server> server;
  const auto identity = find_identity([](const char* name) { return std::getenv(name); });
  const bool follows = identity && identity->size > 1 && identity->rank > 0;  // another rank answers
  if (!follows) server.emplace(server_options);  // a port that is taken is told before the model loads
  const std::string url = server ? url_of(server_options.http, server->port()) : "";
  if (server) log_info("listening at {}: 503 until the model is loaded", url);
  tokenizer = load_tokenizer(options.engine.tokenizer.empty() ? tokenizer_folder(folder) : options.engine.tokenizer);
  EnginePlan plan;
  options.engine.planned = [&plan](const EnginePlan& planned) { plan = planned; };
  engine = Engine::open(folder, options.engine);
  if (engine == nullptr || !server) return;  // another rank's process
  if (options.names.empty())
    options.names = {std::filesystem::path(folder).lexically_normal().filename().string(), options.model};
  model.engine = engine.get(), model.tokenizer = tokenizer.get(), model.names = options.names;
  for (const std::string& name : options.names)
    check(!options.engine.adapters.contains(name), ErrorCode::kInvalidArgument,
          "--adapter {}: the model itself is called so (want another name, or --served-model-name)", name);
  model.adapter_root = options.adapter_root;
  model.created = serve::unix_seconds(), model.version = version_text("octet");
  serve::read_generation_config(folder, model.sampling);
  if (engine->encoder() == nullptr) serve::read_chat(tokenizer_folder(folder), options.chat_template, model);
  if (options.trust_templates) model.request_templates = std::make_shared<serve::TemplateCache>();
  if (engine->encoder() == nullptr) model.trie = make_token_trie(*tokenizer);
  if (!options.reply_format.empty()) model.reply_format = options.reply_format;
  model.open_tool_schemas = options.open_tool_schemas;
  if (options.responses > 0) model.responses = &responses;
  tell_start(model, plan, options.chat_template);
  server->open(model);
  log_info("serving {} at {}", model.names[0], url);
  while (signals.wait() == SIGHUP) {
    try {
      server->reload();
      log_info("reloaded the API keys and the certificate, reopened the access log");
    } catch (const Error& error) {
      log_warning("keeping the previous API keys and certificate: {}", error.what());
    }
  }
  end_server(*server, signals, options);
}

}  // namespace

void add_serve_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  SettingsTable engine = settings_of(options->engine);
  engine.row("random_weights").info.meaning =
      "random weights, for benchmarks: the model may be a named one (llama3-8b)";
  serve::ServerOptions& server = options->server;
  auto* command = app.add_subcommand("serve", "Serve a model over HTTP, as OpenAI's clients expect it");
  command->footer(R"(Examples:
  octet serve out/run --port 8000
  curl localhost:8000/v1/models
  octet serve path/to/model --draft ngram --draft-tokens 8
  octet serve path/to/model --adapter sql=out/sql --adapter chat=out/chat
  octet serve path/to/model --new-api-key alice 2>> keys.jsonl
  octet serve path/to/model --host 0.0.0.0 --api-keys keys.jsonl --ssl-certfile chain.pem --ssl-keyfile key.pem
SIGTERM ends it: /readyz is 503 at once, after --drain-delay nothing new is taken, after --drain-timeout what still
runs is cut off; a second SIGTERM cuts off at once. SIGHUP reads keys and certificate again and reopens
the access log.)");
  add_model_option(*command, options->model);
  add_options(*command, engine, {"tokenizer", "task", "pooling"});
  command->add_option("--served-model-name", options->names, "names that requests may give (default: the folder's)");
  add_adapter_option(*command, options->engine, "Requests name it as their model.");
  command
      ->add_option("--adapter-root", options->adapter_root,
                   "a folder below which an admin's key may load adapters (/v1/load_lora_adapter)")
      ->default_str("");
  command->add_option("--chat-template", options->chat_template, "a Jinja file (default: the folder's)")
      ->default_str("");
  command->add_flag("--trust-request-chat-template", options->trust_templates,
                    "requests may bring a chat template of their own");
  command
      ->add_option("--tool-calls", options->reply_format,
                   "how the model writes them (default: found from the template)")
      ->check(CLI::IsMember(reply_formats()));
  command->add_flag("--open-tool-schemas", options->open_tool_schemas,
                    "arguments of tools may have members that their schemas do not name");
  command->add_option("--host", server.http.address, "address to listen at");
  command->add_option("--port", server.http.port, "port to listen at; 0 takes a free one")->check(CLI::Range(0, 65535));
  command->add_option("--uds", server.http.unix_socket, "a UNIX socket to listen at instead")->default_str("");
  command->add_option("--allow-host", server.hosts,
                      "hosts whose pages may ask; at loopback also names that a request may have as its Host");
  command->add_option("--trusted-proxies", server.http.trusted_proxies,
                      "addresses or networks of proxies whose X-Forwarded-For is believed; unix: of the UNIX socket");
  command->add_option("--api-keys", server.keys, "a file of keys, a line of JSON each (--new-api-key makes them)")
      ->default_str("");
  command
      ->add_option("--access-log", server.log.access_log,
                   "a file that gets a line of JSON for every request; - is stderr")
      ->default_str("");
  command
      ->add_option("--otlp-endpoint", options->otlp_endpoint,
                   "a collector of OTLP over HTTP that gets a span for every request, as http://localhost:4318")
      ->default_str("");
  command->add_option("--new-api-key", options->new_key, "make a key for this name, print it, and end")
      ->default_str("");
  command->add_option("--ssl-certfile", server.http.certificate, "PEM certificate chain: TLS")->default_str("");
  command->add_option("--ssl-keyfile", server.http.private_key, "its PEM key")->default_str("");
  command->add_option("--max-waiting", server.front.queue.requests, "requests that may wait")->check(positive());
  command->add_option("--max-wait", server.front.queue.wait, "seconds a request may be expected to wait");
  command
      ->add_option("--response-memory", options->responses,
                   "responses of /v1/responses to keep for each key, 256 KiB each on average; 0: none")
      ->check(CLI::Range(0, 1'000'000));
  command->add_option("--request-timeout", server.request_timeout, "seconds of a completion in the engine; 0: any")
      ->check(not_negative());
  command->add_option("--drain-delay", options->drain_delay, "seconds to serve on after SIGTERM");
  command->add_option("--drain-timeout", options->drain_timeout, "seconds for what runs then");
  command->add_option("--metric-names", options->metric_names, "prefix of /metrics: octet_ or vllm:")
      ->check(CLI::IsMember({"octet", "vllm"}));
  add_options(*command, engine,
              {"context", "recipe", "kv_cache", "max_sequences", "max_step_tokens", "memory_fraction", "draft",
               "draft_tokens", "draft_memory", "random_weights", "device", "tensor"});
  add_threads_option(*command, options->threads);
  add_verbose_option(*command);
  add_other_options(*command, engine, "Engine");
  command->callback([options] { run_serve(*options); });
}

}  // namespace octet
