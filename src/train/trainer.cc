#include "train/trainer.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "dist/communicator.h"
#include "dist/control.h"
#include "exec/executor.h"
#include "exec/timeline.h"
#include "train/batches.h"
#include "train/diagnose.h"
#include "train/optimizer.h"
#include "train/run.h"
#include "train/schedule.h"

namespace octet {

namespace {

constexpr time_t kSecondSignal = 3;  // seconds
volatile std::sig_atomic_t g_signal = 0;
time_t g_signal_time = 0;  // of the first; the handler's alone while a guard lives

void on_signal(int signal) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (g_signal == 0) g_signal_time = now.tv_sec;
  g_signal = signal;
  if (signal == SIGHUP || now.tv_sec - g_signal_time < kSecondSignal) return;
  std::signal(signal, SIG_DFL);
  raise(signal);  // takes effect when this returns
}

// SIGINT, SIGTERM and SIGHUP as a flag that a run polls between pieces of work: they set it during the lifetime of a
// guard (with `on`). A SIGINT or SIGTERM later than kSecondSignal after the first one has its default effect; until
// then it may be the same again, from a launcher that passes on what the whole process group got. A closed terminal may
// send more than one SIGHUP, from the kernel and from the shell: they all only set the flag. A SIGHUP that was ignored
// (nohup) stays ignored. One at a time.
class SignalGuard {
 public:
  explicit SignalGuard(bool on) : on_(on) {
    if (!on_) return;
    g_signal = 0;
    struct sigaction action {};
    action.sa_handler = on_signal;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&action.sa_mask, signal);
    sigaction(SIGINT, &action, &old_int_);
    sigaction(SIGTERM, &action, &old_term_);
    sigaction(SIGHUP, &action, &old_hup_);
    if (old_hup_.sa_handler == SIG_IGN) sigaction(SIGHUP, &old_hup_, nullptr);
  }
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  ~SignalGuard() {
    if (!on_) return;
    sigaction(SIGINT, &old_int_, nullptr);
    sigaction(SIGTERM, &old_term_, nullptr);
    sigaction(SIGHUP, &old_hup_, nullptr);
    g_signal = 0;
  }

 private:
  bool on_;
  struct sigaction old_int_ {
  }, old_term_{}, old_hup_{};
};

constexpr int64_t kGapsShown = 10, kKernelsShown = 12;

}  // namespace

// Of several ranks: what they agreed on when the step began.
bool Run::stop_wanted() {
  return links_.ranks != nullptr ? stop_agreed_ : g_signal != 0 || (hooks_.stop && hooks_.stop());
}

// False: stopped before its end.
bool Run::evaluate_tasks(int64_t step) {
  struct Stopped {};
  const auto started = std::chrono::steady_clock::now();
  const auto& model = dynamic_cast<const LanguageModel&>(*workload_);
  std::vector<TaskEvaluation::Value> values;
  try {
    values = tasks_->run([&](const std::vector<ScoredSequence>& sequences) {
      bool stopped = false;
      auto scores = score_sequences(*stepper_, model, sequences, [&] { return stopped = stopped || stop_wanted(); });
      if (stopped) throw Stopped();
      return scores;
    });
  } catch (const Stopped&) {
    return false;
  }
  std::string text;
  std::vector<std::pair<std::string, double>> logged;
  for (const TaskEvaluation::Value& one : values) {
    logged.emplace_back(one.name, one.value);
    text += fmt::format("{}{} {:.4f}", text.empty() ? "" : ", ", one.name, one.value);
  }
  log_->tasks(step, logged, seconds_since(started));
  log_info("step {}: tasks {} ({:.1f} s)", step, text, seconds_since(started));
  return true;
}

