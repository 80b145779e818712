// octet.serve: the server of `octet serve` over an engine of this process. Its threads know nothing of Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/threads.h"
#include "bindings.h"
#include "build_info.h"
#include "convert.h"
#include "opened.h"
#include "process.h"
#include "serve/response_store.h"
#include "serve/server.h"

namespace octet::python {
namespace {

struct Options {
  serve::ServerOptions server;
  std::vector<std::string> names;
  std::string metric_names = "octet";
  int64_t port = 8000, responses = 0;
  bool trust_templates = false;
};

SettingsTable table_of(Options& o) {
  SettingsTable table;
  serve::HttpOptions& http = o.server.http;
  table.add("host", &http.address, {.meaning = "address to listen at"});
  table.add("port", &o.port, {.meaning = "port to listen at; 0 takes a free one", .min = 0, .max = 65535});
  table.add("uds", &http.unix_socket, {.meaning = "a UNIX socket to listen at instead"});
  table.add("api_keys", &o.server.keys, {.meaning = "a file of keys, a line of JSON each (octet serve --new-api-key)"});
  table.add("ssl_certfile", &http.certificate, {.meaning = "PEM certificate chain: TLS"});
  table.add("ssl_keyfile", &http.private_key, {.meaning = "its PEM key"});
  table.add("served_model_name", &o.names, {.meaning = "names that requests may give (default: the folder's)"});
  table.add("allow_host", &o.server.hosts, {.meaning = "hosts whose pages may ask"});
  table.add("access_log", &o.server.log.access_log,
            {.meaning = "a file that gets a line of JSON for every request; - is stderr"});
  table.add("max_waiting", &o.server.front.queue.requests, {.meaning = "requests that may wait", .min = 1});
  table.add("max_wait", &o.server.front.queue.wait, {.meaning = "seconds a request may be expected to wait", .min = 0});
  table.add("request_timeout", &o.server.request_timeout,
            {.meaning = "seconds of a text in the engine; 0: any", .min = 0});
  table.add("response_memory", &o.responses,
            {.meaning = "responses of /v1/responses to keep for each key; 0: none", .min = 0, .max = 1'000'000});
  table.add("trust_request_chat_template", &o.trust_templates,
            {.meaning = "requests may bring a chat template of their own"});
  table.add("metric_names", &o.metric_names, {.meaning = "prefix of /metrics", .choices = {"octet", "vllm"}});
  return table;
}

class PyServer {
 public:
  PyServer(std::shared_ptr<Opened> opened, Options options) : opened_(std::move(opened)) {
    const nb::gil_scoped_release release;
    serve::ServerOptions& server = options.server;
    server.http.port = static_cast<int>(options.port);
    server.parsers = std::clamp(thread_count() / 4, 2, 8);
    const EngineOptions& engine = opened_->engine->options();
    server.front.ahead_tokens = 2 * engine.max_step_tokens;
    server.front.ahead_most = server.front.sequences = engine.max_sequences;
    server.metric_prefix = options.metric_names == "vllm" ? "vllm:" : "octet_";
    const std::string& host = server.http.address;
    server.any_host =
        !server.http.unix_socket.empty() || !(host == "localhost" || host == "::1" || host.starts_with("127."));
    check(opened_->tokenizer != nullptr, ErrorCode::kInvalidArgument,
          "octet.serve: {} has no tokenizer: open the engine with tokenizer=FOLDER", opened_->folder);
    model_ = opened_->model;
    if (options.names.empty())
      options.names = {std::filesystem::path(opened_->folder).lexically_normal().filename().string(), opened_->folder};
    model_.names = options.names, model_.version = version_text("octet");
    model_.max_texts = serve::ApiModel().max_texts;
    if (!options.trust_templates) model_.request_templates = nullptr;
    responses_ = std::make_unique<serve::ResponseStore>(
        serve::ResponseStore::Bounds{.responses = options.responses, .bytes = options.responses << 18});
    if (options.responses > 0) model_.responses = responses_.get();
    server_ = std::make_unique<serve::Server>(server);
    server_->open(model_);
    const bool bare = host.find(':') != std::string::npos && !host.starts_with('[');  // IPv6
    url_ = !server.http.unix_socket.empty()
               ? server.http.unix_socket
               : fmt::format("{}://{}:{}", server.http.certificate.empty() ? "http" : "https",
                             bare ? "[" + host + "]" : host, server_->port());
    at_end_ = at_end([this] { close(0); });
  }
  ~PyServer() {
    if (forked())
      (void)server_.release();  // its threads are in the other process
    else
      close(0);
  }
  PyServer(const PyServer&) = delete;
  PyServer& operator=(const PyServer&) = delete;

