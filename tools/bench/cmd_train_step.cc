// octet-bench train-step: speed and memory of whole optimiser steps on random tokens, through the trainer's Stepper.
#include <algorithm>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "bench/commands.h"
#include "bench/random_batches.h"
#include "bench/step_report.h"
#include "exec/logical_states.h"
#include "exec/timeline.h"
#include "numbers.h"
#include "train/auto_precision.h"
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
  bool profile = false;
};

std::string gemm_precision(const Recipe& recipe) {
  if (recipe.scaling == Scaling::kBlock) return "fp8-block";
  if (recipe.scaling != Scaling::kNone) return "fp8-tensor";
  return recipe.compute == DType::kF32 ? "f32" : "bf16";
}

StepReport measure_step(const Options& options) {
  using Clock = std::chrono::steady_clock;
  set_thread_count(options.threads);
  ModelConfig model = named_model(options.model);
  model.max_positions = std::max(model.max_positions, options.length);
  if (options.layers > 0) model.layers = options.layers;
  if (options.hidden > 0) {
    constexpr int64_t kHead = 64;
    model.hidden = options.hidden;
    model.heads = std::max<int64_t>(options.hidden / kHead, 1);
    model.kv_heads = model.head_dim = model.intermediate = 0;
  }
  Recipe recipe = parse_recipe(options.recipe);
  recipe.keep_transposes = options.transposes == "cached";
  const Target target = target_of(resolve_device(options.device));
  StepReport report{.model = options.model,
                    .recipe = options.recipe,
                    .recompute = options.recompute,
                    .cpu = target.device == Device::kCuda ? target.name : cpu_model(),
                    .threads = thread_count(),
                    .batch = options.batch,
                    .length = options.length,
                    .micro_batches = options.micro_batches,
                    .steps = options.steps};
  // The same tokens every step: the loss must fall, which shows that the measured step trains.
  const std::vector<Batch> batches =
      random_batches(options.micro_batches, options.batch, options.length, model.vocab_size);
  report.resident_before = process_memory().resident;

  std::unique_ptr<DeviceTimeline> timeline;
  if (!options.timeline.empty()) timeline = make_device_timeline();
  StepperOptions stepper_options{
      .train = batch_shape(options.batch, options.length, false, true),
      .eval = batch_shape(options.batch, options.length, false, false),
      .optimizer = {.lr = 1e-4},
      .compile = {.target = target, .recipe = recipe, .recompute = parse_recompute(options.recompute, target)}};
  auto begin = Clock::now();
  Stepper stepper(recipe.statistics ? AutoPrecision(model, stepper_options, {}, 1).plan()  // by the Target's timings
                                    : compile_training(model, stepper_options),
                  stepper_options);
  report.plan_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  initialize_weights(stepper.executor(), 1337);

  // As in a run: on a GPU the next step starts before the results of the previous one are read.
  const bool ahead = target.device == Device::kCuda;
  StepWork next{.micro_batches = batches, .lr = 1e-4, .step = 0, .seed = 1337};
  std::optional<StepWork> in_flight;
  StepResult result;
  auto wait = [&] {
    if (!in_flight) return;
    result = stepper.wait(*in_flight);
    if (in_flight->step == 1) report.first_loss = result.loss;
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
  report.seconds = time_runs(ahead ? std::max<int64_t>(1, options.warmup) : options.warmup, options.steps, run);
  wait();
  report.last_loss = result.loss;
  report.peak = process_memory().peak;
  if (timeline != nullptr) {
    timeline->begin();
    time_runs(0, options.steps, run);
    wait();
    const std::vector<DeviceActivity> activities = timeline->end();
    fmt::print("{}", timeline_text(activities, options.steps, options.top));
    write_file(options.timeline, timeline_json(activities));
  }
  if (options.profile) {
    stepper.executor().set_profiling(true);
    report.profiled_steps = options.steps;
    time_runs(0, options.steps, run);
    wait();
    report.profile = stepper.executor().profile();
    stepper.executor().set_profiling(false);
  }

  const Plan& plan = stepper.plan();
  for (const LogicalState& tensor : logical_states(plan.program))
    if (tensor.role == StateRole::kMaster) report.parameters += tensor.type.shape.elements();
  report.flops = model_flops(*plan.program.find_graph(GraphRole::kTrain)) * static_cast<double>(options.micro_batches);
  report.state_bytes = plan.state_bytes;
  report.arena_bytes = plan.arena_bytes;
  report.input_bytes = plan.input_bytes;
  report.allocated_bytes = stepper.executor().allocated_bytes();
  report.gemm = measure_gemm(plan.target, gemm_precision(recipe), options.gemm, options.gemm, options.gemm, 10);
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
  command->add_flag("--profile", options->profile, "time the same number of further steps kernel by kernel");
  command->add_option("--json", options->json, "write the results to this JSON file");
  command->add_option("--timeline", options->timeline,
                      "trace file of the same number of further steps, and the GPU's idle time (needs CUPTI)");
  command->callback([options] { run_train_step(*options); });
}

}  // namespace octet
