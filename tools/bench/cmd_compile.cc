// octet-bench compile: time of each pass when compiling a training run of any size. The run is not executed.
#include <chrono>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "exec/executor.h"
#include "numbers.h"
#include "passes/pass.h"
#include "train/language_model.h"
#include "train/stepper.h"

namespace octet {
namespace {

struct Options {
  std::string model = "llama2-7b", recipe = "bf16", recompute = "auto", target = "cpu", json;
  int64_t batch = 1, length = 0, repeats = 3;
  bool no_verify = false;
};

struct Timing {
  double build = 0, total = 0;
  std::vector<PassReport> passes;
  Plan plan;
};

Timing compile_once(const Options& options) {
  using Clock = std::chrono::steady_clock;
  ModelConfig model = named_model(options.model);
  int64_t length = options.length > 0 ? options.length : model.max_positions;
  const Target target = options.target == "h200" ? h200_target() : cpu_target();
  CompileOptions compile_options{.target = target,
                                 .recipe = parse_recipe(options.recipe),
                                 .recompute = parse_recompute(options.recompute, target),
                                 .verify = !options.no_verify};
  Timing timing;
  auto begin = Clock::now();
  Program program = training_program(LanguageModel(model, options.batch, length), {});
  timing.build = std::chrono::duration<double>(Clock::now() - begin).count();
  timing.plan = compile(std::move(program), compile_options, &timing.passes);
  timing.total = std::chrono::duration<double>(Clock::now() - begin).count();
  return timing;
}

void print_timing(const Options& options, const Timing& best) {
  fmt::print("{} {} batch {} recompute {}: {:.3f} s to plan (best of {}; verification {})\n", options.model,
             options.recipe, options.batch, options.recompute, best.total, options.repeats,
             options.no_verify ? "off" : "included");
  fmt::print("{:<24} {:>10} {:>10}\n", "pass", "ms", "nodes");
  fmt::print("{:<24} {:>10.2f}\n", "model graphs", best.build * 1e3);
  for (const PassReport& pass : best.passes)
    fmt::print("{:<24} {:>10.2f} {:>10}{}\n", pass.name, pass.seconds * 1e3, pass.nodes,
               pass.changed ? "" : "  unchanged");
  for (const Graph& graph : best.plan.program.graphs())
    fmt::print("graph {:<18} {:>10} nodes, arena {:>15} bytes\n", graph.name(), graph.size(),
               best.plan.graphs.at(graph.name()).arena_bytes);
  fmt::print("plan: {} bytes of state, {} arena, {} inputs, {} in all\n", best.plan.state_bytes, best.plan.arena_bytes,
             best.plan.input_bytes, best.plan.total_bytes());
}

void write_json(const Options& options, const Timing& best) {
  nlohmann::json passes = nlohmann::json::array();
  for (const PassReport& pass : best.passes)
    passes.push_back({{"name", pass.name}, {"seconds", pass.seconds}, {"nodes", pass.nodes}});
  int64_t nodes = 0;
  for (const Graph& graph : best.plan.program.graphs()) nodes += graph.size();
  nlohmann::json all = {{"model", options.model},
                        {"recipe", options.recipe},
                        {"recompute", options.recompute},
                        {"batch", options.batch},
                        {"cpu", cpu_model()},
                        {"seconds", best.total},
                        {"nodes", nodes},
                        {"total_bytes", best.plan.total_bytes()},
                        {"passes", passes}};
  write_file(options.json, all.dump(1) + "\n");
}

void run_compile(const Options& options) {
  Timing best = compile_once(options);
  for (int64_t i = 1; i < options.repeats; ++i) {
    Timing timing = compile_once(options);
    if (timing.total < best.total) best = std::move(timing);
  }
  print_timing(options, best);
  if (!options.json.empty()) write_json(options, best);
}

}  // namespace

void add_compile_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("compile", "Time to compile a training run, by pass");
  command->add_option("--model", options->model, "a named size")->capture_default_str();
  command->add_option("--recipe", options->recipe)->capture_default_str();
  command->add_option("--recompute", options->recompute, "auto | none | light | selective | full")
      ->capture_default_str();
  command->add_option("--target", options->target)->check(CLI::IsMember({"cpu", "h200"}))->capture_default_str();
  command->add_option("--batch", options->batch, "sequences")->check(positive())->capture_default_str();
  command->add_option("--length", options->length, "tokens per sequence; 0: the model's context")
      ->check(not_negative());
  command->add_option("--repeats", options->repeats)->check(positive())->capture_default_str();
  command->add_flag("--no-verify", options->no_verify, "disable the verifier");
  command->add_option("--json", options->json, "write the results to this JSON file");
  command->callback([options] { run_compile(*options); });
}

}  // namespace octet
