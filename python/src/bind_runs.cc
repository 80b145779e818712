// Training runs step by step, plans and evaluations.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/threads.h"
#include "bindings.h"
#include "build_info.h"
#include "convert.h"
#include "octet/commands.h"
#include "octet/evaluate.h"
#include "process.h"
#include "row_data.h"
#include "train/plan_report.h"
#include "train/stage_report.h"
#include "train/trainer.h"
#include "tune/search_report.h"

namespace octet::python {
namespace {

// Nested dicts name settings as the YAML file's maps do; "__" of a keyword argument stands for ".".
void set_nested(SettingsTable& settings, nb::dict values, const std::string& prefix, const std::string& where) {
  for (const auto& [key, value] : values) {
    std::string name = prefix + text_of(key);
    for (size_t at = 0; (at = name.find("__", at)) != std::string::npos;) name.replace(at, 2, ".");
    if (nb::isinstance<nb::dict>(value))
      set_nested(settings, nb::borrow<nb::dict>(value), name + ".", where);
    else if (!value.is_none())
      settings.set(name, setting_text(value, where + ": " + name), where);
  }
}

// `config`: a YAML file, a dict of settings or None; `values` override it.
void fill(SettingsTable& settings, nb::object config, nb::dict values, const std::string& where) {
  if (nb::isinstance<nb::dict>(config))
    set_nested(settings, nb::borrow<nb::dict>(config), "", where);
  else if (!config.is_none())
    settings.load_yaml_file(path_of(config));
  set_nested(settings, values, "", where);
}

RunConfig defaults_for(nb::object config, nb::dict values, const std::string& where) {
  RunConfig named;
  SettingsTable settings = settings_of(named);
  fill(settings, config, values, where);
  return default_settings(named.workload);
}

RunConfig read_config(nb::object config, nb::dict values, const std::string& where) {
  RunConfig read = defaults_for(config, values, where);
  SettingsTable settings = settings_of(read);
  fill(settings, config, values, where);
  check(!config.is_none() || nb::len(values) > 0, ErrorCode::kInvalidArgument,
        "{}: want a settings file, a dict of settings or keyword arguments, such as model__size=\"gpt2-124m\"", where);
  check(read.restarts == 0, ErrorCode::kInvalidArgument,
        "parallel.restarts={}: starts the program anew, which only octet train does", read.restarts);
  for (std::string* folder : {&read.model_from, &read.dpo.reference})
    if (!folder->empty()) *folder = model_folder(*folder);
  return read;
}

struct Step {
  RunState run;
  double loss = 0, grad_norm = 0;
  bool finite = true;
  int64_t targets = 0;
};

nb::dict dict_of(const Step& step) {
  nb::dict d;
  d["step"] = step.run.step, d["loss"] = step.loss, d["grad_norm"] = step.grad_norm, d["finite"] = step.finite;
  d["targets"] = step.targets, d["total_targets"] = step.run.targets, d["skipped_steps"] = step.run.skipped_steps;
  return d;
}

nb::dict dict_of(const TrainResult& result) {
  nb::dict d;
  const auto metric = [&](int64_t step, double value) -> nb::object {
    if (step == 0) return nb::none();
    return nb::float_(value);
  };
  d["step"] = result.run.step, d["loss"] = result.last_loss, d["targets"] = result.run.targets;
  d["skipped_steps"] = result.run.skipped_steps, d["interrupted"] = result.interrupted;
  d["checkpoint"] = result.checkpoint.empty() ? nb::object(nb::none()) : nb::cast(result.checkpoint);
  d["metric"] = result.metric.name;
  d["best"] = metric(result.run.best_step, result.run.best_metric), d["best_step"] = result.run.best_step;
  d["unit"] = result.unit.many(), d["units_per_second"] = result.units_per_second, d["seconds"] = result.seconds;
  d["data_seconds"] = result.data_seconds, d["planned_bytes"] = result.planned_bytes;
  d["allocated_bytes"] = result.allocated_bytes, d["left_over"] = result.left_over;
  return d;
}

// train() in a thread of its own, which waits behind each step until the next one is asked for.
class PyRun {
 public:
  PyRun(nb::object config, nb::dict values) : shared_(std::make_shared<Shared>()) {
    enter();
    const nb::object rows = values.attr("pop")("rows", nb::none());
    shared_->config = read_config(config, values, "octet.Run");
    if (!rows.is_none()) take_rows(rows);
    const std::shared_ptr<Shared> shared = shared_;
    at_end_ = at_end([weak = std::weak_ptr<Shared>(shared)] {
      if (const auto one = weak.lock()) one->end();
    });
  }
  ~PyRun() { shared_->end(); }
  PyRun(const PyRun&) = delete;
  PyRun& operator=(const PyRun&) = delete;

