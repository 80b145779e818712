#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <future>
#include <map>
#include <new>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/threads.h"
#include "infer/weights.h"
#include "io/corpus.h"
#include "io/manifest.h"
#include "train/auto_precision.h"
#include "train/diagnose.h"
#include "train/disk_space.h"
#include "train/load_bar.h"
#include "train/report.h"
#include "train/run_log.h"
#include "train/run_timeline.h"
#include "train/schedule.h"

namespace octet {
namespace {

volatile std::sig_atomic_t g_signal = 0;
void on_signal(int signal) { g_signal = signal; }

// SIGINT and SIGTERM set a flag while this lives; a second one acts as usual.
class SignalGuard {
 public:
  explicit SignalGuard(bool on) : on_(on) {
    g_signal = 0;
    if (!on_) return;
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESETHAND;
    sigaction(SIGINT, &action, &old_int_);
    sigaction(SIGTERM, &action, &old_term_);
  }
  ~SignalGuard() {
    if (!on_) return;
    sigaction(SIGINT, &old_int_, nullptr);
    sigaction(SIGTERM, &old_term_, nullptr);
  }
  bool raised() const { return g_signal != 0; }

 private:
  bool on_;
  struct sigaction old_int_ {
  }, old_term_{};
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The next step's micro-batches are made on another thread while this step computes.
class Prefetcher {
 public:
  Prefetcher(const TrainingBatches& batches, int64_t accumulation, int64_t first_step)
      : batches_(batches), accumulation_(accumulation) {
    start(first_step);
  }
  std::vector<HostBatch> take(int64_t step) {
    std::vector<HostBatch> ready = next_.get();
    start(step + 1);
    return ready;
  }

 private:
  void start(int64_t step) {
    next_ = std::async(std::launch::async, [this, step] {
      std::vector<HostBatch> made(static_cast<size_t>(accumulation_));
      for (int64_t i = 0; i < accumulation_; ++i)
        batches_.get((step - 1) * accumulation_ + i, made[static_cast<size_t>(i)]);
      return made;
    });
  }
  const TrainingBatches& batches_;
  int64_t accumulation_;
  std::future<std::vector<HostBatch>> next_;
};

// Nothing for a .bin/.idx pair made elsewhere, which has no record of its tokenizer.
std::optional<DatasetInfo> info_of(const std::string& prefix) {
  try {
    return read_dataset_info(prefix);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    return std::nullopt;
  }
}

class Run {
 public:
  Run(const RunConfig& config, const TrainHooks& hooks) : config_(config), hooks_(hooks) {
    validate(config_);
    check(!config_.train_data.empty(), ErrorCode::kInvalidArgument,
          "data.train is not set: make a corpus with `octet data FILES --out PREFIX` and give its PREFIX");
    set_thread_count(static_cast<int>(config_.threads));
    open_data();
    if (!config_.profile_timeline.empty()) timeline_.emplace(config_);
    find_checkpoint();
    build();
    resume_or_start();
  }

  TrainResult loop();

 private:
  void open_data();
  void find_checkpoint();
  void build();
  void resume_or_start();
  void evaluate_now(int64_t step);
  void save(int64_t step);
  std::vector<HostBatch> next_batches(Prefetcher& prefetcher, int64_t step);
  void warn_of_gemms_in_high_precision();
  void watch_finite(const StepResult& result, std::span<const HostBatch> micro_batches, int64_t step);
  std::string guilty(std::span<const HostBatch> micro_batches);
  void decide_precision(const StepResult& result, int64_t step);
  void plan_again(const std::vector<Switch>& made, int64_t step);
  void report_now(bool last);

