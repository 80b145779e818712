// A training step (forward, backward, AdamW) on the cpu executor: tokens/s, share of time outside kernels, and a table
// of where the time goes by op, printed after each benchmark.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/rng.h"
#include "exec/batch.h"
#include "exec/testing/tiny_program.h"
#include "model/model.h"
#include "passes/pass.h"

namespace octet {
namespace {

Graph loss_graph(const ModelConfig& model, const BatchShape& shape) {
  Graph graph(GraphRole::kTrain);
  Builder builder(graph);
  build_loss(builder, model, shape);
  return graph;
}

Program step_program(const ModelConfig& model, const BatchShape& shape) {
  Program program;
  program.add_graph(loss_graph(model, shape));
  program.add_graph(tiny::apply_graph(program));
  return program;
}

void initialize(Executor& executor, const BatchShape& shape, int64_t vocab) {
  uint64_t stream = 0;
  for (const StateEntry& entry : executor.program().states()) {
    if (entry.role != StateRole::kMaster) continue;
    std::vector<float> values(static_cast<size_t>(entry.type.shape.elements()));
    Philox random(7, ++stream);
    for (float& value : values) value = entry.type.shape.rank() > 1 ? static_cast<float>(0.02 * random.normal()) : 1.0f;
    executor.write_state(entry.name, std::as_bytes(std::span(values)));
  }
  executor.prepare();
  Batch batch = token_batch(shape.tokens / shape.equal_length, shape.equal_length, /*targets=*/true);
  const auto ids = batch.ints("ids"), targets = batch.ints("targets");
  Philox random(3, 0);
  for (size_t t = 0; t < ids.size(); ++t) {
    ids[t] = static_cast<int32_t>(random.below(static_cast<uint32_t>(vocab)));
    targets[t] = static_cast<int32_t>(random.below(static_cast<uint32_t>(vocab)));
  }
  batch.add("loss_scale", {DType::kF32, {1}}).values<float>()[0] = 1.0f / static_cast<float>(shape.tokens);
  write_inputs(executor, "train", batch);
}

void print_profile(const Executor& executor, double steps) {
  struct Sum {
    double seconds = 0, flops = 0, bytes = 0;
    int64_t calls = 0;
  };
  std::map<std::string, Sum> sums;
  double total = 0;
  for (const NodeTime& time : executor.profile()) {
    Sum& sum = sums[time.name == "(overhead)" ? time.name : time.op + " / " + time.kernel];
    sum.seconds += time.seconds, sum.flops += time.flops, sum.bytes += time.bytes, sum.calls += time.calls;
    total += time.seconds;
  }
  std::vector<std::pair<std::string, Sum>> rows(sums.begin(), sums.end());
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  for (const auto& [name, sum] : rows) {
    fmt::print(stderr, "  {:<48} {:6.2f} % {:10.1f} us/step {:7.0f} calls {:8.1f} GFLOP/s {:7.1f} GB/s\n", name,
               100 * sum.seconds / total, 1e6 * sum.seconds / steps, static_cast<double>(sum.calls) / steps,
               sum.flops / sum.seconds / 1e9, sum.bytes / sum.seconds / 1e9);
  }
}

void train_step(benchmark::State& state, ModelConfig model, int64_t sequences, int64_t length,
                const std::string& recipe) {
  const BatchShape shape{.tokens = sequences * length,
                         .max_segments = sequences,
                         .max_length = length,
                         .equal_length = length,
                         .training = true};
  auto executor = make_cpu_executor(
      compile(step_program(model, shape), {.target = cpu_target(), .recipe = parse_recipe(recipe), .verify = false}));
  initialize(*executor, shape, model.vocab_size);
  input_as<float>(*executor, "apply", "lr")[0] = 1e-4f;
  input_as<float>(*executor, "apply", "step")[0] = 1;
  const auto step = [&] {
    executor->run("train");
    executor->run("apply");
  };
  step();
  for (auto _ : state) step();
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(shape.tokens), benchmark::Counter::kIsIterationInvariantRate);
  constexpr int kProfiled = 3;
  executor->set_profiling(true);
  for (int i = 0; i < kProfiled; ++i) step();
  double overhead = 0, total = 0;
  for (const NodeTime& time : executor->profile()) {
    total += time.seconds;
    if (time.name == "(overhead)") overhead += time.seconds;
  }
  state.counters["overhead%"] = 100 * overhead / total;
  fmt::print(stderr, "{} {}x{}:\n", recipe, sequences, length);
  print_profile(*executor, kProfiled);
}

ModelConfig nano_model() {
  return {.vocab_size = 65, .max_positions = 64, .hidden = 128, .layers = 4, .heads = 4, .bias = Biases::all(false)};
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const char* recipe : {"fp32", "bf16", "fp8-current", "fp8-delayed", "fp8-block"}) {
    benchmark::RegisterBenchmark(fmt::format("train/nano/12x64/{}", recipe).c_str(), [recipe](benchmark::State& state) {
      train_step(state, nano_model(), 12, 64, recipe);
    })->UseRealTime();
    for (auto [sequences, length] : {std::pair{4, 64}, std::pair{1, 1024}}) {
      benchmark::RegisterBenchmark(fmt::format("train/gpt2-124m/{}x{}/{}", sequences, length, recipe).c_str(),
                                   [recipe, sequences = sequences, length = length](benchmark::State& state) {
                                     train_step(state, named_model("gpt2-124m"), sequences, length, recipe);
                                   })
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace octet
