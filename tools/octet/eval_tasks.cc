#include "octet/eval_tasks.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "numbers.h"
#include "octet/commands.h"
#include "tasks/task_evaluation.h"
#include "weights/adapter_folder.h"

namespace octet {

using nlohmann::ordered_json;

namespace {

std::string dump(const ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

std::string number_text(const ordered_json& value) {
  return value.is_number() ? fmt::format("{:.4f}", value.get<double>()) : "";
}

void print_table(const TaskRun& run) {
  std::vector<std::array<std::string, 6>> rows = {{"task", "shots", "filter", "metric", "value", "stderr"}};
  for (const auto& [task, results] : run.results.items())
    for (const auto& [key, value] : results.items()) {
      const size_t comma = key.find(',');
      if (comma == std::string::npos || key.substr(0, comma).ends_with("_stderr")) continue;
      const std::string metric = key.substr(0, comma), filter = key.substr(comma + 1);
      const std::string shots = run.shots.contains(task) ? run.shots[task].dump() : "";
      rows.push_back({task, shots, filter, metric, number_text(value),
                      number_text(results.value(metric + "_stderr," + filter, ordered_json()))});
    }
  std::array<size_t, 6> widths = {};
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line +=
          i == 1 || i >= 4 ? fmt::format("{:>{}}  ", row[i], widths[i]) : fmt::format("{:<{}}  ", row[i], widths[i]);
    fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  }
}

ordered_json results_json(const TaskRun& run, const TaskOptions& options, const std::string& model,
                          const Engine& engine, int64_t max_length, double seconds) {
  const auto& adapters = engine.options().adapters;
  ordered_json json = {{"results", run.results}};
  if (!run.groups.empty()) json["groups"] = run.groups;
  json["n-shot"] = run.shots;
  json["higher_is_better"] = run.higher_is_better;
  json["n-samples"] = run.documents;
  json["config"] = {{"model", model},
                    {"adapter", adapters.empty() ? ordered_json() : ordered_json(adapters.begin()->second)},
                    {"device", engine.options().device},
                    {"recipe", engine.options().recipe},
                    {"max_length", max_length},
                    {"limit", options.limit > 0 ? ordered_json(options.limit) : ordered_json()},
                    {"bootstrap_iters", options.bootstrap},
                    {"apply_chat_template", options.chat},
                    {"fewshot_as_multiturn", options.chat}};
  json["total_evaluation_time_seconds"] = seconds;
  return json;
}

}  // namespace

void add_task_options(CLI::App& command, TaskOptions& options, const std::vector<std::string>& others) {
  auto* tasks = command
                    .add_option("--tasks", options.names,
                                "tasks of lm-evaluation-harness instead of texts: hellaswag, piqa, arc_easy, "
                                "arc_challenge, winogrande, openbookqa, boolq, lambada_openai, mmlu, gsm8k, "
                                "truthfulqa_mc1, truthfulqa_mc2, wikitext, or YAML files (docs/evaluation.md)")
                    ->delimiter(',')
                    ->group("Tasks");
  for (const std::string& other : others) tasks->excludes(command.get_option(other));
  const auto add = [&](CLI::Option* option) {
    option->needs(tasks)->group("Tasks");
    return option;
  };
  add(command.add_option("--shots", options.shots, "examples in each prompt (default: as the task says)"))
      ->check(CLI::Range(0, 1000));
  add(command.add_flag("--chat", options.chat, "shots and questions as turns of the model's chat template"));
  add(command.add_option("--max-length", options.max_length, "tokens the model sees at once (default: its context)"))
      ->check(CLI::Range(2, 1 << 30));
  add(command.add_option("--limit", options.limit, "documents of each task (default: all)"))->check(positive());
  add(command.add_option("--bootstrap", options.bootstrap, "draws of standard errors without a formula; 0: no errors"))
      ->check(not_negative());
  add(command.add_option("--samples", options.samples, "write what was asked and answered, a JSON line a document"));
}

void run_tasks(const TaskOptions& options, const std::string& model, EngineOptions engine, const std::string& data,
               bool json, const std::string& json_file) {
  const std::string folder = resolve_models(model, engine, "fp32"), adapter = only_adapter(engine);
  const TaskSelection selection = select_tasks(options.names, data);
  TaskRunOptions how{.limit = options.limit, .draws = options.bootstrap, .samples = !options.samples.empty()};
  if (options.shots >= 0) how.shots = options.shots;
  if (options.chat) how.chat = chat_turns(chat_folder(folder, engine));
  TaskRunner runner(selection, how);
  if (options.max_length > 0 && adapter.empty())
    engine.context = options.max_length;  // else virtual tokens are in front
  const auto opened = Engine::open(folder, engine);
  if (!opened) return;  // of another rank
  const auto tokenizer = load_tokenizer(engine.tokenizer.empty() ? tokenizer_folder(folder) : engine.tokenizer);
  const LoggedTime time("tasks");
  int64_t done = 0;
  std::optional<Progress> progress;
  progress.emplace(ProgressOptions{.title = "eval", .unit = "requests", .total = runner.requests()});
  ModelCalls calls(
      *opened, *tokenizer, options.max_length, [&] { progress->update(++done); }, adapter);
  const TaskRun run = runner.run(calls);
  progress.reset();
  if (!options.samples.empty()) {
    FileWriter file(options.samples);
    for (const ordered_json& sample : run.samples) file.write(dump(sample, -1) + "\n");
    file.commit();
  }
  const ordered_json results = results_json(run, options, model, *opened, calls.max_length(), time.seconds());
  if (json && json_file.empty()) {
    fmt::print("{}\n", dump(results, 1));
    return;
  }
  if (json) write_file(json_file, dump(results, 1) + "\n");
  print_table(run);
}

}  // namespace octet
