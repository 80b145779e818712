// octet.Engine of the module: requests from any thread of Python, waited for without the GIL.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "bindings.h"
#include "convert.h"
#include "errors.h"
#include "infer/engine_settings.h"
#include "octet/commands.h"
#include "opened.h"
#include "requests.h"

namespace octet::python {
namespace {

struct Running {
  Task task;
  GenerationStream stream;
};

// Runs `count` requests, a few more than the engine has sequences at once; `next` makes the i-th, `each` hears of its
// events and says whether it has ended. Called with the GIL, which only `next` holds.
template <typename Next, typename Each>
void run_all(Opened& opened, size_t count, const Next& next, const Each& each) {
  const auto ahead = static_cast<size_t>(4 * opened.engine->options().max_sequences);
  const auto bell = std::make_shared<Bell>();
  std::vector<std::optional<GenerationStream>> streams(count);
  size_t begun = 0, ended = 0;
  const nb::gil_scoped_release release;
  Signals signals;
  while (ended < count) {
    for (; begun < count && begun - ended < ahead; ++begun) {
      GenerationRequest request;
      {
        const nb::gil_scoped_acquire gil;
        request = next(begun);
      }
      request.on_news = [bell, begun] { bell->ring(begun); };
      streams[begun].emplace(opened.engine->submit(std::move(request)));
      signals.look();
    }
    for (const size_t i : bell->wait()) {
      if (!streams[i] || !each(i, *streams[i])) continue;
      streams[i].reset();
      ++ended;
    }
    signals.look();
    check(!opened.closing, ErrorCode::kInvalidArgument, "the engine was closed while it worked");
  }
}

std::string place(size_t i, size_t count) { return count == 1 ? "" : fmt::format("prompt {} of {}: ", i + 1, count); }

// `options`: a dict, or a list of one for each prompt.
nb::list run_tasks(const PyEngine& engine, nb::list prompts, nb::object options, bool chat, nb::object progress) {
  const PyEngine::Use opened = engine.use();
  const size_t count = nb::len(prompts);
  const bool each_own = nb::isinstance<nb::list>(options);
  check(!each_own || nb::len(options) == count, ErrorCode::kInvalidArgument, "{} prompts with {} sets of options",
        count, each_own ? nb::len(options) : 1);
  std::vector<Task> tasks(count);
  run_all(
      *opened, count,
      [&](size_t i) {
        try {
          const nb::object own = each_own ? nb::object(options[i]) : options;
          tasks[i] = make_task(*opened, prompts[i], nb::cast<nb::dict>(own), chat);
        } catch (const serve::ApiError& error) {
          throw serve::ApiError(place(i, count) + error.what(), error.field(), error.status(), error.code());
        }
        return std::move(tasks[i].request);
      },
      [&](size_t i, GenerationStream& stream) {
        for (GenerationEvent event; stream.try_next(event);) take(tasks[i], event, place(i, count));
        for (const Text& text : tasks[i].group->texts)
          if (text.finished == FinishReason::kNone) return false;
        tasks[i].group->times = stream.times();
        if (progress.is_none()) return true;
        const nb::gil_scoped_acquire gil;
        progress(1);
        return true;
      });
  nb::list all;
  for (Task& task : tasks) all.append(nb::cast(Generation{std::move(task.group), 0}));
  return all;
}

std::vector<std::vector<float>> encode_all(const PyEngine::Use& opened, std::vector<GenerationRequest> requests) {
  std::vector<std::vector<float>> values(requests.size());
  run_all(
      *opened, requests.size(), [&](size_t i) { return std::move(requests[i]); },
      [&](size_t i, GenerationStream& stream) {
        bool ended = false;
        for (GenerationEvent event; stream.try_next(event);) {
          if (event.finished == FinishReason::kError) throw_event(event, place(i, values.size()));
          ended = event.finished != FinishReason::kNone;
          values[i] = std::move(event.values);
        }
        return ended;
      });
  return values;
}

nb::list list_of(nb::handle one_or_more) {
  nb::list list;
  if (nb::isinstance<nb::str>(one_or_more))
    list.append(one_or_more);
  else
    list.extend(nb::borrow(one_or_more));
  return list;
}

// Requests share what is inside: the engine's threads let it go without the GIL, which a reference to the object wants.
struct PyInbox {
  std::shared_ptr<Inbox> inbox = std::make_shared<Inbox>();
};

// A running request, read by one thread; without its object the engine ends it.
class Stream {
 public:
  Stream(const PyEngine& engine, nb::handle prompt, nb::dict options, bool chat, std::shared_ptr<Inbox> inbox)
      : number_(inbox ? inbox->next_number() : 0) {
    const PyEngine::Use opened = engine.use();
    Task task = make_task(*opened, prompt, options, chat);
    GenerationRequest request = std::move(task.request);
    if (inbox)
      request.on_news = [inbox, number = number_] { inbox->ring(number); };
    else
      request.on_news = [bell = bell_] { bell->ring(0); };
    const nb::gil_scoped_release release;
    running_.emplace(Running{std::move(task), opened->engine->submit(std::move(request))});
  }
  ~Stream() { cancel(); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Events that have come; none: there are no news.
  nb::list take_ready() {
    if (forked()) enter();
    nb::list events;
    if (!running_) return events;
    Task& task = running_->task;
    try {
      for (GenerationEvent event; running_->stream.try_next(event);)
        events.append(nb::cast(Event{event.sample, take(task, event, "")}));
    } catch (...) {
      finish();
      throw;
    }
    if (std::ranges::all_of(task.group->texts, [](const Text& text) { return text.finished != FinishReason::kNone; }))
      finish();
    return events;
  }

  nb::object next() {
    while (nb::len(ready_) == 0) {
      if (!running_) throw nb::stop_iteration();
      enter();
      ready_ = take_ready();
      if (nb::len(ready_) > 0) break;
      if (!running_) throw nb::stop_iteration();
      const std::shared_ptr<Bell> bell = bell_;
      const nb::gil_scoped_release release;
      bell->wait();
      signals_.look();
    }
    return ready_.attr("pop")(0);
  }

  void cancel() {
    if (running_ && forked()) {
      new std::optional<Running>(std::move(running_));  // its engine is in the other process: leaked
      running_.reset();
    }
    finish();
  }
  bool done() const { return !running_ && nb::len(ready_) == 0; }
  bool running() const { return running_.has_value(); }
  size_t number() const { return number_; }
  nb::object result() const {
    check(group_ != nullptr, ErrorCode::kInvalidArgument, "the stream has not ended");
    return nb::cast(Generation{group_, 0});
  }

 private:
  void finish() {
    if (!running_) return;
    group_ = running_->task.group;
    std::optional<Running> last;
    last.swap(running_);
    if (last->stream.times().last_token >= 0) group_->times = last->stream.times();
    for (Text& text : group_->texts)
      if (text.finished == FinishReason::kNone) text.finished = FinishReason::kCancelled;
    const nb::gil_scoped_release release;  // a mask of the request may wait for it
    last.reset();
  }

  const size_t number_;
  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  std::optional<Running> running_;
  std::shared_ptr<Group> group_;
  nb::list ready_;
  Signals signals_;
};

nb::dict stats_of(const PyEngine& engine) {
  const PyEngine::Use opened = engine.use();
  const EngineStats s = opened->engine->stats();
  nb::dict d;
  d["waiting"] = s.waiting, d["running"] = s.running, d["finished"] = s.finished, d["failed"] = s.failed;
  d["cancelled"] = s.cancelled, d["preemptions"] = s.preemptions, d["steps"] = s.steps;
  d["prompt_tokens"] = s.prompt_tokens, d["cached_tokens"] = s.cached_tokens;
  d["generated_tokens"] = s.generated_tokens, d["padded_tokens"] = s.padded_tokens;
  d["kv_blocks"] = s.kv_blocks, d["kv_blocks_used"] = s.kv_blocks_used, d["kv_blocks_cached"] = s.kv_blocks_cached;
  d["kv_bytes"] = s.kv_bytes, d["drafts"] = s.drafts, d["drafted_tokens"] = s.drafted_tokens;
  d["accepted_tokens"] = s.accepted_tokens, d["draft_failed"] = s.draft_failed, d["seconds"] = s.seconds;
  d["host_seconds"] = s.host_seconds, d["wait_seconds"] = s.wait_seconds, d["since_step"] = s.since_step;
  d["in_step"] = s.in_step, d["broken"] = s.broken;
  return d;
}

nb::dict plan_of(const PyEngine& engine) {
  const PyEngine::Use opened = engine.use();
  const EnginePlan& p = opened->plan;
  nb::dict d;
  d["device"] = p.device.c_str(), d["recipe"] = p.recipe.c_str(), d["matrix_elements"] = p.matrix_elements;
  d["weight_bytes"] = p.weight_bytes, d["activation_bytes"] = p.activation_bytes, d["kv_bytes"] = p.kv_bytes;
  d["kv_blocks"] = p.kv_blocks, d["kv_tokens"] = p.kv_tokens, d["context"] = p.context, d["free_bytes"] = p.free_bytes;
  return d;
}

nb::dict options_of(const PyEngine& engine) {
  const PyEngine::Use opened = engine.use();
  EngineOptions options = opened->engine->options();
  const SettingsTable table = settings_of(options);
  nb::dict d;
  for (const SettingsTable::Row& row : table.rows()) {
    if (row.info.by_program) continue;
    const auto value = [&](const auto* field) -> nb::object {
      if constexpr (std::is_same_v<decltype(field), const uint8_t*>)
        return nb::cast(table.get(row.name));
      else
        return nb::cast(*field);
    };
    d[row.name.c_str()] = std::visit([&](auto* field) { return value(std::as_const(field)); }, row.target);
  }
  return d;
}

nb::dict adapters_of(const PyEngine& engine) {
  const PyEngine::Use opened = engine.use();
  nb::dict all;
  for (const AdapterFacts& one : opened->engine->adapters()) {
    nb::dict d;
    d["folder"] = one.folder, d["rank"] = one.rank, d["virtual_tokens"] = one.virtual_tokens;
    d["waiting"] = one.waiting, d["running"] = one.running;
    all[one.name.c_str()] = d;
  }
  return all;
}

void load_adapter(const PyEngine& engine, const std::string& name, nb::handle folder, bool replace) {
  const PyEngine::Use opened = engine.use();
  const std::string path = path_of(folder);
  const nb::gil_scoped_release release;
  opened->engine->load_adapter(name, model_folder(path), replace);
}

constexpr const char* kPrompt = "str | Sequence[int] | Mapping[str, Any]";

std::string method(const char* name, const char* first, const std::string& options, const char* result) {
  return fmt::format("def {}(self, {}{}) -> {}", name, first, options, result);
}

void bind_requests(nb::class_<PyEngine>& engine, bool chat) {
  const char* name = chat ? "chat" : "generate";
  const std::string one = chat ? "messages: Sequence[Mapping[str, Any]]" : fmt::format("prompt: {}", kPrompt);
  const std::string more =
      chat ? "messages: Sequence[Sequence[Mapping[str, Any]]]" : fmt::format("prompt: Sequence[{}]", kPrompt);
  const std::string options = request_signature(chat);
  static std::deque<std::string> kept;  // of signatures
  const auto keep = [](std::string text) { return kept.emplace_back(std::move(text)).c_str(); };
  const char* doc = keep(std::string(chat ? "The reply to messages, or to each of several conversations.\n\n"
                                          : "The text behind a prompt, or behind each of several.\n\n") +
                         request_doc(chat));
  engine.def(
      name,
      [chat](const PyEngine& self, nb::object prompt, nb::kwargs options) -> nb::object {
        if (is_batch(prompt, chat)) throw nb::next_overload();
        nb::list prompts;
        prompts.append(prompt);
        return run_tasks(self, prompts, options, chat, nb::none())[0];
      },
      nb::sig(keep(method(name, one.c_str(), options, "Generation"))), doc);
  engine.def(
      name,
      [chat](const PyEngine& self, nb::object prompts, nb::kwargs options) {
        nb::list list;
        list.extend(prompts);
        return run_tasks(self, list, options, chat, nb::none());
      },
      nb::sig(keep(method(name, more.c_str(), options, "list[Generation]"))));
  engine.def(
      chat ? "chat_stream" : "stream",
      [chat](const PyEngine& self, nb::object prompt, nb::kwargs options) {
        check(!is_batch(prompt, chat), ErrorCode::kInvalidArgument, "a stream is of one prompt: open one for each");
        return std::make_unique<Stream>(self, prompt, options, chat, nullptr);
      },
      nb::sig(keep(method(chat ? "chat_stream" : "stream", one.c_str(), options, "Stream"))),
      chat ? "chat() as an iterator of events; where that goes the request ends."
           : "generate() as an iterator of events; where that goes the request ends.");
}

}  // namespace

void bind_engine(nb::module_& module) {
  nb::class_<PyInbox>(module, "Inbox", "News of streams for an event loop.")
      .def(nb::init<>())
      .def("fileno", [](const PyInbox& self) { return self.inbox->fd(); })
      .def(
          "take", [](const PyInbox& self) { return self.inbox->take(); }, "numbers of streams that have news");
  nb::class_<Stream>(module, "Stream", "An iterator of a request's events. Used by one thread at a time.")
      .def(
          "__iter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __iter__(self) -> Stream"))
      .def("__next__", &Stream::next, nb::sig("def __next__(self) -> Event"))
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> Stream"))
      .def(
          "__exit__", [](Stream& self, nb::args) { self.cancel(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("take", &Stream::take_ready, nb::sig("def take(self) -> list[Event]"),
           "events that have come, without waiting")
      .def("cancel", &Stream::cancel, "ends the request; it is no error when it has ended")
      .def_prop_ro("done", &Stream::done, "whether every event was given")
      .def_prop_ro("running", &Stream::running)
      .def_prop_ro("number", &Stream::number, "in its inbox")
      .def_prop_ro("result", &Stream::result, nb::sig("def result(self) -> Generation"),
                   "the whole, once the stream has ended");
  static const std::string init = engine_signature(), doc = engine_doc();
  nb::class_<PyEngine> engine(module, "Engine", doc.c_str());
  engine.def(
      "__init__", [](PyEngine* self, nb::object path, nb::kwargs options) { new (self) PyEngine(path, options); },
      nb::sig(init.c_str()));
  for (const bool chat : {false, true}) bind_requests(engine, chat);
  engine
      .def("run_tasks", &run_tasks, nb::arg("prompts"), nb::arg("options"), nb::arg("chat"), nb::arg("progress").none(),
           nb::sig("def run_tasks(self, prompts: list[Any], options: Any, chat: bool, progress: Any = None) -> "
                   "list[Generation]"),
           "generate() or chat() of a list with options for all or a list of them")
      .def(
          "open_stream",
          [](const PyEngine& self, nb::object prompt, nb::dict options, bool chat, const PyInbox& news) {
            return std::make_unique<Stream>(self, prompt, options, chat, news.inbox);
          },
          nb::sig("def open_stream(self, prompt: Any, options: dict[str, Any], chat: bool, inbox: Inbox) -> Stream"))
      .def(
          "embed",
          [](const PyEngine& self, nb::object input, nb::kwargs options) -> nb::object {
            const PyEngine::Use opened = self.use();
            const bool one = nb::isinstance<nb::str>(input);
            nb::object all = nb::cast(encode_all(opened, embedding_requests(*opened, list_of(input), options)));
            return one ? nb::object(all[0]) : all;
          },
          nb::sig("def embed(self, input: str | Sequence[str | Sequence[int]], *, dimensions: int | None = None, "
                  "normalize: bool | None = None, prompt_name: str | None = None, truncate_prompt_tokens: int | None = "
                  "None) -> Any"),
          "The embedding of a text as a list of floats, or a list of them for a list of texts or token ids.")
      .def(
          "score",
          [](const PyEngine& self, nb::object left, nb::object right, nb::kwargs options) -> nb::object {
            const PyEngine::Use opened = self.use();
            const bool one = nb::isinstance<nb::str>(left) && nb::isinstance<nb::str>(right);
            const Pairs pairs = score_requests(*opened, list_of(left), list_of(right), options);
            nb::object all = nb::cast(pairs.scores(encode_all(opened, pairs.requests)));
            return one ? nb::object(all[0]) : all;
          },
          nb::sig("def score(self, left: str | Sequence[str], right: str | Sequence[str], *, truncate_prompt_tokens: "
                  "int | None = None) -> Any"),
          "The score of a pair of texts, or a list of them: of a cross encoder its class, else the cosine of "
          "embeddings.")
      .def("stats", &stats_of, nb::sig("def stats(self) -> dict[str, Any]"), "counts and seconds since the start")
      .def("load_adapter", &load_adapter, nb::arg("name"), nb::arg("folder"), nb::kw_only(), nb::arg("replace") = false,
           nb::sig(
               "def load_adapter(self, name: str, folder: str | os.PathLike[str], *, replace: bool = False) -> None"),
           "Loads an adapter while requests run. Wants an engine with adapters=, or max_adapters=.")
      .def(
          "unload_adapter",
          [](const PyEngine& self, const std::string& name) {
            const PyEngine::Use opened = self.use();
            const nb::gil_scoped_release release;
            opened->engine->unload_adapter(name);
          },
          nb::arg("name"), nb::sig("def unload_adapter(self, name: str) -> None"),
          "Its running requests end with it; later ones that name it are refused.")
      .def_prop_ro("adapters", &adapters_of, nb::sig("def adapters(self) -> dict[str, dict[str, Any]]"),
                   "loaded adapters by name: folder, rank, virtual_tokens, waiting and running requests")
      .def_prop_ro("plan", &plan_of, nb::sig("def plan(self) -> dict[str, Any]"), "bytes as planned before loading")
      .def_prop_ro("options", &options_of, nb::sig("def options(self) -> dict[str, Any]"),
                   "as given, with what was chosen")
      .def_prop_ro(
          "context", [](const PyEngine& self) { return self.use()->engine->context(); },
          nb::sig("def context(self) -> int"), "maximum tokens of a sequence")
      .def_prop_ro(
          "vocab_size", [](const PyEngine& self) { return self.use()->engine->vocab_size(); },
          nb::sig("def vocab_size(self) -> int"))
      .def_prop_ro(
          "folder", [](const PyEngine& self) { return self.use()->folder; }, nb::sig("def folder(self) -> str"))
      .def_prop_ro("closed", &PyEngine::closed)
      .def("close", &PyEngine::close, "Ends all requests and gives the memory back.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> Self"))
      .def(
          "__exit__", [](PyEngine& self, nb::args) { self.close(); },
          nb::sig("def __exit__(self, *args: object) -> None"));
}

}  // namespace octet::python
