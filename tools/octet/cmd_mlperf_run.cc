// octet mlperf BENCHMARK: runs to the target of a benchmark of MLPerf Training, logged as a submission is.
#include <CLI/CLI.hpp>

#include <cstdlib>

#include "base/error.h"
#include "build_info.h"
#include "io/mlperf_log.h"
#include "octet/commands.h"
#include "octet/mlperf.h"
#include "train/mlperf_rules.h"
#include "train/mlperf_run.h"

namespace octet {
namespace {

struct Arguments {
  RunOptions run;
  MlperfSubmission submission;
  bool json = false;
};

std::string command_of(const Arguments& arguments) {
  const MlperfSubmission& s = arguments.submission;
  std::string command =
      fmt::format("octet mlperf {} config.yaml --runs {} --division {} --out \"${{1:?output folder}}\"", s.benchmark,
                  s.runs, s.division);
  if (s.target) command += fmt::format(" --target {}", *s.target);
  if (s.clear_caches) command += " --clear-caches";
  return command;
}

void run(Arguments arguments) {
  MlperfSubmission& submission = arguments.submission;
  RunConfig config = mlperf_settings(submission.benchmark);
  SettingsTable settings = settings_of(config);
  read_run_options(arguments.run, config, settings);
  fmt::print(stderr, "settings: {}\n", settings.changed_line());
  if (submission.runs == 0) submission.runs = find_mlperf_benchmark(submission.benchmark)->runs;
  submission.command = command_of(arguments);
  const MlperfRuns runs = run_mlperf(submission, config, {.build = version_text("octet"), .handle_signals = true});
  if (runs.attempts.empty()) return;  // of a rank that has nothing to do
  if (path_exists(runs.attempts[0].path)) summarize_mlperf({.folder = runs.folder, .json = arguments.json});
  if (!runs.all_reached()) std::exit(2);
}

constexpr const char* kFooter =
    R"(Settings are those of `octet train`. Each run begins anew, run K with train.seed + K; it compiles and warms up on made-up
data before its time begins, is evaluated as often as the rules want (in the open division eval.interval says otherwise),
and ends at the target, or aborted at train.steps; where one did not reach the target the exit code is 2.
DIR/results/SYSTEM/BENCHMARK/result_K.txt are the logs, DIR/systems and DIR/benchmarks what else a submission has,
DIR/runs the runs' own folders. No file of an earlier run is overwritten. Nothing that is printed is an MLPerf result:
those are what MLCommons has reviewed.
Examples:
  octet mlperf gpt3 configs/shakespeare_gpu.yaml --target 1.50 --runs 5 --out out/mlperf
  octet mlperf bert data.train=data/wiki_train data.validation=data/wiki_val train.micro_batch=48 train.steps=20000 \
      --out out/mlperf --org Somebody --clear-caches)";

}  // namespace

void add_mlperf_run_commands(CLI::App& mlperf) {
  for (const MlperfBenchmark& benchmark : mlperf_benchmarks()) {
    auto arguments = std::make_shared<Arguments>();
    MlperfSubmission& submission = arguments->submission;
    submission.benchmark = benchmark.name;
    auto* command = mlperf.add_subcommand(
        benchmark.name, fmt::format("Runs of {} to its target, {} {}", benchmark.name,
                                    benchmark.higher_is_better ? "at least" : "at most", benchmark.target));
    try {
      mlperf_settings(benchmark.name);
    } catch (const Error&) {  // no workload trains it: refused by name, whatever else is given
      command->group("")->allow_extras()->callback([arguments] { mlperf_settings(arguments->submission.benchmark); });
      continue;
    }
    add_run_options(*command, arguments->run);
    command->add_option("--out", submission.out, "folder of the submission")->required();
    command->add_option("--runs", submission.runs, fmt::format("runs (the rules want {} of a result)", benchmark.runs))
        ->check(CLI::Range(int64_t{1}, int64_t{10000}));
    command->add_option("--target", submission.target,
                        fmt::format("end of a run, in place of {}: {}", benchmark.target,
                                    benchmark.higher_is_better ? "masked_accuracy" : "loss, the log of perplexity"));
    command
        ->add_option("--division", submission.division,
                     "open: any data, model and settings; closed: refused where they are not the reference's")
        ->check(CLI::IsMember({"open", "closed"}))
        ->capture_default_str();
    command->add_option("--org", submission.org, "submitter")->capture_default_str();
    command->add_option("--status", submission.status, "of the system")
        ->check(CLI::IsMember({"cloud", "onprem", "preview", "research"}))
        ->capture_default_str();
    command->add_option("--platform", submission.platform, "name of the system; none = made of what this machine has");
    command->add_flag("--clear-caches", submission.clear_caches,
                      "drop the operating system's caches before each run, which root may do; logged either way");
    command->add_flag("--json", arguments->json, "print the summary as JSON");
    add_verbose_option(*command);
    command->footer(kFooter);
    command->callback([arguments] { run(*arguments); });
  }
}

}  // namespace octet
