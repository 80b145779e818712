// octet tune: the fastest settings of a training run, found on paper.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/threads.h"
#include "octet/commands.h"
#include "train/workload.h"
#include "tune/evaluate.h"
#include "tune/measure.h"
#include "tune/search_report.h"

namespace octet {
namespace {

struct Options {
  RunOptions run;
  std::string target = "h200", out, rows_file;
  int64_t devices = 0, node_devices = -1, rows = 10;
  double margin = -1;
  TokenBudget budget;
  MeasureOptions measure{.folder = "out/tune", .candidates = 0};
  bool json = false;
};

volatile std::sig_atomic_t interrupted = 0;  // set by a signal's handler

Target target_of(const Options& options) {
  Target target = find_target(options.target);
  if (options.node_devices >= 0) target.node_devices = options.node_devices;
  return target;
}

void evaluate(const Options& options) {
  check(options.run.file.empty() && options.run.words.empty(), ErrorCode::kInvalidArgument,
        "--evaluate: its rows say all settings: leave {} out", options.run.file);
  const bool standard = options.rows_file == "-";
  std::ifstream file;
  if (!standard) {
    check(path_exists(options.rows_file) && !is_folder(options.rows_file), ErrorCode::kNotFound,
          "--evaluate {}: no such file", options.rows_file);
    file.open(options.rows_file);
  }
  evaluate_rows(standard ? std::cin : file, target_of(options),
                {.memory_margin = std::max(options.margin, 0.0), .where = standard ? "-" : options.rows_file},
                [](const std::string& line) {
                  fmt::print("{}\n", line);
                  std::fflush(stdout);
                });
}

// The best K, each run for a few steps; the fastest measured one comes first afterwards.
void measure(const Options& options, const RunConfig& config, SearchResult& result) {
  MeasureOptions measure = options.measure;
  measure.program = std::filesystem::read_symlink("/proc/self/exe").string();
  const auto old_int = std::signal(SIGINT, [](int) { interrupted = 1; });
  const auto old_term = std::signal(SIGTERM, [](int) { interrupted = 1; });
  measure.stop = [] { return interrupted != 0; };
  measure.report = [](const std::string& line) { fmt::print(stderr, "{}", line); };
  const std::vector<Measurement> measured = measure_layouts(config, result.best, measure);
  std::signal(SIGINT, old_int), std::signal(SIGTERM, old_term);
  fmt::print(options.json ? stderr : stdout, "measured  {} of the best, the fastest first{}\n{}", measured.size(),
             interrupted != 0 ? "; ended by a signal, the same command goes on" : "", to_text(measured));
  for (auto row = measured.rbegin(); row != measured.rend(); ++row) {
    if (row->measured == 0) continue;
    const auto at = std::ranges::find(result.best, row->layout, &PlannedLayout::layout);
    std::rotate(result.best.begin(), at, at + 1);
  }
  check(measured.empty() || measured[0].measured > 0, ErrorCode::kInternal,
        "none of the {} layouts that were run has made its steps: {}", measured.size(),
        measured.empty() ? "" : measured[0].reason);
}

void run_tune_train(const Options& options) {
  if (!options.rows_file.empty()) return evaluate(options);
  check(options.devices >= 1, ErrorCode::kInvalidArgument, "--gpus is not given: how many devices the run has");
  const RunConfig defaults = default_settings(options.run);
  const auto read = [&](RunConfig& config, SettingsTable& settings) {
    read_run_options(options.run, config, settings);
  };
  SearchOptions search{.devices = options.devices, .given = given_settings(defaults, read), .rows = options.rows};
  if (options.margin >= 0) search.memory_margin = options.margin;
  RunConfig config = defaults;
  SettingsTable settings = settings_of(config);
  read(config, settings);
  check(config.global_batch > 0, ErrorCode::kInvalidArgument,
        "train.global_batch is not set: the sequences of a step, which all layouts share, such as "
        "train.global_batch=2048");
  for (const char* name : {"parallel.tensor", "parallel.context", "parallel.data"})
    if (settings.get(name) == "0") search.given.erase(name);
  set_thread_count(static_cast<int>(config.threads));
  PaperPlanner planner(target_of(options));
  std::optional<Progress> bar;
  if (!options.json)
    search.progress = [&bar](int64_t done, int64_t total, const std::string& text) {
      if (!bar) bar.emplace(ProgressOptions{.title = "tune", .unit = "layouts", .total = total});
      bar->update(done, text);
    };
  SearchResult result = search_layouts(planner, config, search);
  bar.reset();
  std::fputs((options.json ? to_json(result, planner.target(), options.budget)
                           : to_text(result, planner.target(), options.budget))
                 .c_str(),
             stdout);
  check(!result.best.empty(), ErrorCode::kOutOfMemory, "no layout of {} devices fits {}: {} bytes are missing",
        options.devices, planner.target().name, result.least_missing);
  if (options.measure.candidates > 0) measure(options, config, result);
  if (options.out.empty()) return;
  write_file(options.out,
             layout_yaml(config, result.best[0].layout,
                         fmt::format("# octet tune train: {} on {} of {}\n", to_text(result.best[0].layout),
                                     options.devices, planner.target().name)));
  if (!options.json) fmt::print("written   {}: octet train {}\n", options.out, options.out);
}

constexpr const char* kExamples =
    R"(Every setting of parallel.*, train.micro_batch, recompute, precision.recipe and precision.transposes that
neither CONFIG nor a word gives is searched; one that is given stays.
Examples:
  octet tune train model.size=gpt3-175b data.sequence_length=2048 train.global_batch=2048 --gpus 1024
  octet tune train configs/gpt2_124m.yaml train.global_batch=512 --gpus 8 --out best.yaml && octet train best.yaml
  octet tune train model.size=llama2-7b data.sequence_length=4096 train.global_batch=256 precision.recipe=bf16 \
    --gpus 64 --target h100-80g --tokens 2000G --price 2.5
  octet tune train configs/gpt2_124m.yaml train.global_batch=64 --gpus 2 --measure 5 --out best.yaml
  octet tune train --evaluate rows.jsonl --target h200
A row of --evaluate is an object: "id": 1, "gpus": 8, "model.size": "llama2-7b", "train.global_batch": 64, more settings)";

}  // namespace