  nb::object next() {
    enter();
    start();
    await([](const Shared& shared) { return shared.step || shared.done; }, /*go=*/true);
    std::optional<Step> step;
    {
      const std::lock_guard lock(shared_->mutex);
      step.swap(shared_->step);
    }
    if (step) return dict_of(*step);
    rethrow();
    throw nb::stop_iteration();
  }
  // The run ends behind the step under way, with a checkpoint.
  void stop() { shared_->end(); }
  nb::object finish() {
    enter();
    start();
    stop();
    await([](const Shared& shared) { return shared.done; }, /*go=*/true);
    rethrow();
    return result();
  }
  nb::object result() const {
    const std::lock_guard lock(shared_->mutex);
    if (!shared_->done || shared_->error) return nb::none();
    return dict_of(shared_->result);
  }
  bool done() const {
    const std::lock_guard lock(shared_->mutex);
    return shared_->done;
  }
  bool started() const { return started_; }

 private:
  struct Shared {
    RunConfig config;
    std::shared_ptr<RowSource> rows;  // none: the data is files
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Step> step;  // made, not yet taken
    bool go = false;           // another one is wanted
    bool done = false;
    std::atomic<bool> stop = false;
    std::exception_ptr error;
    TrainResult result;

    void end() {
      stop = true;
      const std::lock_guard lock(mutex);
      changed.notify_all();
    }
    void on_step(const RunState& run, const StepResult& result) {
      std::unique_lock lock(mutex);
      go = false;
      step = Step{run, result.loss, result.grad_norm, result.finite, result.targets};
      changed.notify_all();
      changed.wait(lock, [&] { return go || stop; });
    }
  };

  void take_rows(nb::handle rows) {
    RunConfig& config = shared_->config;
    check(config.train_data.empty(), ErrorCode::kInvalidArgument,
          "octet.Run: rows= and data.train={} are two sources of data: leave one out", config.train_data);
    check(config.workload == "language" && config.objective == "next_token", ErrorCode::kUnsupported,
          "octet.Run: rows= is for language modelling, not for workload={} train.objective={}", config.workload,
          config.objective);
    shared_->rows = open_rows(rows, config.train_data);
  }

