#include "train/mlperf_run.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "dist/launch.h"
#include "train/mlperf_rules.h"
#include "train/mlperf_system.h"

namespace octet {
namespace {

using Clock = std::chrono::steady_clock;

// Empty where the operating system's caches were dropped, else why not.
std::string drop_caches() {
  sync();
  const Descriptor file(open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC));
  if (file.value >= 0 && write(file.value, "3\n", 2) == 2) return "";
  return std::strerror(errno);
}

// The log of a run and what is remembered of it. Ranks but the first have none.
class Attempt {
 public:
  Attempt(const MlperfSubmission& submission, const MlperfBenchmark& benchmark, const std::string& platform,
          const std::string& path, bool first)
      : benchmark_(benchmark) {
    result.path = path;
    if (!first) return;
    log_.emplace(path);
    clear_caches(submission);
    log_->start("init_start");
    log_->event("submission_benchmark", benchmark.name);
    log_->event("submission_org", submission.org);
    log_->event("submission_division", submission.division);
    log_->event("submission_status", submission.status);
    log_->event("submission_platform", platform);
  }

  void keys(const MlperfFields& fields) {
    for (const auto& [key, value] : fields)
      if (log_) log_->event(key, value);
  }
  // `units_a_block`: between two evaluations.
  void ready(int64_t units_a_block) {
    units_a_block_ = std::max<int64_t>(1, units_a_block);
    if (!log_) return;
    log_->stop("init_stop");
    began_ = Clock::now();
    log_->start("run_start");
    running_ = true;
    begin_block(0);
  }
  void evaluation_begins(const RunState& run) {
    end_block(run.targets);
    if (log_) log_->start("eval_start", {{"epoch_num", run.targets}});
  }
  void evaluated(const RunState& run, double value, bool reached) {
    result.value = value, result.step = run.step, result.reached = reached;
    if (!log_) return;
    log_->event("eval_accuracy", value, {{"epoch_num", run.targets}});
    log_->stop("eval_stop", {{"epoch_num", run.targets}});
    if (reached) return end(run.targets);
    begin_block(run.targets);
  }
  // Once; also of a run that an error ends.
  void end(int64_t units) {
    if (!running_) return;
    running_ = false;
    end_block(units);
    result.minutes = std::chrono::duration<double>(Clock::now() - began_).count() / 60;
    log_->stop("run_stop", {{"status", result.reached ? "success" : "aborted"}, {"epoch_num", units}});
    log_->flush();
  }

  MlperfAttempt result;
  int64_t units = 0;  // trained so far

 private:
  void clear_caches(const MlperfSubmission& submission) {
    std::string why = "not asked for: --clear-caches";
    if (submission.clear_caches) why = drop_caches();
    if (why.empty()) return log_->event("cache_clear", true);
    log_->event("cache_clear", false, {{"reason", why}});
    if (submission.clear_caches)
      log_warning("the operating system's caches were not dropped ({}): the log says so; root may do it", why);
  }
  void begin_block(int64_t units) {
    block_ = units;
    log_->start("block_start", {{"first_epoch_num", units}, {"epoch_count", units_a_block_}});
    log_->start("epoch_start", {{"epoch_num", units}});
  }
  void end_block(int64_t units) {
    if (!log_ || block_ < 0) return;
    log_->stop("epoch_stop", {{"epoch_num", units}});
    log_->stop("block_stop", {{"first_epoch_num", block_}});
    block_ = -1;
  }

  const MlperfBenchmark& benchmark_;
  std::optional<MlperfLog> log_;
  int64_t units_a_block_ = 1, block_ = -1;  // where the block began; none
  bool running_ = false;
  Clock::time_point began_ = {};
};

// As every run has them; throws where none can.
RunConfig settings_of_runs(const MlperfSubmission& s, const MlperfBenchmark& benchmark, RunConfig config) {
  const std::string workload = mlperf_settings(s.benchmark).workload;
  check(config.workload == workload, ErrorCode::kInvalidArgument, "workload={}: {} is of workload={}: leave it out",
        config.workload, s.benchmark, workload);
  check(config.objective == "next_token", ErrorCode::kInvalidArgument,
        "train.objective={}: {} has no such: leave it out", config.objective, s.benchmark);
  check(config.resume == "auto" || config.resume == "never", ErrorCode::kInvalidArgument,
        "resume={}: runs of a benchmark begin anew: leave it out, or set model.from", config.resume);
  check(config.restarts == 0, ErrorCode::kInvalidArgument,
        "parallel.restarts={}: a run of a benchmark that fails is aborted: leave it at 0", config.restarts);
  check(!config.validation_data.empty(), ErrorCode::kInvalidArgument,
        "data.validation is not set: runs end by its evaluations: give its PREFIX");
  if (config.out != RunConfig{}.out) log_info("out={} is not used: the runs are in {}/runs", config.out, s.out);
  config.resume = "never", config.out = RunConfig{}.out;
  if (s.target || config.eval_target == 0) config.eval_target = s.target.value_or(benchmark.target);
  check(config.eval_target > 0, ErrorCode::kInvalidArgument, "--target {}: want more than 0", config.eval_target);
  return config;
}

void refuse_closed(const MlperfSubmission& s, const RunConfig& config, const TrainingWorkload& workload) {
  std::vector<std::string> differences = closed_differences(s.benchmark, config, workload);
  if (!s.clear_caches)
    differences.emplace_back("the operating system's caches are kept (the rules': cleared: --clear-caches)");
  check(differences.empty(), ErrorCode::kInvalidArgument,
        "--division closed: {} differences from the reference and its rules; run with --division open, or mend them:\n"
        "  {}",
        differences.size(), fmt::join(differences, "\n  "));
  log_info("--division closed: settings and sizes are the reference's; what they do not tell is yours to vouch for: {}",
           closed_promises(s.benchmark));
}

void write_once(const std::string& path, const std::string& text) {
  if (!path_exists(path)) write_file(path, text);  // edited by whoever submits
}

}  // namespace

