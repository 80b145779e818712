// octet-bench linear: forward and backward of one linear layer at sizes where host overhead matters, which is included;
// the counterpart of benchmarks/torch_gpu_linear.py. Operands and results stay on the device, as inside a step.
#include <fmt/format.h>

#include <chrono>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/threads.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "exec/executor.h"
#include "ir/builder.h"
#include "numbers.h"
#include "passes/pass.h"

namespace octet {
namespace {

struct Options {
  std::vector<std::string> recipes = {"bf16", "fp8-current", "fp8-delayed", "fp8-block"};
  int64_t tokens = 1024, width = 1024, repeats = 300;
  int threads = 0;
  std::string device = "auto", json;
};

// y = x W^T, dx = dy W and dW = dy^T x of given x and dy [tokens, width], as autodiff marks them: the
// computation of linear(x).backward(dy), without a loss.
Program linear_program(const Options& options) {
  Graph graph(GraphRole::kTrain);
  Builder b(graph);
  const TensorType type{DType::kBF16, {options.tokens, options.width}};
  const Value x = b.state("x", type), dy = b.state("dy", type);
  const Value y = b.linear(x, "linear", options.width, {.bias = false});
  const Value w = graph.node(y).inputs[1];
  const auto role = [](const char* name) {
    return Attrs{{"gemm", std::string("linear")}, {"role", std::string(name)}};
  };
  const Value dx = b.matmul(dy, w, false, false, Value::none(), role("dgrad"));
  Attrs wgrad = role("wgrad");
  wgrad.set("to", std::string("f32"));
  const Value dw = b.matmul(dy, x, true, false, Value::none(), wgrad);
  b.update("y", y), b.update("dx", dx), b.update(state_name(StateRole::kGradient, "linear.weight"), dw);
  b.output("done", b.state("one", {DType::kF32, {1}}));  // read back to synchronize: 4 bytes, like a loss
  Program program;
  for (const char* name : {"y", "dx"}) program.add_state({.name = name, .type = type, .role = StateRole::kBuffer});
  const TensorType weight = graph.type(w);
  program.add_state({.type = weight, .role = StateRole::kGradient, .param = "linear.weight"});
  program.add_graph(std::move(graph));
  return program;
}

struct LinearTime {
  std::string recipe;
  double each_us = 0, stream_us = 0;  // synchronizing after every iteration; only after the last
  int64_t kernels = 0;
};

LinearTime measure_linear(const Options& options, const Target& target, const std::string& recipe) {
  using Clock = std::chrono::steady_clock;
  auto executor = make_executor(
      compile(linear_program(options), {.target = target, .recipe = parse_recipe(recipe), .disabled = {"autodiff"}}));
  uint64_t stream = 0;
  for (const StateEntry& entry : executor->program().states()) {
    if (entry.name != "x" && entry.name != "dy" && entry.name != "linear.weight") continue;
    Philox random(7, ++stream);
    std::vector<float> values(static_cast<size_t>(entry.type.shape.elements()));
    for (float& value : values)
      value = static_cast<float>((entry.name == "linear.weight" ? 0.02 : 1.0) * random.normal());
    std::vector<std::byte> bytes(static_cast<size_t>(entry.type.bytes()));
    convert(DType::kF32, values.data(), entry.type.dtype, bytes.data(), entry.type.shape.elements());
    executor->write_state(entry.name, bytes);
  }
  auto iteration = [&] {  // including quantization of the weights
    executor->prepare();
    executor->run("train");
  };
  auto wait = [&] { executor->output("train", "done"); };
  LinearTime time{.recipe = recipe};
  time.each_us = 1e6 * median(time_runs(20, options.repeats, [&] { iteration(), wait(); }));
  const auto begin = Clock::now();
  for (int64_t i = 0; i < options.repeats; ++i) iteration();
  wait();
  time.stream_us =
      1e6 * std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(options.repeats);
  executor->set_profiling(true);
  iteration(), wait();
  for (const NodeTime& node : executor->profile()) time.kernels += node.kernel.empty() ? 0 : 1;
  return time;
}

void run_linear(const Options& options) {
  set_thread_count(options.threads);
  const Target target = target_of(resolve_device(options.device));
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& recipe : options.recipes) {
    const LinearTime time = measure_linear(options, target, recipe);
    fmt::print("linear {} x {} x {} {} on {}: {:.1f} us each, {:.1f} us in a stream, {} kernels\n", options.tokens,
               options.width, options.width, recipe, target.name, time.each_us, time.stream_us, time.kernels);
    rows.push_back({{"recipe", recipe}, {"each_us", time.each_us}, {"stream_us", time.stream_us}});
  }
  if (options.json.empty()) return;
  const nlohmann::json all = {{"program", "octet"},
                              {"device", target.name},
                              {"tokens", options.tokens},
                              {"width", options.width},
                              {"linears", rows}};
  write_file(options.json, all.dump(1) + "\n");
}

}  // namespace

void add_linear_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("linear", "Time of one linear layer, forward and backward, including the host");
  command->add_option("--recipe", options->recipes, "which to run")->capture_default_str();
  command->add_option("--device", options->device, "auto | cpu | cuda")->capture_default_str();
  for (auto [name, field] : {std::pair{"--tokens", &options->tokens}, std::pair{"--width", &options->width},
                             std::pair{"--repeats", &options->repeats}})
    command->add_option(name, *field)->check(positive())->capture_default_str();
  command->add_option("--threads", options->threads, "0: all cores")->check(CLI::Range(0, 4096));
  command->add_option("--json", options->json, "write the results to this JSON file");
  command->callback([options] { run_linear(*options); });
}

}  // namespace octet