void Run::evaluate_now(int64_t step) {
  if ((workload_->validation_batches() == 0 && !tasks_) || last_evaluated_ == step) return;
  auto started = std::chrono::steady_clock::now();
  if (links_.control != nullptr) links_.control->note(step, "eval");
  const TimedRun* timed = is_first() ? hooks_.timed : nullptr;
  if (timed != nullptr) timed->evaluation_begins(result_.run);
  if (tasks_ && !evaluate_tasks(step)) return log_info("evaluation left unfinished");
  if (workload_->validation_batches() == 0) {
    last_evaluated_ = step;
    return;
  }
  started = std::chrono::steady_clock::now();
  bool stopped = false;
  const Evaluation done =
      evaluate(*stepper_, *workload_, config_.eval_tokens, [&] { return stopped = stopped || stop_wanted(); });
  if (stopped) return log_info("evaluation left unfinished");
  last_evaluated_ = step;
  const double value = result_.last_metric = done.metrics[0];
  const std::string units = workload_->unit().many();
  log_->evaluation(step, done.metrics, done.targets, seconds_since(started));
  if (done.targets == 0)
    return log_warning("step {}: all {} of data.validation={} are excluded from the loss", step, units,
                       config_.validation_data);
  RunState& run = result_.run;
  if (std::isfinite(value) && (run.best_step == 0 || result_.metric.is_better(value, run.best_metric)))
    run.best_metric = value, run.best_step = step;
  if (timed != nullptr) timed->evaluated(run, done.metrics, run_reached_target());
  std::string text;
  const std::vector<Metric> metrics = workload_->metrics();
  for (size_t i = 0; i < metrics.size(); ++i)
    text += fmt::format("{}{} {:.{}f}", i > 0 ? ", " : "", metrics[i].name, done.metrics[i], metrics[i].digits);
  const std::string best = run.best_metric > 0 || run.best_step > 0
                               ? fmt::format(", best {:.{}f} at {}", run.best_metric, metrics[0].digits, run.best_step)
                               : "";
  log_info("step {}: validation {} ({} {}, {:.1f} s){}", step, text, done.targets, units, seconds_since(started), best);
}

// Whether the last evaluations were no better than one before them.
bool Run::out_of_patience(int64_t step) const {
  if (config_.eval_patience == 0 || step % config_.eval_interval != 0) return false;
  return (step - result_.run.best_step) / config_.eval_interval >= config_.eval_patience;
}

bool Run::run_reached_target() const {
  const RunState& run = result_.run;
  return config_.eval_target > 0 && run.best_step > 0 &&
         !result_.metric.is_better(config_.eval_target, run.best_metric);
}

void Run::save(int64_t step) {
  if (last_saved_ == step) return;
  CheckpointContent content = checkpoint_content(config_);
  content.run = result_.run;
  const auto started = std::chrono::steady_clock::now();
  if (links_.control != nullptr) links_.control->note(step, "checkpoint");
  result_.checkpoint = write_checkpoint(config_.out, stepper_->executor(), *workload_, content);
  last_saved_ = step;
  if (const double seconds = seconds_since(started); seconds > 1)
    log_info("step {}: {} written in {:.1f} s", step, result_.checkpoint, seconds);
  log_->event(step, "checkpoint", result_.checkpoint);
  // Weights that make nothing finite must not push out sound ones.
  if (is_first() && skipped_in_a_row_ == 0)
    prune_checkpoints(config_.out, config_.checkpoint_keep, result_.run.best_step, result_.run.lineage);
}

// Enqueues the first micro-batch of a step; null once the run is to stop. If the data turns out to be damaged, a run of
// one rank writes a checkpoint before the error ends it.
std::unique_ptr<Run::Step> Run::begin(Prefetcher& prefetcher, int64_t step) {
  if (links_.ranks != nullptr) stop_agreed_ = any_of(*links_.ranks, g_signal != 0 || (hooks_.stop && hooks_.stop()));
  if (stop_wanted()) return nullptr;  // before data is taken, so that a later call still finds it
  const auto asked = std::chrono::steady_clock::now();
  auto next = std::make_unique<Step>();
  try {
    next->micro_batches = prefetcher.take(step, [&] { return stop_wanted(); });
  } catch (const Error&) {
    if (links_.ranks != nullptr) throw;  // the others do not know of it
    if (in_flight_step_) conclude(*std::exchange(in_flight_step_, nullptr));
    if (result_.run.step > 0) save(result_.run.step);
    throw;
  }
  if (next->micro_batches.empty()) return nullptr;
  next->waited = seconds_since(asked);
  next->work = {.micro_batches = next->micro_batches,
                .lr = learning_rate(config_.optimizer, config_.steps, step),
                .step = step,
                .seed = static_cast<uint64_t>(config_.seed),
                .statistics = auto_ && auto_->due(step)};
  if (links_.control != nullptr) links_.control->note(step, "train");
  stepper_->begin(next->work);
  return next;
}