bool MlperfRuns::all_reached() const { return std::ranges::all_of(attempts, &MlperfAttempt::reached); }

MlperfRuns run_mlperf(const MlperfSubmission& s, const RunConfig& settings, const TrainHooks& hooks) {
  mlperf_settings(s.benchmark);  // throws what is wrong with the name
  const MlperfBenchmark& benchmark = *find_mlperf_benchmark(s.benchmark);
  RunConfig config = settings_of_runs(s, benchmark, settings);
  const auto identity = find_identity([](const char* name) { return std::getenv(name); });
  const bool first = !identity || identity->rank == 0;
  int64_t units_a_step = 0;
  {
    const auto workload = workload_row(config).open(config);
    const int64_t batch = mlperf_global_batch(config, *workload);
    if (config.eval_interval == 0) config.eval_interval = mlperf_eval_interval(s.benchmark, batch);
    if (s.division == "closed") refuse_closed(s, config, *workload);
    units_a_step = s.benchmark == "bert" ? batch : batch * config.sequence_length;
  }
  MlperfMachine machine = this_machine();
  if (identity) machine.nodes = identity->size / identity->local_size;
  const std::string platform = s.platform.empty() ? machine.platform() : s.platform;
  std::string system = platform;  // as folders are named
  std::ranges::replace_if(
      system, [](unsigned char c) { return std::isalnum(c) == 0 && c != '.' && c != '-'; }, '_');

  MlperfRuns runs{.folder = fmt::format("{}/results/{}/{}", s.out, system, s.benchmark), .attempts = {}};
  const int64_t count = s.runs > 0 ? s.runs : benchmark.runs;
  const auto result_path = [&](int64_t run) { return fmt::format("{}/result_{}.txt", runs.folder, run); };
  const auto run_path = [&](int64_t run) { return fmt::format("{}/runs/{}/{}_{}", s.out, system, s.benchmark, run); };
  for (int64_t run = 0; run < count; ++run)
    for (const std::string& path : {result_path(run), run_path(run)})
      check(!first || !path_exists(path), ErrorCode::kInvalidArgument,
            "{} exists: results are not overwritten; name another folder by --out, or remove it", path);
  if (first) {
    const std::string own = fmt::format("{}/benchmarks/{}/implementations/octet", s.out, s.benchmark);
    for (const std::string& folder : {runs.folder, own, s.out + "/systems"}) make_folders(folder);
    write_once(fmt::format("{}/systems/{}.json", s.out, system), machine.json(s, platform, hooks.build));
    write_once(own + "/run_and_time.sh",
               fmt::format("#!/bin/sh\n# {}\n{}\n", hooks.build.substr(0, hooks.build.find('\n')), s.command));
    write_once(own + "/config.yaml", settings_of(config).to_yaml());
  }
  for (int64_t run = 0; run < count && !runs.interrupted; ++run) {
    RunConfig each = config;
    each.seed = config.seed + run;
    each.out = run_path(run);
    Attempt attempt(s, benchmark, platform, result_path(run), first);
    const TimedRun timed{.ready =
                             [&](const RunConfig& resolved, const TrainingWorkload& workload) {
                               attempt.keys(mlperf_keys(s.benchmark, resolved, workload));
                               attempt.ready(units_a_step * resolved.eval_interval);
                             },
                         .evaluation_begins = [&](const RunState& state) { attempt.evaluation_begins(state); },
                         .evaluated = [&](const RunState& state, std::span<const double> metrics,
                                          bool reached) { attempt.evaluated(state, metrics[0], reached); }};
    TrainHooks own = hooks;
    own.timed = &timed;
    own.on_step = [&](const RunState& state, const StepResult& step) {
      attempt.units = state.targets;
      if (hooks.on_step) hooks.on_step(state, step);
    };
    try {
      const TrainResult result = train(each, own);
      if (result.left_over) return runs;
      attempt.end(result.run.targets);  // unless it has ended
      attempt.result.step = result.run.step, attempt.result.reached = result.reached_target;
      runs.interrupted = result.interrupted;
    } catch (...) {
      attempt.end(attempt.units);
      throw;
    }
    runs.attempts.push_back(attempt.result);
    if (first)
      log_info("run {} of {}: {} {:.3f} minutes, {} {:.5g} at step {}", run + 1, count,
               attempt.result.reached ? "success in" : "aborted after", attempt.result.minutes,
               benchmark.higher_is_better ? "accuracy" : "loss", attempt.result.value, attempt.result.step);
  }
  return runs;
}

}  // namespace octet