  const RunConfig& config_;
  const TrainHooks& hooks_;
  ModelConfig model_;
  SpecialTokens special_;
  std::string tokenizer_folder_;
  std::shared_ptr<const TokenDataset> train_data_, validation_data_;
  std::unique_ptr<TrainingBatches> batches_;
  std::optional<std::string> resume_from_;
  std::optional<RunTimeline> timeline_;  // before the stepper, whose graphs it is to see
  std::unique_ptr<AutoPrecision> auto_;  // recipe auto only
  std::vector<Switch> first_switches_;   // what Target and shapes ask for at the start, or at a resume
  StepperOptions options_;
  std::unique_ptr<Stepper> stepper_;
  std::unique_ptr<FolderLock> lock_;
  std::unique_ptr<RunLog> log_;
  TrainResult result_;
  std::chrono::steady_clock::time_point reported_ = {};
  double report_seconds_ = 0;
  int64_t skipped_in_a_row_ = 0, last_saved_ = -1, last_evaluated_ = -1;
};

void Run::open_data() {
  int64_t vocab = 0;
  const std::optional<DatasetInfo> info = info_of(config_.train_data);
  if (info) {
    vocab = info->vocab_size;
    special_ = {.bos = info->eos_id, .eos = info->eos_id, .pad = -1};
    if (path_exists(info->tokenizer_path)) tokenizer_folder_ = info->tokenizer_path;
  }
  if (!config_.model_from.empty()) {  // its own ends and beginnings; its vocabulary where the data has none
    const SpecialTokens own = parse_special_tokens(read_file(config_.model_from + "/config.json", 1 << 24));
    if (own.bos >= 0 || own.eos >= 0) special_ = own;
    if (tokenizer_folder_.empty()) tokenizer_folder_ = config_.model_from;
  }
  if (const auto other = config_.validation_data.empty() ? std::nullopt : info_of(config_.validation_data);
      info && other)
    check(info->tokenizer_fingerprint == other->tokenizer_fingerprint, ErrorCode::kInvalidArgument,
          "data.validation {} was made with the vocabulary {}, data.train {} with {}: make both with one tokenizer",
          config_.validation_data, other->tokenizer_fingerprint, config_.train_data, info->tokenizer_fingerprint);
  model_ = resolve_model(config_, vocab);
  train_data_ = TokenDataset::open(config_.train_data, model_.vocab_size);
  if (!config_.validation_data.empty())
    validation_data_ = TokenDataset::open(config_.validation_data, model_.vocab_size);
  SampleOptions sampling{.length = config_.sequence_length,
                         .order = config_.sampling == "random" ? SampleOrder::kRandomOffset : SampleOrder::kShuffled,
                         .seed = static_cast<uint64_t>(config_.seed)};
  batches_ = std::make_unique<TrainingBatches>(train_data_, sampling, config_.micro_batch, config_.separate_documents);
}

void Run::build() {
  const Target target = hooks_.target ? *hooks_.target : target_of(resolve_device(config_.device));
  std::string why;
  if (config_.device == "auto" && target.device == Device::kCpu && !cuda_available(&why))
    log_info("runs on the CPU: {}", why);
  options_ = stepper_options(config_, target);
  if (options_.compile.recipe.statistics) {
    auto_ = std::make_unique<AutoPrecision>(model_, options_, config_.policy, config_.auto_interval);
    RunState kept = resume_from_ ? read_run_state(*resume_from_) : RunState{};
    first_switches_ = auto_->policy().switches();
    if (!kept.precision.empty())
      first_switches_ = auto_->policy().restore(kept.precision, *resume_from_ + "/run.json", kept.step);
  }
  try {
    Plan plan = auto_ ? auto_->plan() : compile_training(model_, options_);
    const std::optional<int64_t> free = hooks_.free_disk ? hooks_.free_disk : free_disk_bytes(config_.out);
    if (free) check_disk_space(config_, plan.program, resume_from_ ? read_run_state(*resume_from_).step : 0, *free);
    stepper_ = std::make_unique<Stepper>(std::move(plan), options_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    const std::string fitting = settings_that_fit(model_, config_, target, free_memory(target.device, options_.cuda));
    fail(error.code(), "{}; {}", error.message(),
         fitting.empty()
             ? "tried for this run, alone and together: smaller micro-batches, recomputation, transposes on "
               "demand; none makes it fit"
             : "of the settings that need less: " + fitting);
  }
  result_.planned_bytes = stepper_->plan().total_bytes();
  result_.allocated_bytes = stepper_->executor().allocated_bytes();
}

// Which checkpoint goes on is known before anything is compiled: its decisions are part of the plan.
void Run::find_checkpoint() {
  if (config_.resume == "auto") {
    resume_from_ = newest_sound_checkpoint(config_.out);
  } else if (config_.resume != "never") {
    verify_folder(config_.resume);
    resume_from_ = config_.resume;
  }
  if (resume_from_) check_resumable(*resume_from_);
}

void Run::resume_or_start() {
  make_folders(config_.out);
  lock_ = std::make_unique<FolderLock>(config_.out);
  log_ = std::make_unique<RunLog>(config_.out);
  for (const std::string& folder : unfinished_checkpoints(config_.out)) remove_path(folder);
  if (config_.checkpoint_content != "all")
    log_info("checkpoints will hold weights alone (checkpoint.content={}): this run cannot be resumed from them",
             config_.checkpoint_content);
  const Program& program = stepper_->plan().program;
  std::string data = fmt::format("{} tokens {} documents length {} sampling {} seed {} batch {}", train_data_->tokens(),
                                 train_data_->documents(), config_.sequence_length, config_.sampling, config_.seed,
                                 config_.accumulation() * config_.micro_batch);
  if (resume_from_) {
    LoadBar bar(program, {StateKind::kParam, StateKind::kMoment, StateKind::kScale});
    result_.run = read_checkpoint(*resume_from_, stepper_->executor(), [&](int64_t bytes) { bar.add(bytes); });
    check(result_.run.data == data, ErrorCode::kInvalidArgument,
          "{} was trained on \"{}\", this run has \"{}\": set resume=never (or another out=) to start afresh",
          *resume_from_, result_.run.data, data);
    result_.checkpoint = *resume_from_;
    last_saved_ = result_.run.step;
    log_info("resumed from {} at step {}", *resume_from_, result_.run.step);
    log_->event(result_.run.step, "resume", *resume_from_);
  } else if (!config_.model_from.empty()) {
    LoadBar bar(program, {StateKind::kParam});
    load_weights(*open_weights(config_.model_from), stepper_->executor(), [&](int64_t bytes) { bar.add(bytes); });
  } else {
    initialize_weights(stepper_->executor(), static_cast<uint64_t>(config_.seed));
  }
  if (config_.resume != "auto") {  // what was trained there before is another run's now
    const std::string aside = set_aside_checkpoints(config_.out, resume_from_ ? result_.run.step : -1);
    if (!aside.empty()) log_info("later checkpoints of {} were moved to {}", config_.out, aside);
  }
  RunConfig copy = config_;
  result_.run.settings = settings_of(copy).to_yaml();
  result_.run.data = data;
  write_file(config_.out + "/config.yaml", result_.run.settings);
  if (!auto_) return warn_of_gemms_in_high_precision();
  log_->switches(first_switches_);
  log_->rungs(result_.run.step, auto_->policy());
  log_info("precision of every GEMM\n{}", precision_map(auto_->policy()));
}

// Shapes that FP8 cannot take: under recipe auto they are switches of step 0.
void Run::warn_of_gemms_in_high_precision() {
  if (options_.compile.recipe.scaling == Scaling::kNone) return;
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const PolicyGemm& gemm : policy_gemms(model_, options_))
    if (!gemm.objection.empty()) by_reason[gemm.objection].push_back(gemm.key());
  for (const auto& [reason, gemms] : by_reason) {
    const std::string text = fmt::format("{} of the products stay in {}: {}{}: {}", gemms.size(),
                                         dtype_name(options_.compile.recipe.compute), gemms[0],
                                         gemms.size() > 1 ? " and others" : "", reason);
    log_warning("{}", text);
    log_->event(result_.run.step, "precision", text);
  }
}

void Run::evaluate_now(int64_t step) {
  if (!validation_data_ || last_evaluated_ == step) return;
  auto started = std::chrono::steady_clock::now();
  LossSum loss = evaluate_dataset(*stepper_, validation_data_, config_.eval_tokens, config_.separate_documents,
                                  [] { return g_signal != 0; });
  if (g_signal != 0) return log_info("evaluation left unfinished");
  last_evaluated_ = step;
  result_.last_eval_loss = loss.mean();
  const bool first = result_.run.best_step == 0;
  if (std::isfinite(loss.mean()) && (first || loss.mean() < result_.run.best_loss)) {
    result_.run.best_loss = loss.mean();
    result_.run.best_step = step;
  }
  log_->evaluation(step, loss.mean(), loss.tokens, seconds_since(started));
  const std::string best = result_.run.best_loss > 0 || result_.run.best_step > 0
                               ? fmt::format(", best {:.4f} at {}", result_.run.best_loss, result_.run.best_step)
                               : "";
  log_info("step {}: validation loss {:.4f}, perplexity {:.2f} ({} tokens, {:.1f} s){}", step, loss.mean(),
           std::exp(loss.mean()), loss.tokens, seconds_since(started), best);
}

void Run::save(int64_t step) {
  if (last_saved_ == step) return;
  CheckpointContent content = checkpoint_content(config_);
  content.model = model_;
  content.special = special_;
  content.run = result_.run;
  content.tokenizer_folder = tokenizer_folder_;
  const auto started = std::chrono::steady_clock::now();
  result_.checkpoint = write_checkpoint(config_.out, stepper_->executor(), content);
  last_saved_ = step;
  if (const double seconds = seconds_since(started); seconds > 1)
    log_info("step {}: {} written in {:.1f} s", step, result_.checkpoint, seconds);
  log_->event(step, "checkpoint", result_.checkpoint);
  // Weights that make nothing finite must not push out sound ones.
  if (skipped_in_a_row_ == 0) prune_checkpoints(config_.out, config_.checkpoint_keep, result_.run.best_step);
}

// Data that turns out to be damaged ends the run, not what it has learnt.
std::vector<HostBatch> Run::next_batches(Prefetcher& prefetcher, int64_t step) {
  try {
    return prefetcher.take(step);
  } catch (const Error&) {
    if (step > 1) save(step - 1);
    throw;
  }
}

// Where the numbers that are not finite came from, as far as can be told.
std::string Run::guilty(std::span<const HostBatch> micro_batches) {
  try {
    for (const HostBatch& batch : micro_batches) {
      const std::string value = first_non_finite_value(model_, options_, stepper_->executor(), batch);
      if (!value.empty()) return "in the forward pass, " + value;
    }
  } catch (const Error& error) {  // no memory for a second look
    log_debug("the forward pass was not looked at: {}", error.message());
  }
  const std::string gradient = last_non_finite_gradient(stepper_->executor());
  return gradient.empty() ? "in no parameter" : "in the backward pass, the gradient of " + gradient;
}

void Run::watch_finite(const StepResult& result, std::span<const HostBatch> micro_batches, int64_t step) {
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
  const std::string where = guilty(micro_batches);
  log_->event(step, "stop", "numbers that are not finite, first " + where);
  const std::string before = result_.checkpoint.empty() ? resume_from_.value_or("") : result_.checkpoint;
  save(step);  // the weights are those of the last step that was taken
  const std::string sound =
      before.empty() ? "" : fmt::format("; resume={} goes on from the one before steps were skipped", before);
  fail(ErrorCode::kInvalidArgument,
       "{} steps in a row had non-finite gradients at step {}, first {}: lower optimizer.lr or choose a wider "
       "precision.recipe; the last checkpoint is {}{}",
       skipped_in_a_row_, step, where, result_.checkpoint, sound);
}

// After a round of statistics: what the policy switches holds from the next step on.
void Run::decide_precision(const StepResult& result, int64_t step) {
  log_->statistics(step, result.statistics);
  if (!result.finite) return;  // a skipped step: what is not finite has reached tensors of every layer
  const std::string before = auto_->policy().state();
  std::vector<Switch> made = auto_->policy().observe(step, result.statistics);
  if (!made.empty()) {
    try {
      plan_again(made, step);
    } catch (const Error& error) {  // the run goes on as it was, and tries again after the next round
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      auto_->policy().restore(before, "the decisions before", step);
      log_->event(step, "replan", fmt::format("{} switches taken back: {}", made.size(), error.message()));
      log_warning("step {}: {} switches of precision taken back: {}", step, made.size(), error.message());
    }
  }
  log_->rungs(step, auto_->policy());
  result_.run.precision = auto_->policy().state();
  report_now(/*last=*/false);
}

// Moves the run to the plan of the policy's decisions. Throws kOutOfMemory with the stepper as it was.
void Run::plan_again(const std::vector<Switch>& made, int64_t step) {
  auto started = std::chrono::steady_clock::now();
  bool cached = false;
  const Plan& plan = auto_->plan(&cached);
  const Plan old = stepper_->plan();
  TrainingState state;
  try {
    state = take_state(stepper_->executor());
  } catch (const std::bad_alloc&) {
    fail(ErrorCode::kOutOfMemory, "the host's memory does not hold the weights and moments while the plan changes");
  }
  stepper_.reset();  // its memory first: two executors need not fit side by side
  try {
    check(plan.target.memory_bytes == 0 || plan.total_bytes() <= plan.target.memory_bytes, ErrorCode::kOutOfMemory,
          "the new plan needs {} bytes, {} has {}", plan.total_bytes(), plan.target.name, plan.target.memory_bytes);
    stepper_ = std::make_unique<Stepper>(plan, options_);
  } catch (const Error&) {
    stepper_ = std::make_unique<Stepper>(old, options_);
    put_state(stepper_->executor(), state);
    throw;
  }
  put_state(stepper_->executor(), state);
  result_.planned_bytes = std::max(result_.planned_bytes, plan.total_bytes());
  result_.allocated_bytes = std::max(result_.allocated_bytes, stepper_->executor().allocated_bytes());
  log_->switches(made);
  std::string cost = fmt::format("{} GEMMs switched, planned again in {:.0f} ms{}", made.size(),
                                 1e3 * seconds_since(started), cached ? " (plan known)" : "");
  log_->event(step, "replan", cost);
  constexpr size_t kShown = 6;
  for (size_t i = 0; i < std::min(kShown, made.size()); ++i)
    log_info("step {}: {} from {} to {}: {}", step, made[i].gemm, rung_name(made[i].from), rung_name(made[i].to),
             made[i].reason);
  if (made.size() > kShown) log_info("and {} more: {}/log.jsonl", made.size() - kShown, config_.out);
  log_info("step {}: {}\n{}", step, cost, precision_map(auto_->policy()));
}

// The page grows with the run: rounds are left out while it would take more than a hundredth of the time.
void Run::report_now(bool last) {
  if (!auto_ || (!last && seconds_since(reported_) < 100 * report_seconds_)) return;
  auto started = std::chrono::steady_clock::now();
  write_report(config_.out);
  reported_ = std::chrono::steady_clock::now();
  report_seconds_ = seconds_since(started);
}

TrainResult Run::loop() {
  SignalGuard signals(hooks_.handle_signals);
  Progress progress({.title = "train", .unit = "step", .total = config_.steps, .start = result_.run.step});
  std::vector<double> speeds;
  Prefetcher prefetcher(*batches_, config_.accumulation(), result_.run.step + 1);
  if (result_.run.step == 0 && config_.eval_interval > 0) evaluate_now(0);
  while (result_.run.step < config_.steps) {
    int64_t step = result_.run.step + 1;
    if (timeline_) timeline_->step_begins(step);
    auto started = std::chrono::steady_clock::now();
    double lr = learning_rate(config_.optimizer, config_.steps, step);
    std::vector<HostBatch> micro_batches = next_batches(prefetcher, step);
    const double waited = seconds_since(started);
    result_.data_seconds += waited;
    StepResult done =
        stepper_->step(micro_batches, lr, step, static_cast<uint64_t>(config_.seed), auto_ && auto_->due(step));
    double seconds = seconds_since(started);
    result_.seconds += seconds;
    result_.run.step = step;
    result_.run.tokens += done.tokens;
    result_.last_loss = done.loss;
    speeds.push_back(static_cast<double>(done.tokens) / seconds);
    if (hooks_.on_step) hooks_.on_step(result_.run, done);
    watch_finite(done, micro_batches, step);
    if (!done.statistics.empty()) decide_precision(done, step);
    if (step % config_.log_interval == 0 || step == config_.steps)
      log_->step({.step = step,
                  .tokens = result_.run.tokens,
                  .loss = done.loss,
                  .grad_norm = done.grad_norm,
                  .lr = lr,
                  .seconds = seconds,
                  .tokens_per_second = speeds.back(),
                  .data_seconds = waited,
                  .finite = done.finite});
    progress.update(step, fmt::format("loss {:.4f}  {:.0f} tok/s", done.loss, speeds.back()));
    bool last = step == config_.steps;
    if (timeline_ && last) timeline_->finish();
    if (last || (config_.eval_interval > 0 && step % config_.eval_interval == 0)) evaluate_now(step);
    bool stop = signals.raised();
    bool due = config_.checkpoint_interval > 0 && step % config_.checkpoint_interval == 0;
    bool best = config_.checkpoint_best && result_.run.best_step == step;
    const bool sound = skipped_in_a_row_ == 0;  // else the next sound step's checkpoint will do
    if (last || stop || ((due || best) && sound)) save(step);
    if (stop && !last) {
      result_.interrupted = true;
      break;
    }
  }
  if (timeline_) timeline_->finish();
  progress.finish();
  report_now(/*last=*/true);
  if (!speeds.empty()) {
    std::nth_element(speeds.begin(), speeds.begin() + static_cast<ptrdiff_t>(speeds.size() / 2), speeds.end());
    result_.tokens_per_second = speeds[speeds.size() / 2];
  }
  return result_;
}

}  // namespace

TrainResult train(const RunConfig& config, const TrainHooks& hooks) { return Run(config, hooks).loop(); }

LossSum evaluate_dataset(Stepper& stepper, std::shared_ptr<const TokenDataset> data, int64_t max_tokens,
                         bool separate_documents, const std::function<bool()>& stop) {
  const BatchShape& shape = stepper.eval_shape();
  int64_t length = shape.max_length, sequences = shape.tokens / length;
  TokenSampler sampler(std::move(data), {.length = length, .order = SampleOrder::kSequential});
  BatchPacker packer(sequences, length, separate_documents);
  LossSum total;
  TokenSample sample;
  int64_t count = sampler.samples_per_epoch();
  for (int64_t first = 0; first < count && (max_tokens == 0 || total.tokens < max_tokens); first += sequences) {
    if (stop && stop()) break;
    packer.clear();
    for (int64_t i = first; i < std::min(count, first + sequences); ++i) {
      sampler.get(i, sample);
      packer.add(sample.tokens, sample.segments);
    }
    LossSum part = stepper.evaluate(packer.finish());
    total.sum += part.sum;
    total.tokens += part.tokens;
  }
  return total;
}

}  // namespace octet
