#include "opened.h"

#include <unistd.h>

#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "chat/reply_parser.h"
#include "convert.h"
#include "infer/engine_settings.h"
#include "octet/commands.h"

namespace octet::python {
namespace {

struct Options {
  EngineOptions engine;
  std::string chat_template, tool_calls;
  int64_t threads = 0;
  bool open_tool_schemas = false;
};

SettingsTable table_of(Options& options) {
  SettingsTable table = settings_of(options.engine);
  std::vector<std::string> formats = {""};
  formats.insert(formats.end(), reply_formats().begin(), reply_formats().end());
  table.add("chat_template", &options.chat_template, {.meaning = "a Jinja file (default: the folder's)"});
  table.add("tool_calls", &options.tool_calls,
            {.meaning = "how the model writes calls of tools (default: found from the template)", .choices = formats});
  table.add("open_tool_schemas", &options.open_tool_schemas,
            {.meaning = "arguments of tools may have members that their schemas do not name"});
  table.add("threads", &options.threads,
            {.meaning = "CPU threads of this process; 0: all cores, or OMP_NUM_THREADS", .min = 0, .max = 4096});
  return table;
}

// adapters={"name": folder, ...}, taken out of the options.
std::map<std::string, std::string> take_adapters(nb::dict& options) {
  std::map<std::string, std::string> adapters;
  const nb::object given = options.attr("pop")("adapters", nb::none());
  if (given.is_none()) return adapters;
  check(nb::isinstance<nb::dict>(given), ErrorCode::kInvalidArgument,
        "octet.Engine: adapters: {} (want a dict of names and folders)", text_of(nb::repr(given)));
  for (const auto& [name, folder] : nb::borrow<nb::dict>(given)) adapters[text_of(name)] = path_of(folder);
  return adapters;
}

std::shared_ptr<Opened> open(const std::string& path, Options options, const std::atomic<bool>& stop) {
  auto opened = std::make_shared<Opened>();
  EngineOptions& engine = options.engine;
  opened->folder = resolve_models(path, engine);
  for (auto& [name, folder] : engine.adapters) folder = model_folder(folder);
  engine.needs_tokenizer = false;  // requests of text say that there is none
  engine.planned = [&](const EnginePlan& plan) {
    opened->plan = plan;
    check(!stop, ErrorCode::kInternal, "interrupted");
  };
  if (options.threads > 0) set_thread_count(static_cast<int>(options.threads));
  opened->engine = Engine::open(opened->folder, engine);
  if (opened->engine == nullptr) return nullptr;  // another rank's process
  try {
    opened->tokenizer = load_tokenizer(engine.tokenizer.empty() ? opened->folder : engine.tokenizer);
  } catch (const Error&) {  // the engine has told of it, or thrown
  }
  serve::ApiModel& model = opened->model;
  model.engine = opened->engine.get(), model.tokenizer = opened->tokenizer.get(), model.names = {opened->folder};
  model.max_texts = int64_t{1} << 20;
  model.created = serve::unix_seconds();
  model.request_templates = std::make_shared<serve::TemplateCache>();
  model.open_tool_schemas = options.open_tool_schemas;
  serve::read_generation_config(opened->folder, model.sampling);
  if (model.engine->encoder() == nullptr && model.tokenizer != nullptr) {
    serve::read_chat(opened->folder, options.chat_template, model);
    model.trie = make_token_trie(*model.tokenizer);
  }
  if (!options.tool_calls.empty()) model.reply_format = options.tool_calls;
  return opened;
}

}  // namespace

Opened::~Opened() {
  if (!forked()) return;
  (void)engine.release();  // its threads are in the other process
  (void)tokenizer.release();
}

PyEngine::PyEngine(nb::handle path, nb::dict options) {
  enter();
  const std::string model = path_of(path);
  Options read;
  SettingsTable table = table_of(read);
  read.engine.adapters = take_adapters(options);
  set_all(table, options, "octet.Engine");
  const auto result = std::make_shared<std::shared_ptr<Opened>>();
  run_apart([result, model, read](const std::atomic<bool>& stop) { *result = open(model, read, stop); },
            /*patient=*/false);
  if (*result == nullptr) {
    PyErr_SetNone(PyExc_SystemExit);  // what a launcher started for rank 0's engine has done its work
    throw nb::python_error();
  }
  opened_ = *result;
  at_end_ = at_end([this] {
    const std::weak_ptr<Opened> gone = opened_;
    close();
    const nb::gil_scoped_release release;
    for (int i = 0; i < 500 && !gone.expired(); ++i)
      std::this_thread::sleep_for(Signals::kSlice / 5);  // other threads'
  });
}

void PyEngine::close() {
  at_end_.reset();
  if (opened_ == nullptr) return;
  opened_->closing = true;
  std::shared_ptr<Opened> last = std::move(opened_);
  const nb::gil_scoped_release release;  // masks of running requests want it
  last.reset();
}

PyEngine::Use::~Use() {
  if (opened_ == nullptr) return;
  const nb::gil_scoped_release release;
  opened_.reset();
}

PyEngine::Use PyEngine::use() const {
  enter();
  check(!closed(), ErrorCode::kInvalidArgument, "the engine is closed");
  return Use(opened_);
}

std::shared_ptr<Opened> PyEngine::share() const {
  enter();
  check(!closed(), ErrorCode::kInvalidArgument, "the engine is closed");
  return opened_;
}

std::string engine_signature() {
  Options options;
  return "def __init__(self, path: str | os.PathLike[str]" + signature_of(table_of(options)) +
         ", adapters: Mapping[str, str | os.PathLike[str]] | None = None) -> None";
}

std::string engine_doc() {
  Options options;
  return "An engine over a model: a Hugging Face folder, a run, a checkpoint or a llama2.c file.\n\n"
         "A context manager; its options are keyword arguments:\n\n" +
         doc_of(table_of(options)) +
         "    adapters: folders of adapters (PEFT's, or runs) by the names that requests give them\n";
}

}  // namespace octet::python
