// Compile time of whole training programs, and how near the arena is to its lower bound.
#include <benchmark/benchmark.h>

#include "exec/executor.h"
#include "exec/testing/tiny_program.h"
#include "model/model.h"
#include "passes/pass.h"

namespace octet {
namespace {

Program training(const std::string& model, int64_t tokens, int64_t length) {
  ModelConfig config = named_model(model);
  Program program;
  for (const char* name : {"train", "eval"}) {
    Graph graph(name);
    Builder builder(graph);
    build_loss(builder, config,
               {.tokens = tokens,
                .max_segments = tokens / length,
                .max_length = length,
                .equal_length = length,
                .training = std::string(name) == "train"});
    program.add_graph(std::move(graph));
  }
  program.add_graph(tiny::apply_graph(program));
  return program;
}

void run(benchmark::State& state, const std::string& model, int64_t tokens, int64_t length, const std::string& recipe,
         Recompute recompute) {
  CompileOptions options{.target = cpu_target(), .recipe = parse_recipe(recipe), .recompute = recompute};
  std::vector<PassReport> reports;
  Plan plan;
  for (auto _ : state) {
    reports.clear();
    plan = compile(training(model, tokens, length), options, &reports);
  }
  const GraphPlan& graph = plan.graphs.at("train");
  state.counters["nodes"] = static_cast<double>(reports.back().nodes);
  state.counters["arena_over_bound"] = static_cast<double>(graph.arena_bytes) / static_cast<double>(graph.live_bytes);
  state.counters["arena_GiB"] = static_cast<double>(graph.arena_bytes) / (1 << 30);
  state.counters["saved_GiB"] = static_cast<double>(graph.saved_bytes) / (1 << 30);
  for (const PassReport& report : reports) state.counters["s_" + report.name] += report.seconds;
}

BENCHMARK_CAPTURE(run, llama2_7b_bf16, "llama2-7b", 4096, 4096, "bf16", Recompute::kNone)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run, llama2_7b_bf16_selective, "llama2-7b", 4096, 4096, "bf16", Recompute::kSelective)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run, gpt3_175b_bf16, "gpt3-175b", 2048, 2048, "bf16", Recompute::kNone)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run, gpt3_175b_bf16_selective, "gpt3-175b", 2048, 2048, "bf16", Recompute::kSelective)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run, gpt3_175b_bf16_full, "gpt3-175b", 2048, 2048, "bf16", Recompute::kFull)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run, llama2_7b_fp8_selective, "llama2-7b", 4096, 4096, "fp8-current", Recompute::kSelective)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run, llama2_7b_fp8_full, "llama2-7b", 4096, 4096, "fp8-current", Recompute::kFull)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run, gpt3_175b_fp8_selective, "gpt3-175b", 2048, 2048, "fp8-current", Recompute::kSelective)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace octet
