// octet-bench train-step: speed and memory of whole optimiser steps on random tokens, through the trainer's Stepper.
#include <algorithm>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/threads.h"
#include "bench/commands.h"
#include "bench/random_batches.h"
#include "bench/step_report.h"
#include "dist/local_ranks.h"
#include "exec/logical_states.h"
#include "exec/rank_devices.h"
#include "exec/timeline.h"
#include "numbers.h"
#include "train/adapter_settings.h"
#include "train/auto_precision.h"
#include "train/language_model.h"
#include "train/stepper.h"
#include "weights/weights.h"

namespace octet {
namespace {

struct Options {
  std::string model = "gpt2-124m", recipe = "fp32", recompute = "auto", device = "cpu", json, timeline,
              transposes = "cached";
  int64_t batch = 4, length = 64, micro_batches = 1, steps = 5, warmup = 2, layers = 0, hidden = 0, top = 15,
          gemm = 2048;
  int threads = 0;
  bool profile = false, verbose = false;
  int32_t tensor = 1, data = 1, context = 1, pipeline = 1, chunks = 1;
  std::string shard = "none", base = "recipe";
  int64_t adapter_rank = 0;
  bool sequence = false, no_overlap = false, no_peer_memory = false;

  Parallel parallel() const {
    return {.mesh = {{pipeline, data, context, tensor}},
            .sequence = sequence,
            .overlap = !no_overlap,
            .level = parse_shard_level(shard),
            .chunks = chunks,
            .micro_batches = static_cast<int32_t>(micro_batches / data)};
  }
};

std::string gemm_precision(const Recipe& recipe) {
  if (recipe.scaling == Scaling::kBlock) return "fp8-block";
  if (recipe.scaling != Scaling::kNone) return "fp8-tensor";
  return recipe.compute == DType::kF32 ? "f32" : "bf16";
}

struct Work {
  ModelConfig model;
  Recipe recipe;
  Target target;
  AdapterSpec adapter;
  std::vector<Batch> batches;  // the same tokens every step: the loss must fall, which shows that the step trains
  std::vector<std::unique_ptr<DeviceTimeline>> timelines;  // by rank