// Whether the next step may begin before the results of this one are known: only the log is written between them, while
// the device runs.
bool Run::can_overlap_next_step(const StepWork& work) const {
  const auto due = [&](int64_t interval) { return interval > 0 && work.step % interval == 0; };
  const bool waits = config_.eager || config_.check_nodes || (auto_ && auto_->due(work.step + 1));  // in begin()
  return stepper_->plan().target.traits.steps_ahead > 0 && !waits && !work.statistics && !due(config_.eval_interval) &&
         !due(config_.checkpoint_interval) && skipped_in_a_row_ + 1 < config_.max_skipped_steps &&
         !(timeline_ && timeline_->at_border());
}

// The first non-finite value or gradient, as far as it can be found.
std::string Run::locate_non_finite(std::span<const Batch> micro_batches) {
  try {
    for (size_t i = 0; links_.ranks == nullptr && i < micro_batches.size(); ++i) {
      const Batch& batch = micro_batches[i];
      const std::string value = first_non_finite_value(*workload_, options_, stepper_->executor(), batch);
      if (!value.empty()) return "in the forward pass, " + value;
    }
  } catch (const Error& error) {  // no memory for a second look
    log_debug("could not examine the forward pass: {}", error.message());
  }
  const std::string gradient = last_non_finite_gradient(stepper_->executor());
  return gradient.empty() ? "in no parameter" : "in the backward pass, the gradient of " + gradient;
}

// Counts the steps that were no update, and ends a run of too many.
void Run::watch_skipped(const StepResult& result, std::span<const Batch> micro_batches, int64_t step) {
  if (result.targets == 0) {
    ++result_.run.skipped_steps;
    log_->event(step, "skip", "no targets");
    if (!std::exchange(warned_of_no_targets_, true))
      log_warning("step {} skipped: all its {} are excluded from the loss; log.jsonl has later ones", step,
                  result_.unit.many());
    return;
  }
  if (result.finite) {
    skipped_in_a_row_ = 0;
    return;
  }
  ++result_.run.skipped_steps;
  ++skipped_in_a_row_;
  log_->event(step, "skip", fmt::format("gradient norm {}", result.grad_norm));
  log_warning("step {}: gradients are not finite (norm {}), step skipped ({} in a row)", step, result.grad_norm,
              skipped_in_a_row_);
  if (skipped_in_a_row_ < config_.max_skipped_steps) return;
  const std::string where = locate_non_finite(micro_batches);
  log_->event(step, "stop", "non-finite numbers, first " + where);
  const std::string before = result_.checkpoint.empty() ? resume_from_.value_or("") : result_.checkpoint;
  save(step);  // the weights are those of the last step that was taken
  const std::string sound =
      before.empty() ? "" : fmt::format("; resume={} continues from the one before steps were skipped", before);
  fail(ErrorCode::kInvalidArgument,
       "{} steps in a row had non-finite gradients at step {}, first {}: lower optimizer.lr or choose a wider "
       "precision.recipe; the last checkpoint is {}{}",
       skipped_in_a_row_, step, where, result_.checkpoint, sound);
}