  void start() {
    if (std::exchange(started_, true)) return;
    start_thread([shared = shared_] {
      const TrainHooks hooks{
          .workload = shared->rows != nullptr ? &kRowData : nullptr,
          .on_step = [&](const RunState& run, const StepResult& result) { shared->on_step(run, result); },
          .build = version_text("octet"),
          .stop = [&] { return shared->stop.load(); }};
      TrainResult result;
      std::exception_ptr error;
      try {
        result = train(shared->config, hooks);
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(shared->mutex);
      shared->result = std::move(result), shared->error = error, shared->done = true;
      shared->changed.notify_all();
    });
  }

  // After Ctrl-C the run ends with its checkpoint first; a second Ctrl-C leaves it to end alone.
  template <typename Ready>
  void await(const Ready& ready, bool go) {
    const std::shared_ptr<Shared> shared = shared_;
    std::exception_ptr interrupt;
    const nb::gil_scoped_release release;
    Signals signals;
    std::unique_lock lock(shared->mutex);
    if (go && !shared->step) shared->go = true, shared->changed.notify_all();
    while (!shared->changed.wait_for(lock, Signals::kSlice,
                                     [&] { return shared->done || (!interrupt && ready(*shared)); })) {
      lock.unlock();
      try {
        signals.look();
      } catch (const nb::python_error&) {
        shared->end();
        if (interrupt) throw;
        interrupt = std::current_exception();
      }
      lock.lock();
    }
    if (interrupt) std::rethrow_exception(interrupt);
  }

  void rethrow() const {
    if (!shared_->error || std::exchange(told_, true)) return;
    std::rethrow_exception(shared_->error);
  }

  const std::shared_ptr<Shared> shared_;
  std::shared_ptr<void> at_end_;
  bool started_ = false;
  mutable bool told_ = false;
};

nb::object plan(nb::object config, const std::string& target_name, nb::kwargs values) {
  enter();
  const RunConfig read = read_config(config, values, "octet.plan");
  const Target target = find_target(target_name);
  const auto json = std::make_shared<std::string>();
  run_apart(
      [json, read, target](const std::atomic<bool>&) {
        set_thread_count(static_cast<int>(read.threads));
        validate(read);
        const std::unique_ptr<TrainingWorkload> workload = workload_row(read).plan(read);
        *json = read.pipeline > 1 ? to_json(plan_stages(*workload, read, target))
                                  : to_json(plan_training(*workload, read, target));
      },
      /*patient=*/false);
  nb::object report = to_python(nlohmann::ordered_json::parse(*json));
  return report;
}

nb::object tune_train(nb::object config, int64_t gpus, const std::string& target_name, int64_t rows, double margin,
                      nb::object nodes_of, nb::kwargs values) {
  enter();
  const std::string where = "octet.tune_train";
  const RunConfig read = read_config(config, values, where);
  check(gpus >= 1 && rows >= 1 && margin >= 0 && margin < 1, ErrorCode::kInvalidArgument,
        "{}: gpus {}, rows {}, margin {} (want 1 or more, 1 or more, 0 to below 1)", where, gpus, rows, margin);
  check(read.global_batch > 0, ErrorCode::kInvalidArgument,
        "{}: train.global_batch is not set: the sequences of a step, which all layouts share", where);
  SearchOptions search{.devices = gpus, .memory_margin = margin, .rows = rows};
  search.given = given_settings(defaults_for(config, values, where),
                                [&](RunConfig&, SettingsTable& settings) { fill(settings, config, values, where); });
  RunConfig own = read;
  const SettingsTable settings = settings_of(own);
  for (const char* name : {"parallel.tensor", "parallel.context", "parallel.data"})
    if (settings.get(name) == "0") search.given.erase(name);
  Target target = find_target(target_name);
  if (!nodes_of.is_none()) target.node_devices = nb::cast<int64_t>(nodes_of);
  const auto json = std::make_shared<std::string>();
  run_apart(
      [json, read, target, search](const std::atomic<bool>& stop) mutable {
        set_thread_count(static_cast<int>(read.threads));
        search.progress = [&stop](int64_t, int64_t, const std::string&) {
          check(!stop, ErrorCode::kInternal, "interrupted");
        };
        PaperPlanner planner(target);
        const SearchResult result = search_layouts(planner, read, search);
        check(!result.best.empty(), ErrorCode::kOutOfMemory, "no layout of {} devices fits {}: {} bytes are missing",
              search.devices, target.name, result.least_missing);
        *json = to_json(result, planner.target(), {});
      },
      /*patient=*/false);
  return to_python(nlohmann::ordered_json::parse(*json));
}

struct EvalOptions {
  EngineOptions engine;
  std::string data, separate_documents, format = "auto", key = "text";
  int64_t length = 0, stride = 0, windows = 4, max_tokens = 0, threads = 0;
  bool bos = true;
};

SettingsTable table_of(EvalOptions& o) {
  SettingsTable engine = settings_of(o.engine), table;
  engine.row("recipe").info.meaning = recipe_help("fp32");
  engine.row("kv_cache").info.meaning =
      "keys and values go through a KV cache of f32, bf16, e4m3 or int8 (default: through none)";
  table.add("data", &o.data, {.meaning = "PREFIX of prepared tokens, PREFIX.bin/.idx, instead of texts"});
  table.add("separate_documents", &o.separate_documents,
            {.meaning = "of data: documents do not attend to each other (default: as the run was trained)",
             .choices = {"", "true", "false"}});
  table.add("format", &o.format, {.meaning = "of texts: auto, text or jsonl", .choices = {"auto", "text", "jsonl"}});
  table.add("key", &o.key, {.meaning = "key of the text in JSON lines"});
  table.add("bos", &o.bos, {.meaning = "a begin token in front of a text's windows"});
  table.add("length", &o.length, {.meaning = "tokens per window; 0: the model's context", .min = 0});
  table.add("stride", &o.stride, {.meaning = "tokens between windows; 0: the length", .min = 0});
  table.add("windows", &o.windows, {.meaning = "windows per batch", .min = 1});
  table.add("max_tokens", &o.max_tokens, {.meaning = "stop after this many tokens; 0: all", .min = 0});
  table.add("threads", &o.threads, {.meaning = "CPU threads; 0: as before", .min = 0, .max = 4096});
  for (const char* name : {"tokenizer", "recipe", "kv_cache", "device", "tensor", "rank_timeout"})
    table.add(name, engine.row(name).target, engine.row(name).info);
  return table;
}

PerplexityResult evaluate(const std::string& model, const std::vector<std::string>& texts, const EvalOptions& o,
                          const std::atomic<bool>& stop) {
  check(o.data.empty() != texts.empty(), ErrorCode::kInvalidArgument,
        "octet.evaluate takes either text files or data=PREFIX");
  if (o.threads > 0) set_thread_count(static_cast<int>(o.threads));
  EvaluateOptions options{.model = model,
                          .data = o.data,
                          .engine = o.engine,
                          .texts = texts,
                          .length = o.length,
                          .stride = o.stride,
                          .windows = o.windows,
                          .max_tokens = o.max_tokens,
                          .bos = o.bos,
                          .text = {.format = o.format == "text"    ? CorpusFormat::kText
                                             : o.format == "jsonl" ? CorpusFormat::kJsonLines
                                                                   : CorpusFormat::kAuto,
                                   .json_key = o.key}};
  if (!o.separate_documents.empty()) options.separate_documents = o.separate_documents == "true";
  return evaluate_texts(options, [&](int64_t, int64_t) { check(!stop, ErrorCode::kInternal, "interrupted"); });
}

nb::object evaluate_model(nb::object model, nb::object texts, nb::kwargs values) {
  enter();
  EvalOptions options;
  SettingsTable table = table_of(options);
  set_all(table, values, "octet.evaluate");
  std::vector<std::string> paths;
  if (nb::isinstance<nb::list>(texts) || nb::isinstance<nb::tuple>(texts)) {
    for (const nb::handle path : texts) paths.push_back(path_of(path));
  } else if (!texts.is_none()) {
    paths.push_back(path_of(texts));
  }
  const auto result = std::make_shared<PerplexityResult>();
  run_apart([result, folder = path_of(model), paths,
             options](const std::atomic<bool>& stop) { *result = evaluate(folder, paths, options, stop); },
            /*patient=*/false);
  nb::dict d;
  d["tokens"] = result->tokens, d["bytes"] = result->bytes, d["loss"] = result->loss();
  d["perplexity"] = result->perplexity();
  d["bits_per_byte"] = result->bytes > 0 ? nb::object(nb::float_(result->bits_per_byte())) : nb::object(nb::none());
  d["rank"] = result->rank;
  return d;
}

}  // namespace

void bind_runs(nb::module_& module) {
  nb::class_<PyRun>(module, "Run", "A training run, whose steps are made as they are asked for; dicts.")
      .def(
          "__init__", [](PyRun* self, nb::object config, nb::kwargs settings) { new (self) PyRun(config, settings); },
          nb::arg("config").none() = nb::none(), nb::arg("settings"),
          nb::sig("def __init__(self, config: str | os.PathLike[str] | Mapping[str, Any] | None = None, **settings: "
                  "Any) -> None"))
      .def("next", &PyRun::next, nb::sig("def next(self) -> dict[str, Any]"), "the next step; StopIteration at the end")
      .def("stop", &PyRun::stop, "ends the run behind the step under way, with a checkpoint")
      .def("finish", &PyRun::finish, nb::sig("def finish(self) -> dict[str, Any]"), "stop(), and what became of it")
      .def_prop_ro("result", &PyRun::result, nb::sig("def result(self) -> dict[str, Any] | None"))
      .def_prop_ro("done", &PyRun::done)
      .def_prop_ro("started", &PyRun::started);
  module.def("plan", &plan, nb::arg("config").none() = nb::none(), nb::arg("target") = "cpu", nb::arg("settings"),
             nb::sig("def plan(config: str | os.PathLike[str] | Mapping[str, Any] | None = None, target: str = 'cpu', "
                     "**settings: Any) -> dict[str, Any]"));
  module.def("tune_train", &tune_train, nb::arg("config").none() = nb::none(), nb::kw_only(), nb::arg("gpus"),
             nb::arg("target") = "h200", nb::arg("rows") = 10, nb::arg("margin") = 0.05,
             nb::arg("nodes_of").none() = nb::none(), nb::arg("settings"),
             nb::sig("def tune_train(config: str | os.PathLike[str] | Mapping[str, Any] | None = None, *, gpus: int, "
                     "target: str = 'h200', rows: int = 10, margin: float = 0.05, nodes_of: int | None = None, "
                     "**settings: Any) -> dict[str, Any]"));
  static EvalOptions defaults;
  static const SettingsTable table = table_of(defaults);
  static const std::string signature =
      "def evaluate(model: str | os.PathLike[str], texts: Sequence[str | os.PathLike[str]] | str | None = None" +
      signature_of(table) + ") -> dict[str, Any]";
  static const std::string doc =
      "Loss, perplexity and bits per byte of a model on texts or prepared tokens.\n\n" + doc_of(table);
  module.def("evaluate", &evaluate_model, nb::arg("model"), nb::arg("texts").none() = nb::none(), nb::arg("settings"),
             nb::sig(signature.c_str()), doc.c_str());
}

}  // namespace octet::python