  LanguageModel workload(const Options& options) const {
    return {model, options.batch, options.length, false, adapter};
  }
  StepperOptions stepper(const Options& options) const {
    return {.optimizer = {.lr = 1e-4},
            .compile = {.target = target,
                        .parallel = options.parallel(),
                        .recipe = recipe,
                        .recompute = parse_recompute(options.recompute, target)}};
  }
};

// What one rank does; null: the only one. The first one's times and memory are reported.
void measure_rank(const Options& options, const Work& work, const LocalRank* rank, StepReport& report) {
  using Clock = std::chrono::steady_clock;
  StepperOptions stepper_options = work.stepper(options);
  if (rank != nullptr) {
    stepper_options.ranks = rank->ranks;
    stepper_options.cuda = {.device = rank->device, .ranks = rank->devices};
  }
  auto begin = Clock::now();
  Stepper stepper(work.recipe.statistics
                      ? AutoPrecision(work.workload(options), stepper_options, {}, 1).plan()  // by the Target
                      : compile_training(work.workload(options), stepper_options),
                  stepper_options);
  const double plan_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  fill_random_weights(stepper.executor(), 1337);

  // As in a run: on a GPU the next step starts before the results of the previous one are read.
  const bool ahead = work.target.traits.steps_ahead > 0;
  StepWork next{.micro_batches = work.batches, .lr = 1e-4, .step = 0, .seed = 1337};
  std::optional<StepWork> in_flight;
  StepResult result;
  double first_loss = 0;
  std::vector<Clock::time_point> ends;  // of steps
  auto wait = [&] {
    if (!in_flight) return;
    result = stepper.wait(*in_flight);
    ends.push_back(Clock::now());
    if (in_flight->step == 1) first_loss = result.loss;
    check(result.finite, ErrorCode::kInternal, "step {}: gradients are not finite", in_flight->step);
    in_flight.reset();
  };
  auto run = [&] {
    ++next.step;
    stepper.begin(next);
    if (ahead) wait();
    stepper.run_remaining_micro_batches(next);
    stepper.apply(next);
    in_flight = next;
    if (!ahead) wait();
  };
  // Seconds from the end of one step to the end of the next: what the host enqueues ahead counts for no step.
  auto time = [&](int64_t warmup) {
    wait();
    if (rank != nullptr) barrier(*rank->ranks);
    ends = {Clock::now()};
    for (int64_t i = 0; i < warmup + options.steps; ++i) run();
    wait();
    std::vector<double> seconds;
    for (size_t i = static_cast<size_t>(warmup) + 1; i < ends.size(); ++i)
      seconds.push_back(std::chrono::duration<double>(ends[i] - ends[i - 1]).count());
    return seconds;
  };
  const std::vector<double> seconds = time(ahead ? std::max<int64_t>(1, options.warmup) : options.warmup);
  const StepResult measured = result;
  if (!work.timelines.empty()) {
    DeviceTimeline& timeline = *work.timelines[rank != nullptr ? static_cast<size_t>(rank->ranks->rank()) : 0];
    timeline.begin();
    time(0);
    const std::vector<DeviceActivity> activities = timeline.end();
    if (rank != nullptr) barrier(*rank->ranks);
    const std::string name =
        options.timeline + (rank != nullptr && rank->ranks->rank() > 0 ? fmt::format(".{}", rank->ranks->rank()) : "");
    write_file(name, timeline_json(activities));
    fmt::print("{}{}", rank != nullptr ? fmt::format("rank {}: ", rank->ranks->rank()) : "",
               timeline_text(activities, options.steps, options.top));
  }
  if (options.profile) {
    stepper.executor().set_profiling(true);
    time(0);
    if (rank == nullptr || rank->ranks->rank() == 0) report.profile = stepper.executor().profile();
    stepper.executor().set_profiling(false);
    report.profiled_steps = options.steps;
  }
  if (rank != nullptr && rank->ranks->rank() > 0) return;
  report.seconds = seconds;
  report.plan_seconds = plan_seconds;
  report.first_loss = first_loss;
  report.last_loss = measured.loss;
  report.peak = process_memory().peak;
  const Plan& plan = stepper.plan();
  report.state_bytes = plan.state_bytes;
  report.arena_bytes = plan.arena_bytes;
  report.input_bytes = plan.input_bytes;
  report.allocated_bytes = stepper.executor().allocated_bytes();
}

StepReport measure_step(const Options& options) {
  set_thread_count(options.threads);
  if (options.verbose) set_log_level(LogLevel::kDebug);
  const int32_t ranks = options.parallel().mesh.ranks();
  check(options.micro_batches % options.data == 0, ErrorCode::kInvalidArgument,
        "--micro-batches {} do not divide among --data {} ranks (want a multiple)", options.micro_batches,
        options.data);
  Work work{.model = named_model(options.model), .recipe = parse_recipe(options.recipe)};
  ModelConfig& model = work.model;
  model.max_positions = std::max(model.max_positions, options.length);
  if (options.layers > 0) model.layers = options.layers;
  if (options.hidden > 0) {
    constexpr int64_t kHead = 64;
    model.hidden = options.hidden;
    model.heads = std::max<int64_t>(options.hidden / kHead, 1);
    model.kv_heads = model.head_dim = model.intermediate = 0;
  }
  check(options.adapter_rank > 0 || options.base == "recipe", ErrorCode::kInvalidArgument,
        "--base {} is of a frozen model: give --adapter-rank", options.base);
  if (options.adapter_rank > 0) {
    const AdapterSettings adapter{.method = "lora", .rank = options.adapter_rank, .base = options.base};
    work.adapter = adapter_spec(adapter, model);
    work.adapter.nf4 = nf4_of(adapter, "");
  }
  work.recipe.keep_transposes = options.transposes == "cached";
  work.target = target_of(resolve_device(options.device));
  work.batches = random_batches(options.micro_batches, options.batch, options.length, model.vocab_size);
  StepReport report{.model = options.model,
                    .recipe = options.recipe,
                    .recompute = options.recompute,
                    .cpu = work.target.device == Device::kCuda ? work.target.name : cpu_model(),
                    .ranks = ranks,
                    .threads = thread_count(),
                    .batch = options.batch,
                    .length = options.length,
                    .micro_batches = options.micro_batches,
                    .steps = options.steps};
  report.resident_before = process_memory().resident;
  for (int32_t r = 0; r < ranks && !options.timeline.empty(); ++r) work.timelines.push_back(make_device_timeline(r));
  if (ranks == 1) {
    measure_rank(options, work, nullptr, report);
  } else {
    const ThreadShare share(ranks);
    run_local_ranks(options.parallel().mesh, rank_devices(work.target.device, !options.no_peer_memory),
                    [&](const LocalRank& rank) { measure_rank(options, work, &rank, report); });
  }

  StepperOptions one = work.stepper(options);  // the whole model's work and parameters
  one.compile.parallel = {};
  const Plan whole = compile_training(work.workload(options), one);
  for (const LogicalState& tensor : logical_states(whole.program))
    if (tensor.role == StateRole::kMaster || (tensor.role == StateRole::kCodes && tensor.update == Update::kNone))
      report.parameters += tensor.type.shape.elements();
  report.flops = model_flops(*whole.program.find_graph(GraphRole::kTrain)) * static_cast<double>(options.micro_batches);
  report.gemm = measure_gemm(work.target, gemm_precision(work.recipe), options.gemm, options.gemm, options.gemm, 10);
  return report;
}

void run_train_step(const Options& options) {
  StepReport report = measure_step(options);
  fmt::print("{}", to_text(report, options.top));
  if (!options.json.empty()) write_file(options.json, to_json(report));
}

}  // namespace

void add_train_step_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("train-step", "Speed and memory of an optimiser step on random tokens");
  command->add_option("--model", options->model, "a named size")->capture_default_str();
  command->add_option("--recipe", options->recipe)->capture_default_str();
  command->add_option("--device", options->device, "auto | cpu | cuda")->capture_default_str();
  command->add_option("--recompute", options->recompute, "auto | none | light | selective | full")
      ->capture_default_str();
  command->add_option("--adapter-rank", options->adapter_rank, "train LoRA of this rank, of all linears; 0: the model")
      ->check(not_negative())
      ->capture_default_str();
  command->add_option("--base", options->base, "of --adapter-rank, how the frozen linears are held")
      ->check(CLI::IsMember({"recipe", "nf4"}))
      ->capture_default_str();
  command->add_option("--transposes", options->transposes, "transposed FP8 weights: cached | on-demand")
      ->check(CLI::IsMember({"cached", "on-demand"}))
      ->capture_default_str();
  for (auto [name, field, meaning] : {std::tuple{"--batch", &options->batch, "sequences in a micro-batch"},
                                      std::tuple{"--length", &options->length, "tokens a sequence"},
                                      std::tuple{"--micro-batches", &options->micro_batches, "of a step"},
                                      std::tuple{"--steps", &options->steps, "timed steps"},
                                      std::tuple{"--gemm", &options->gemm, "M = N = K of the reference product"},
                                      std::tuple{"--top", &options->top, "number of kernels to list"}})
    command->add_option(name, *field, meaning)->check(positive())->capture_default_str();
  command->add_option("--warmup", options->warmup, "steps before the timed ones; a GPU has at least 1")
      ->capture_default_str()
      ->check(not_negative());
  command->add_option("--layers", options->layers, "override the size's")->check(not_negative());
  command->add_option("--hidden", options->hidden, "override the size's; heads of 64, an MLP 4 times as wide")
      ->check(not_negative());
  command->add_option("--threads", options->threads, "0: all cores")->check(CLI::Range(0, 4096));
  for (auto [name, field, meaning] :
       {std::tuple{"--tensor", &options->tensor,
                   "ranks of tensor parallelism, each with a GPU or a share of the cores"},
        std::tuple{"--data", &options->data, "ranks that share the micro-batches of a step"},
        std::tuple{"--context", &options->context, "ranks that share the tokens of a micro-batch"},
        std::tuple{"--pipeline", &options->pipeline, "stages, which share the layers"},
        std::tuple{"--chunks", &options->chunks, "runs of layers of a stage"}})
    command->add_option(name, *field, meaning)->check(positive())->capture_default_str();
  command->add_flag("--sequence", options->sequence, "the ranks of --tensor share the tokens between products");
  command->add_option("--shard", options->shard, "none | optimizer | gradients | parameters, over --data and --context")
      ->capture_default_str();
  command->add_flag("--no-overlap", options->no_overlap, "exchanges in turn with kernels");
  command->add_flag("--no-peer-memory", options->no_peer_memory, "all exchanges of GPUs by NCCL");
  command->add_flag("-v,--verbose", options->verbose, "seconds of what comes before the first step");
  command->add_flag("--profile", options->profile, "time the same number of further steps kernel by kernel");
  command->add_option("--json", options->json, "write the results to this JSON file");
  command->add_option(
      "--timeline", options->timeline,
      "trace file of the same number of further steps, and the GPU's idle time (needs CUPTI); of rank r "
      "FILE.r");
  command->callback([options] { run_train_step(*options); });
}

}  // namespace octet
