// What a run does before its first step: everything rejectable is rejected here.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "base/integers.h"
#include "base/log.h"
#include "base/threads.h"
#include "dist/control.h"
#include "exec/logical_states.h"
#include "io/manifest.h"
#include "ir/text.h"
#include "train/diagnose.h"
#include "train/run.h"
#include "train/start_checks.h"
#include "weights/weights.h"

namespace octet {
namespace {

constexpr int64_t kWarmUpSteps = 3;  // CUDA graphs are captured at a second launch

// A progress bar for states that take long to load: megabytes as the executor holds them. Small models have none.
class LoadBar {
 public:
  // Of the states of these roles.
  LoadBar(const Program& program, bool (*counts)(StateRole)) {
    for (const LogicalState& tensor : logical_states(program)) total_ += counts(tensor.role) ? tensor.type.bytes() : 0;
    if (total_ >= kLarge)
      progress_.emplace(ProgressOptions{.title = "load", .unit = "MB", .total = total_ / kMegabyte});
  }
  void add(int64_t bytes) {
    done_ += bytes;
    if (progress_) progress_->update(done_ / kMegabyte);
  }

 private:
  static constexpr int64_t kMegabyte = 1'000'000, kLarge = 1000 * kMegabyte;
  int64_t total_ = 0, done_ = 0;
  std::optional<Progress> progress_;
};

// Why attention cannot use the library's dropout masks although the settings ask for them; "" if it can.
std::string why_portable_masks(const RunConfig& config, const StepperOptions& options) {
  if (!options.compile.target.traits.library_masks) return "a CPU has none";
  if (!options.library_masks) return "train.deterministic is set";
  const DType compute = options.compile.recipe.compute;
  return compute == DType::kBF16 ? ""
                                 : fmt::format("they require bf16, which precision.recipe={} is not", config.recipe);
}

// Those of a checkpoint go with its weights.
void take_statistics(const std::string& folder, Executor& executor) {
  if (!has_statistics(executor.program())) return;
  const bool there =
      path_exists(folder + "/statistics.safetensors") || path_exists(folder + "/statistics.safetensors.index.json");
  there ? read_statistics(folder, executor)
        : log_warning("model.from={}: it has no statistics.safetensors: running statistics begin anew", folder);
}

}  // namespace

Run::Run(const RunConfig& config, const TrainHooks& hooks, const RankLinks& links)
    : config_(config), hooks_(hooks), links_(links), own_folder_(config.out) {
  const LoggedTime time("start of the run");
  validate(config_);
  set_thread_count(static_cast<int>(config_.threads));
  if (!is_first()) own_folder_ += fmt::format("/ranks/rank_{}", links_.ranks->rank());
  open_workload();
  if (is_first() && !config_.profile_timeline.empty()) timeline_.emplace(config_);
  do_together(links_.ranks, [&] { return check_writable(config_.out), ""; });
  find_checkpoint();
  if (!config_.model_from.empty() && !resume_from_) workload_->check_start(config_.model_from);
  build();
  resume_or_start();
}

void Run::open_workload() {
  const LoggedTime time("data");
  const WorkloadRow& row = hooks_.workload != nullptr ? *hooks_.workload : workload_row(config_);
  workload_ = row.open(config_);
  const int64_t samples = workload_->samples_per_epoch(), a_step = config_.accumulation() * config_.micro_batch;
  if (config_.optimizer.schedule == "exponential" && config_.optimizer.decay_every == 0) {
    check(samples > 0, ErrorCode::kInvalidArgument,
          "optimizer.schedule=exponential: this workload has no epochs: set optimizer.decay_every");
    config_.optimizer.decay_every = std::max<int64_t>(1, ceil_div(samples, a_step));
  }
  if (config_.epochs > 0) {
    check(samples > 0, ErrorCode::kInvalidArgument, "train.epochs={}: this workload has no epochs: set train.steps",
          config_.epochs);
    check(config_.sampling != "random", ErrorCode::kInvalidArgument,
          "train.epochs={}: data.sampling=random has no epochs: set data.sampling=shuffle, or train.steps",
          config_.epochs);
    config_.steps = std::max<int64_t>(
        1, std::llround(std::ceil(config_.epochs * static_cast<double>(samples) / static_cast<double>(a_step) - 1e-9)));
    if (is_first())
      log_info("train.epochs={}: {} steps of {} of the {} sequences of an epoch", config_.epochs, config_.steps, a_step,
               samples);
  }
  open_tasks();
  result_.unit = workload_->unit(), result_.metric = workload_->metrics()[0];
  if (hooks_.timed == nullptr) read_data_record();
}

void Run::read_data_record() {
  data_ = workload_->data();
  if (links_.control != nullptr) links_.control->compare("data", data_.data + "\nchecksum " + data_.checksum);
}

// Whatever is compiled, captured or allocated by a first step and evaluation is so before the data is read; the state
// is that of before.
void Run::begin_timed() {
  const TrainingState state = take_state(stepper_->executor());
  const std::vector<Batch> made(static_cast<size_t>(config_.accumulation()), workload_->made_up_batch());
  for (int64_t step = 1; step <= kWarmUpSteps; ++step)
    stepper_->step({.micro_batches = made, .lr = 0, .step = step, .seed = static_cast<uint64_t>(config_.seed)});
  if (workload_->validation_batches() > 0) stepper_->measure(made[0], *workload_);
  put_state(stepper_->executor(), state);
  if (links_.ranks != nullptr) barrier(*links_.ranks);
  if (is_first()) hooks_.timed->ready(config_, *workload_);
  read_data_record();
  result_.run.data = data_.data;
  result_.run.data_checksum = data_.checksum, result_.run.frozen = data_.frozen;
  result_.run.validation = data_.validation;
}

void Run::open_tasks() {
  if (config_.eval_tasks.empty()) return;
  const auto* model = dynamic_cast<const LanguageModel*>(workload_.get());
  check(model != nullptr && hooks_.open_tasks, ErrorCode::kUnsupported,
        "eval.tasks={}: {}: leave it out, or run octet eval --tasks on checkpoints", config_.eval_tasks[0],
        model == nullptr ? "tasks are of language models" : "this program does not run tasks, octet train does");
  check_scores_sequences(config_);
  check(!model->tokenizer_folder().empty(), ErrorCode::kInvalidArgument,
        "eval.tasks={}: neither data.train {} nor model.from has a tokenizer, which tasks need", config_.eval_tasks[0],
        config_.train_data);
  tasks_ = hooks_.open_tasks(config_,
                             {.tokenizer = model->tokenizer_folder(), .length = model->length(), .first = is_first()});
}

// The checkpoint is chosen before anything is compiled: its precision decisions are part of the plan.
void Run::find_checkpoint() {
  const LoggedTime time("checkpoints looked through");
  if (is_first() && config_.resume == "auto") {
    resume_from_ = checkpoint_to_resume(config_.out);
  } else if (is_first() && config_.resume != "never") {
    verify_folder(config_.resume);
    resume_from_ = config_.resume;
  }
  if (links_.ranks != nullptr) {
    const std::string chosen = resume_from_.value_or("");
    const std::vector<std::byte> first = gather(*links_.ranks, std::as_bytes(std::span(chosen)))[0];
    if (!first.empty()) resume_from_ = {reinterpret_cast<const char*>(first.data()), first.size()};
    do_together(links_.ranks, [&] {
      check(!resume_from_ || path_exists(*resume_from_), ErrorCode::kNotFound,
            "{}, from which rank 0 resumes, is not visible here: all ranks need the same folder", *resume_from_);
      return "";
    });
  }
  if (!resume_from_) {
    std::random_device random;
    kept_.lineage = fmt::format("{:08x}{:08x}", random(), random());
    return;
  }
  check_resumable(*resume_from_);
  kept_ = read_run_state(*resume_from_);
  workload_->check_same_model(*resume_from_);
  check_same_data(kept_, *resume_from_, data_);
  check_same_optimizer(kept_, *resume_from_, config_);
  changed_settings_ = changed_settings(kept_, *resume_from_, config_);
}

void Run::build() {
  options_.cuda.device = links_.device;
  const Target target = hooks_.target ? *hooks_.target : target_of(resolve_device(config_.device), options_.cuda);
  std::string why;
  if (config_.device == "auto" && !cuda_available(&why)) log_info("running on the CPU: {}", why);
  options_ = stepper_options(config_, target);
  options_.ranks = links_.ranks;
  options_.cuda.device = links_.device;
  options_.cuda.ranks = links_.devices;
  if (const std::string note = slow_recipe_note(options_.compile.recipe, target.device, has_bf16_tiles());
      !note.empty())
    log_info("{}", note);
  if (options_.compile.recipe.name != config_.recipe)
    log_info("adapter.base=nf4: products run in {}, not in precision.recipe={}", options_.compile.recipe.name,
             config_.recipe);
  if (config_.dropout_masks == "library" && config_.dropout > 0)
    if (const std::string none = why_portable_masks(config_, options_); !none.empty())
      log_info("train.dropout_masks=library: attention uses portable masks instead of the library's: {}", none);
  if (options_.compile.recipe.statistics) {
    auto_ = std::make_unique<AutoPrecision>(*workload_, options_, config_.policy, config_.auto_interval);
    first_switches_ = auto_->policy().switches();
    if (!kept_.precision.empty())
      first_switches_ = auto_->policy().restore(kept_.precision, *resume_from_ + "/run.json", kept_.step);
  }
  try {
    Plan plan = [&] {
      const LoggedTime time("plan");
      return auto_ ? auto_->plan() : compile_training(*workload_, options_);
    }();
    compare_plans(plan.program);
    const std::optional<int64_t> free = hooks_.free_disk ? hooks_.free_disk : free_disk_bytes(config_.out);
    if (free) check_disk_space(config_, plan.program, kept_, *free);
    workload_->prepare(options_, config_.out);
    const LoggedTime time("executor");
    stepper_ = std::make_unique<Stepper>(std::move(plan), options_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    const std::string fitting =
        settings_that_fit(*workload_, config_, target, free_memory(target.device, options_.cuda));
    const Parallel& parallel = options_.compile.parallel;
    const std::string stage = parallel.mesh[Axis::kPipeline] > 1
                                  ? fmt::format("stage {} of {}: ", links_.ranks->coordinate()[Axis::kPipeline],
                                                parallel.mesh[Axis::kPipeline])
                                  : "";
    fail(error.code(), "{}{}; {}", stage, error.message(),
         fitting.empty() ? none_fits(config_) : "of the settings that need less: " + fitting);
  }
  result_.planned_bytes = stepper_->plan().total_bytes();
  result_.allocated_bytes = stepper_->executor().allocated_bytes();
}

// Stages of a pipeline have plans of their own, of which only hashes are compared.
void Run::compare_plans(const Program& program) const {
  if (links_.control == nullptr) return;
  if (program.mesh()[Axis::kPipeline] == 1) return links_.control->compare("plan", print(program));
  const uint64_t own = fingerprint(program);
  const auto all = gather(*links_.ranks, std::as_bytes(std::span(&own, 1)));
  for (int32_t rank = 0; rank < program.mesh().ranks(); ++rank) {
    Coordinate first{};
    first.at[static_cast<size_t>(Axis::kPipeline)] = program.mesh().coordinate(rank)[Axis::kPipeline];
    const int32_t of_stage = program.mesh().rank(first);
    check(all[static_cast<size_t>(rank)] == all[static_cast<size_t>(of_stage)], ErrorCode::kInvalidArgument,
          "plan: ranks {} and {} of stage {} have different ones: start the same program in the same way on all hosts",
          of_stage, rank, first[Axis::kPipeline]);
  }
}

void Run::resume_or_start() {
  if (links_.ranks != nullptr) check_shared(*links_.ranks, config_.out);
  make_folders(own_folder_);
  lock_ = std::make_unique<FolderLock>(own_folder_);
  log_ = std::make_unique<RunLog>(own_folder_, resume_from_ ? kept_.step + 1 : 0, *workload_);
  if (!resume_from_) log_->event(0, "start", config_.model_from);
  if (is_first())
    for (const std::string& folder : unfinished_checkpoints(config_.out)) remove_path(folder);
  if (config_.checkpoint_content != "all")
    log_info("checkpoints will contain only weights (checkpoint.content={}): this run cannot be resumed from them",
             config_.checkpoint_content);
  const Program& program = stepper_->plan().program;
  result_.run = kept_;
  if (resume_from_) {
    LoadBar bar(program, [](StateRole role) { return is_saved(role) || role == StateRole::kCodes; });
    try {
      read_checkpoint(*resume_from_, stepper_->executor(), *workload_, [&](int64_t bytes) { bar.add(bytes); });
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument || changed_settings_.empty()) throw;
      fail(error.code(), "{} (settings changed since: {})", error.message(), changed_settings_);
    }
    result_.checkpoint = *resume_from_;
    last_saved_ = result_.run.step;
    log_info("resumed from {} at step {}", *resume_from_, result_.run.step);
    log_->event(result_.run.step, "resume", *resume_from_);
    if (!changed_settings_.empty()) {
      log_info("settings changed since: {}", changed_settings_);
      log_->event(result_.run.step, "settings", changed_settings_);
    }
    if (const std::string changed = changed_rate(kept_, *resume_from_, config_); !changed.empty()) {
      log_warning("{}", changed);
      log_->event(result_.run.step, "settings", changed);
    }
    if (kept_.best_step > 0 && !kept_.validation.empty() && !data_.validation.empty() &&
        kept_.validation != data_.validation) {
      log_warning(
          "the best validation {} so far, {:.{}f} at step {}, was measured on \"{}\", but this run has \"{}\": the "
          "search for the best starts again, and that checkpoint is kept no longer than others",
          result_.metric.name, kept_.best_metric, result_.metric.digits, kept_.best_step, kept_.validation,
          data_.validation);
      result_.run.best_metric = 0, result_.run.best_step = 0;
    }
  } else if (!config_.model_from.empty()) {
    LoadBar bar(program, [](StateRole role) { return role == StateRole::kMaster || role == StateRole::kCodes; });
    workload_->load(config_.model_from, stepper_->executor(), [&](int64_t bytes) { bar.add(bytes); });
    take_statistics(config_.model_from, stepper_->executor());
  } else {
    initialize_weights(stepper_->executor(), static_cast<uint64_t>(config_.seed));
  }
  // What was trained there before is another run's now, or was passed over.
  if (links_.ranks != nullptr) barrier(*links_.ranks);  // all have read what is moved
  const std::string aside = is_first() ? set_aside_checkpoints(config_.out, resume_from_ ? result_.run.step : -1) : "";
  if (!aside.empty()) log_info("later checkpoints of {} were moved to {}", config_.out, aside);
  RunConfig copy = config_;
  result_.run.settings = settings_of(copy).to_yaml();
  result_.run.data = data_.data;
  result_.run.data_checksum = data_.checksum, result_.run.frozen = data_.frozen;
  if (!data_.validation.empty()) result_.run.validation = data_.validation;
  write_file(own_folder_ + "/config.yaml", result_.run.settings);
  const Mesh& mesh = program.mesh();
  if (mesh.ranks() > 1)
    log_->event(result_.run.step, "ranks",
                fmt::format("parallel.pipeline={} parallel.tensor={} parallel.data={} parallel.context={}",
                            mesh[Axis::kPipeline], mesh[Axis::kTensor], mesh[Axis::kData], mesh[Axis::kContext]));
  if (!auto_) return warn_of_gemms_in_high_precision();
  log_->switches(first_switches_);
  log_->levels(result_.run.step, auto_->policy());
  log_info("precision of every GEMM\n{}", precision_map(auto_->policy()));
}

// Shapes that FP8 cannot take: under recipe auto they are switches of step 0.
void Run::warn_of_gemms_in_high_precision() {
  if (options_.compile.recipe.scaling == Scaling::kNone) return;
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const PolicyGemm& gemm : policy_gemms(*workload_, options_))
    if (!gemm.unsupported_reason.empty()) by_reason[gemm.unsupported_reason].push_back(gemm.key());
  for (const auto& [reason, gemms] : by_reason) {
    const std::string text =
        fmt::format("{} of the GEMMs stay in {}: {}{}: {}", gemms.size(), dtype_name(options_.compile.recipe.compute),
                    gemms[0], gemms.size() > 1 ? " and others" : "", reason);
    log_warning("{}", text);
    log_->event(result_.run.step, "precision", text);
  }
}

}  // namespace octet
