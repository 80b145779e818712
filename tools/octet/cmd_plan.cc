// octet plan: memory and FLOPs of a training run, compiled and planned without running it.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "exec/executor.h"
#include "octet/commands.h"
#include "train/activation_table.h"
#include "train/diagnose.h"
#include "train/plan_report.h"
#include "train/stage_report.h"
#include "train/workload.h"

namespace octet {
namespace {

struct Options {
  RunOptions run;
  std::string target = "cpu";
  TokenBudget budget;
  bool json = false, list_models = false, activations = false, stages = false, saved = false, peak = false;
};

void list_models() {
  for (const std::string& name : named_models()) {
    ModelConfig m = named_model(name);
    fmt::print("{:<12} {:<6} {:>4} layers  {:>6} wide  {:>4} heads  {:>3} kv  {:>6} mlp  {:>7} tokens\n", name,
               m.architecture, m.layers, m.hidden, m.heads, m.kv_head_count(), m.intermediate_size(), m.vocab_size);
  }
}

// With the days, energy and cost of a budget of tokens, where one is given.
void print_plan(const Options& options, const Target& target, const std::string& report, double units_per_second,
                int64_t devices, const std::string& units) {
  const TokenBudget& budget = options.budget;
  if (budget.units == 0) {
    std::fputs(report.c_str(), stdout);
    return;
  }
  check(units_per_second > 0, ErrorCode::kInvalidArgument,
        "--tokens: target {} says no rates, by which steps are timed: want another, such as --target h200",
        target.name);
  const BudgetResult spent = spend(budget, units_per_second, devices, target);
  if (options.json)
    fmt::print("{{{}{}", to_json(budget, spent), report.substr(1));
  else
    fmt::print("{}{}", report, to_text(budget, spent, units, target));
}

void run_plan_of_stages(const Options& options, const TrainingWorkload& workload, const RunConfig& config,
                        const Target& target) {
  check(!options.saved, ErrorCode::kInvalidArgument,
        "--saved lists what one graph keeps, but stages have several graphs: leave it out, or set parallel.pipeline=1");
  const PipelineReport report = plan_stages(workload, config, target);
  print_plan(options, target, options.json ? to_json(report) : to_text(report, target),
             report.has_rates ? report.units_per_second() : 0, report.model.mesh.ranks(), report.model.unit.many());
  if (options.peak) fmt::print("{}", peak_text(report.largest().rank));
  if (options.json || target.memory_bytes == 0 || report.largest().rank.total_bytes <= target.memory_bytes) return;
  const std::string fitting = settings_that_fit(workload, config, target, target.memory_bytes);
  fmt::print("{}\n", fitting.empty() ? none_fits(config) : "of the settings that fit: " + fitting);
}

void run_plan(const Options& options) {
  if (options.list_models) return list_models();
  RunConfig config = default_settings(options.run);
  if (options.activations) config.recipe = "bf16";  // the published formulas are of 16 bits
  SettingsTable settings = settings_of(config);
  bool anything = !options.run.file.empty() || !options.run.words.empty();
  if (anything || !options.activations) read_run_options(options.run, config, settings);
  set_thread_count(static_cast<int>(config.threads));
  const Target target = find_target(options.target);
  check(!options.activations || options.budget.units == 0, ErrorCode::kInvalidArgument,
        "--tokens: --activations plans no run: leave one of them out");
  if (options.activations && options.stages) {
    std::fputs(to_text(stage_activation_table(config.recipe, target)).c_str(), stdout);
    return;
  }
  if (options.activations) {
    const CompileOptions compile = compile_options(config, target);
    std::fputs(to_text(activation_table(compile.recipe, target, compile.parallel), options.saved).c_str(), stdout);
    return;
  }
  validate(config);
  const std::unique_ptr<TrainingWorkload> workload = workload_row(config).plan(config);
  if (config.pipeline > 1) return run_plan_of_stages(options, *workload, config, target);
  PlanReport report = plan_training(*workload, config, target);
  print_plan(options, target, options.json ? to_json(report) : to_text(report, target),
             report.step ? report.step->units / report.step->seconds() : 0, report.mesh.ranks(), report.unit.many());
  if (options.peak) fmt::print("{}", peak_text(report));
  if (!options.saved) return;
  fmt::print("kept for backward\n");
  for (const SavedValue& value : report.saved)
    fmt::print("  {:>14}  {:<16} {:<32} {}\n", value.bytes, value.op, value.name, to_string(value.type));
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("plan", "Memory and FLOPs of a training run, without running it");
  command->footer(R"(Examples:
  octet plan configs/gpt2_124m.yaml
  octet plan model.size=gpt3-175b data.sequence_length=2048 train.micro_batch=1 --target h200
  octet plan model.size=gpt3-5b precision.recipe=bf16 --target h200 --peak
  octet plan workload=bert model.size=bert-large train.micro_batch=48 --target h200
  octet plan model.size=gpt3-175b data.sequence_length=2048 train.micro_batch=1 train.global_batch=64 \
    parallel.pipeline=8 parallel.chunks=3 parallel.tensor=8 parallel.sequence=true recompute=selective --target h200
  octet plan model.size=llama2-7b data.sequence_length=4096 train.micro_batch=1 recompute=selective --target h200 \
    --tokens 100G --price 2.5
  octet plan --activations --saved             activation bytes per layer compared with arXiv 2205.05198
  octet plan --activations parallel.tensor=8 parallel.sequence=true             the same of one of 8 ranks
  octet plan --activations --stages --target h200                               of a first stage in the paper's meshes
  octet plan --list-models)");
  add_run_options(*command, options->run);
  command->add_option("--target", options->target, target_help());
  add_budget_options(*command, options->budget);
  command->add_flag("--peak", options->peak, "list the values in memory at the peak");
  command->add_flag("--saved", options->saved, "list every value kept for the backward pass");
  command->add_flag("--activations", options->activations,
                    "activation bytes per layer compared with the published formulas");
  command->add_flag("--stages", options->stages,
                    "with --activations: of the first stage of their pipelines, in all its micro-batches");
  command->add_flag("--json", options->json, "print one JSON object");
  command->add_flag("--list-models", options->list_models, "list the named sizes");
  command->callback([options] { run_plan(*options); });
}

}  // namespace octet