// Waits for a step, then logs, evaluates and saves before the next one, whose first micro-batch may be running. False:
// the run ends here.
bool Run::conclude(const Step& done, bool next_has_begun) {
  const int64_t step = done.work.step;
  const StepResult result = stepper_->wait(done.work);
  const double seconds = seconds_since(step_began_);
  if (next_has_begun) step_begins(step + 1);
  result_.seconds += seconds;
  result_.data_seconds += done.waited;
  result_.run.step = step;
  result_.run.targets += result.targets;
  const double speed = static_cast<double>(result.targets) / seconds;
  if (result.targets > 0) {
    result_.last_loss = result.loss;
    speeds_.push_back(speed);
  }
  if (hooks_.on_step) hooks_.on_step(result_.run, result);
  watch_skipped(result, done.micro_batches, step);
  if (!result.statistics.empty()) decide_precision(result, step);
  const bool last = step == config_.steps;
  std::vector<std::pair<std::string, double>> metrics;
  std::string text = fmt::format("loss {:.4f}", result_.last_loss);
  for (const Metric& metric : workload_->metrics()) {
    const auto sum = metric.output == "loss" ? result.sums.end() : result.sums.find(metric.output);
    if (sum == result.sums.end()) continue;
    metrics.emplace_back(metric.name, metric.join(std::span(&sum->second, 1), result.weight));
    text += fmt::format("  {} {:.{}f}", metric.name, metrics.back().second, metric.digits);
  }
  if (step % config_.log_interval == 0 || last)
    log_->step({.step = step,
                .units = result_.run.targets,
                .loss = result.loss,
                .grad_norm = result.grad_norm,
                .lr = done.work.lr,
                .seconds = seconds,
                .units_per_second = speed,
                .data_seconds = done.waited,
                .finite = result.finite,
                .targets = result.targets > 0,
                .metrics = metrics});
  if (progress_) progress_->update(step, fmt::format("{}  {:.0f} {}/s", text, speed, result_.unit.brief));
  if (timeline_ && last) timeline_->finish();
  if (last || (config_.eval_interval > 0 && step % config_.eval_interval == 0)) evaluate_now(step);
  const bool stop = stop_wanted();
  const bool due = config_.checkpoint_interval > 0 && step % config_.checkpoint_interval == 0;
  const bool best = config_.checkpoint_best && result_.run.best_step == step;
  const bool sound = skipped_in_a_row_ == 0;  // else the next sound step's checkpoint will do
  result_.out_of_patience = !last && last_evaluated_ == step && out_of_patience(step);
  result_.reached_target = last_evaluated_ == step && run_reached_target();
  if (last || ((due || best || result_.out_of_patience || result_.reached_target) && sound)) save(step);
  if (result_.out_of_patience) {
    log_->event(step, "stop", "eval.patience");
    log_info("step {}: {} evaluations in a row without a better validation {}: the run ends (eval.patience)", step,
             config_.eval_patience, result_.metric.name);
  }
  if (result_.reached_target) {
    log_->event(step, "stop", "eval.target");
    log_info("step {}: validation {} {:.{}f} reaches eval.target={}: the run ends", step, result_.metric.name,
             result_.run.best_metric, result_.metric.digits, config_.eval_target);
  }
  const bool ends = result_.out_of_patience || result_.reached_target;
  result_.interrupted = stop && !last && !ends;
  return !result_.interrupted && !ends;
}

void Run::step_begins(int64_t step) {
  step_began_ = std::chrono::steady_clock::now();
  if (timeline_) timeline_->step_begins(step);
}

TrainResult Run::loop() {
  SignalGuard signals(hooks_.handle_signals);
  if (is_first())
    progress_.emplace(
        ProgressOptions{.title = "train", .unit = "step", .total = config_.steps, .start = result_.run.step});
  if (hooks_.timed != nullptr) begin_timed();
  Prefetcher prefetcher(*workload_, config_.accumulation(), result_.run.step + 1);
  if (result_.run.step == 0 && config_.eval_interval > 0 && hooks_.timed == nullptr) evaluate_now(0);
  bool ended = result_.run.step > 0 && result_.run.step < config_.steps && out_of_patience(result_.run.step);
  if (ended) {  // before it was resumed, unless that evaluation was left unfinished
    evaluate_now(result_.run.step);
    ended = result_.out_of_patience = out_of_patience(result_.run.step);
  }
  ended = ended || (result_.reached_target = run_reached_target());
  for (int64_t step = result_.run.step + 1; step <= config_.steps && !ended; ++step) {
    std::unique_ptr<Step> next;
    if (in_flight_step_ && can_overlap_next_step(in_flight_step_->work)) next = begin(prefetcher, step);
    if (in_flight_step_ && !conclude(*std::exchange(in_flight_step_, nullptr), next != nullptr)) break;
    if (!next) {
      step_begins(step);
      next = begin(prefetcher, step);
    }
    if (!next || !stepper_->run_remaining_micro_batches(next->work, [&] { return stop_wanted(); })) {
      log_info("step {} was left unfinished", step);
      result_.interrupted = true;
      break;
    }
    next->work.skipped = result_.run.skipped_steps;  // the step before has been concluded
    stepper_->apply(next->work);
    in_flight_step_ = std::move(next);
  }
  if (in_flight_step_) conclude(*std::exchange(in_flight_step_, nullptr));
  if (result_.interrupted && result_.run.step > 0) save(result_.run.step);
  if (timeline_) timeline_->finish();
  if (progress_) progress_->finish();
  report_now(/*last=*/true);
  if (!speeds_.empty()) {
    std::nth_element(speeds_.begin(), speeds_.begin() + static_cast<ptrdiff_t>(speeds_.size() / 2), speeds_.end());
    result_.units_per_second = speeds_[speeds_.size() / 2];
  }
  return result_;
}