  // Nothing new is taken; what runs has so many seconds to end.
  void close(double drain) {
    at_end_.reset();
    if (server_ == nullptr) return;
    {
      const nb::gil_scoped_release release;
      Signals signals;
      server_->set_unready();
      server_->drain();
      const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(drain);
      while (server_->running() > 0 && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(Signals::kSlice / 5);
        signals.look();
      }
      server_->end_all(2);
      server_.reset();
    }
    opened_.reset();
  }
  void wait() const {
    const nb::gil_scoped_release release;
    for (Signals signals; server_ != nullptr; signals.look()) std::this_thread::sleep_for(Signals::kSlice);
  }
  serve::Server& get() const {
    enter();
    check(server_ != nullptr, ErrorCode::kInvalidArgument, "the server is closed");
    return *server_;
  }
  const std::string& url() const { return url_; }
  bool closed() const { return server_ == nullptr; }

 private:
  std::shared_ptr<Opened> opened_;
  serve::ApiModel model_;
  std::unique_ptr<serve::ResponseStore> responses_;
  std::unique_ptr<serve::Server> server_;
  std::string url_;
  std::shared_ptr<void> at_end_;
};

std::unique_ptr<PyServer> serve_model(nb::object model, nb::kwargs given) {
  enter();
  Options options;
  SettingsTable table = table_of(options);
  nb::dict own;
  nb::dict others;
  for (const auto& [name, value] : given) {
    bool known = false;
    for (const SettingsTable::Row& row : table.rows()) known |= row.name == text_of(name);
    (known ? own : others)[name] = value;
  }
  set_all(table, own, "octet.serve");
  if (!nb::isinstance<PyEngine>(model)) {  // an engine of its own
    const nb::object path = nb::module_::import_("octet.engine").attr("find_model")(model);
    const PyEngine engine(path, others);
    return std::make_unique<PyServer>(engine.share(), std::move(options));
  }
  check(nb::len(others) == 0, ErrorCode::kInvalidArgument, "octet.serve: {} is for an engine that is not open yet",
        text_of(nb::repr(others.attr("keys")())));
  return std::make_unique<PyServer>(nb::cast<const PyEngine&>(model).share(), std::move(options));
}

}  // namespace

void bind_serve(nb::module_& module) {
  nb::class_<PyServer>(module, "Server",
                       "A server that runs, in threads of this process; in a with block until its end.")
      .def_prop_ro("url", &PyServer::url)
      .def_prop_ro("port", [](const PyServer& self) { return self.get().port(); })
      .def_prop_ro(
          "running", [](const PyServer& self) { return self.get().running(); }, "requests whose reply has not ended")
      .def_prop_ro("closed", &PyServer::closed)
      .def(
          "reload", [](const PyServer& self) { self.get().reload(); },
          "reads API keys and certificate anew, reopens the access log")
      .def("wait", &PyServer::wait, "until the server is closed, or Ctrl-C")
      .def("close", &PyServer::close, nb::arg("drain") = 30.0,
           "takes nothing new, gives what runs so many seconds, and ends it")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> Self"))
      .def(
          "__exit__", [](PyServer& self, nb::args) { self.close(30); },
          nb::sig("def __exit__(self, *args: object) -> None"));
  static Options defaults;
  static const SettingsTable table = table_of(defaults);
  static const std::string signature =
      "def serve(model: Engine | str | os.PathLike[str]" + signature_of(table) + ", **engine: Any) -> Server";
  static const std::string doc =
      "Serves an engine, or a model by its path, over HTTP as `octet serve` does (docs/server.md), and returns at "
      "once.\n\n"
      "Of a path, options of Engine may stand beside these:\n\n" +
      doc_of(table);
  module.def("serve", &serve_model, nb::arg("model"), nb::arg("options"), nb::sig(signature.c_str()), doc.c_str());
}

}  // namespace octet::python
