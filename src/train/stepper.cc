#include "train/stepper.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "train/training_program.h"

namespace octet {
namespace {

double scalar_output(Executor& executor, const std::string& graph, const std::string& name) {
  const double value = output_as<float>(executor, graph, name)[0];
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;  // a NaN's sign says nothing
}

}  // namespace

StepperOptions stepper_options(const RunConfig& c, const Target& target) {
  return {.train = batch_shape(c.micro_batch, c.sequence_length, c.separate_documents, true),
          .eval = batch_shape(c.micro_batch, c.sequence_length, c.separate_documents, false),
          .optimizer = c.optimizer,
          .compile = compile_options(c, target),
          .library_masks = c.dropout_masks == "library" && !c.deterministic,
          .cuda = {.eager = c.eager, .check_every_node = c.check_nodes, .deterministic = c.deterministic}};
}

Program training_program(const ModelConfig& model, const StepperOptions& options) {
  Program program = training_program(model, options.train, options.eval, options.optimizer);
  if (options.library_masks) allow_library_masks(program);
  return program;
}

Plan compile_training(const ModelConfig& model, const StepperOptions& options) {
  return compile(training_program(model, options), options.compile);
}

TrainingState take_state(Executor& executor) {
  TrainingState state;
  for (const StateEntry& entry : executor.program().states()) {
    if (entry.kind != StateKind::kParam && entry.kind != StateKind::kMoment && entry.kind != StateKind::kScale)
      continue;
    state.tensors.emplace_back(entry.name, std::vector<std::byte>(static_cast<size_t>(entry.type.bytes())));
    executor.read_state(entry.name, state.tensors.back().second);
  }
  return state;
}

void put_state(Executor& executor, const TrainingState& state) {
  for (const auto& [name, bytes] : state.tensors) {
    if (executor.program().find_state(name) != nullptr) executor.write_state(name, bytes);
  }
  if (executor.program().find_graph("prepare") != nullptr) executor.run("prepare");
}

Stepper::Stepper(const ModelConfig& model, const StepperOptions& options)
    : Stepper(compile_training(model, options), options) {}

Stepper::Stepper(Plan plan, const StepperOptions& options)
    : options_(options),
      plan_(std::move(plan)),
      executor_(options.interpret ? make_interpreter(plan_.program) : make_executor(plan_, options.cuda)) {}

bool Stepper::has_input(const std::string& graph, const std::string& name) const {
  return plan_.program.graph(graph).find_leaf(Op::kInput, name).exists();
}

void Stepper::feed(const std::string& graph, const HostBatch& batch) {
  auto copy = [&](const char* name, const std::vector<int32_t>& from) {
    if (!has_input(graph, name)) return;
    auto to = input_as<int32_t>(*executor_, graph, name);
    check(to.size() == from.size(), ErrorCode::kInternal, "input {} of {} holds {} values, the batch {}", name, graph,
          to.size(), from.size());
    std::copy(from.begin(), from.end(), to.begin());
  };
  copy("ids", batch.ids);
  copy("positions", batch.positions);
  copy("targets", batch.targets);
  copy("segments", batch.segments);
}

StepResult Stepper::step(std::span<const HostBatch> micro_batches, double lr, int64_t step, uint64_t seed,
                         bool statistics, const Stop& stop) {
  StepResult result = backward(micro_batches, step, seed, statistics, stop);
  if (!result.left) apply(lr, step, result);
  return result;
}

// Micro-batches change two things that outlive them: gradients, which the next step overwrites, and the amaxes that
// delayed scaling records, which "apply" sets to 0.
void Stepper::forget_records() {
  for (const char* graph : {"train", "accumulate", "train_stats"}) {
    if (plan_.program.find_graph(graph) == nullptr) continue;
    for (const NamedValue& update : plan_.program.graph(graph).updates()) {
      const StateEntry* state = plan_.program.find_state(update.name);
      if (state->kind != StateKind::kScale) continue;
      executor_->write_state(update.name, std::vector<std::byte>(static_cast<size_t>(state->type.bytes())));
    }
  }
}

StatsTable Stepper::read_statistics() const {
  const std::string graph = "train_stats", prefix = "stats.";
  StatsTable table;
  for (const NamedValue& output : plan_.program.graph(graph).outputs()) {
    if (!output.name.starts_with(prefix)) continue;
    auto values = output_as<float>(*executor_, graph, output.name);
    std::copy(values.begin(), values.end(), table[output.name.substr(prefix.size())].begin());
  }
  return table;
}

StepResult Stepper::backward(std::span<const HostBatch> micro_batches, int64_t step, uint64_t seed, bool statistics,
                             const Stop& stop) {
  StepResult result;
  for (const HostBatch& batch : micro_batches) result.tokens += batch.valid_tokens;
  float loss_scale = result.tokens > 0 ? 1.0f / static_cast<float>(result.tokens) : 0.0f;
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    if (stop && stop()) {
      forget_records();
      return {.left = true};
    }
    const std::string graph = i > 0 ? "accumulate" : statistics ? "train_stats" : "train";
    feed(graph, micro_batches[i]);
    input_as<float>(*executor_, graph, "loss_scale")[0] = loss_scale;
    if (has_input(graph, "rng")) {
      auto rng = input_as<int64_t>(*executor_, graph, "rng");
      rng[0] = static_cast<int64_t>(seed);
      rng[1] = step;
      rng[2] = static_cast<int64_t>(i);
    }
    executor_->run(graph);
    if (i == 0 && statistics) result.statistics = read_statistics();
  }
  return result;
}

void Stepper::apply(double lr, int64_t step, StepResult& result) {
  input_as<float>(*executor_, "apply", "lr")[0] = static_cast<float>(lr);
  input_as<float>(*executor_, "apply", "step")[0] = static_cast<float>(step);
  executor_->run("apply");
  const double loss = scalar_output(*executor_, "apply", "loss");  // the first wait for a device
  result.loss = result.tokens > 0 ? loss / static_cast<double>(result.tokens) : 0.0;
  result.grad_norm = scalar_output(*executor_, "apply", "grad_norm");
  result.finite = scalar_output(*executor_, "apply", "finite") != 0;
}

LossSum Stepper::evaluate(const HostBatch& batch) {
  feed("eval", batch);
  executor_->run("eval");
  return {.sum = scalar_output(*executor_, "eval", "loss"), .tokens = batch.valid_tokens};
}

}  // namespace octet