void add_tune_command(CLI::App& app) {
  auto* command = app.add_subcommand("tune", "The fastest settings of a run, found on paper");
  command->require_subcommand(1);
  auto options = std::make_shared<Options>();
  auto* train = command->add_subcommand("train", "Mesh, micro-batch, recomputation and recipe of a training run");
  train->footer(kExamples);
  add_run_options(*train, options->run);
  train->add_option("--gpus", options->devices, "devices that the run has")
      ->check(CLI::PositiveNumber)
      ->default_str("");
  train->add_option("--target", options->target, target_help());
  train->add_option("--nodes-of", options->node_devices, "devices of a machine, 0: all (default: as the target says)")
      ->check(CLI::NonNegativeNumber);
  train
      ->add_option("--margin", options->margin,
                   "share of the memory that is left free (default: 0.05, with --evaluate 0)")
      ->check(CLI::Range(0.0, 0.99));
  train->add_option("--rows", options->rows, "layouts of the table")->check(CLI::Range(1, 1000));
  train->add_option("--out", options->out, "write the best as settings of octet train to this file");
  add_budget_options(*train, options->budget);
  train->add_option("--evaluate", options->rows_file,
                    "instead of a search, predict the rows of this file of JSON lines (-: of standard input)");
  auto* measure = train
                      ->add_option("--measure", options->measure.candidates,
                                   "run so many of the best for a few steps each, on the devices that are here")
                      ->check(CLI::Range(1, 1000))
                      ->default_str("");
  train->add_option("--measure-steps", options->measure.steps, "of each; the first two are not counted")
      ->check(CLI::Range(3, 100000))
      ->needs(measure);
  train->add_option("--measure-seconds", options->measure.limit_seconds, "the most that each may take")
      ->check(CLI::PositiveNumber)
      ->needs(measure);
  train
      ->add_option("--measure-folder", options->measure.folder,
                   "of logs and results: what is measured there is not measured again")
      ->needs(measure);
  for (const char* name : {"--gpus", "--out", "--measure", "--rows", "--tokens"})
    train->get_option("--evaluate")->excludes(train->get_option(name));
  train->add_flag("--json", options->json, "print one JSON object");
  train->callback([options] { run_tune_train(*options); });
}

}  // namespace octet