Evaluation evaluate(Stepper& stepper, const TrainingWorkload& workload, int64_t most,
                    const std::function<bool()>& stop) {
  std::vector<double> measured;  // of the batches of this data rank, one behind the other
  Evaluation result;
  Batch batch;
  int64_t index = 0;
  double weight = 0;
  const int64_t count = workload.validation_batches(), own = stepper.data_rank(), ranks = stepper.data_ranks();
  for (; index < count && (most == 0 || result.targets < most); ++index) {
    if (stop && stop()) break;
    batch = workload.batch(DataSplit::kValidation, index);
    result.targets += batch.target_count, weight += weight_of_targets(batch);
    if (index % ranks != own) continue;
    const std::vector<double> values = stepper.measure(batch, workload);
    measured.insert(measured.end(), values.begin(), values.end());
  }
  if (index % ranks != 0 && own >= index % ranks) stepper.evaluate(batch);  // for the collectives of the others
  const std::vector<double> all = stepper.join_parts(measured, index);
  const size_t width = index > 0 ? all.size() / static_cast<size_t>(index) : 0;
  std::vector<std::vector<double>> numbers(width);
  for (size_t i = 0; i < all.size(); ++i) numbers[i % width].push_back(all[i]);
  result.metrics = workload.join(numbers, weight);
  return result;
}

RunTimeline::RunTimeline(const RunConfig& config) : config_(config) {
  check(resolve_device(config.device) == Device::kCuda, ErrorCode::kInvalidArgument,
        "profile.timeline requires a GPU, and this run is on the CPU: leave it out");
  device_ = make_device_timeline();
  // Fails before the first step if the path is not writable; an earlier trace is kept until the new one is written.
  const std::ofstream file(config_.profile_timeline, std::ios::app);
  check(file.good(), ErrorCode::kIo, "profile.timeline={} cannot be written: {}", config_.profile_timeline,
        std::strerror(errno));
}

void RunTimeline::step_begins(int64_t step) {
  if (device_ == nullptr || ++steps_ <= config_.profile_after) return;
  if (std::ssize(marks_) == config_.profile_steps) return finish();
  if (marks_.empty()) {
    first_step_ = step;
    device_->begin();
  }
  marks_.push_back(device_->now());
}

bool RunTimeline::at_border() const {
  if (device_ == nullptr) return false;
  return marks_.empty() ? steps_ == config_.profile_after : std::ssize(marks_) == config_.profile_steps;
}

void RunTimeline::finish() {
  if (device_ == nullptr) return;
  const std::unique_ptr<DeviceTimeline> device = std::move(device_);
  if (marks_.empty())
    return log_warning("profile.timeline: nothing was recorded, since the run ended before step {} of this process",
                       config_.profile_after + 1);
  const std::vector<DeviceActivity> activities = device->end();
  write_file(config_.profile_timeline, timeline_json(activities));
  log_info("{}{}", run_timeline_text(activities, marks_, first_step_, kGapsShown),
           timeline_text(activities, std::ssize(marks_), kKernelsShown));
}

}  // namespace octet
