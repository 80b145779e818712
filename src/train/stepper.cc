#include "train/stepper.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "train/training_program.h"

namespace octet {
namespace {

double scalar_output(Executor& executor, const std::string& graph, const std::string& name) {
  return output_as<float>(executor, graph, name)[0];
}

}  // namespace

Stepper::Stepper(const ModelConfig& model, const StepperOptions& options) : eval_shape_(options.eval) {
  plan_ = compile(training_program(model, options.train, options.eval, options.optimizer), options.compile);
  executor_ = options.interpret ? make_interpreter(plan_.program) : make_executor(plan_);
}

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

StepResult Stepper::step(std::span<const HostBatch> micro_batches, double lr, int64_t step, uint64_t seed) {
  StepResult result = backward(micro_batches, step, seed);
  apply(lr, step, result);
  return result;
}

StepResult Stepper::backward(std::span<const HostBatch> micro_batches, int64_t step, uint64_t seed) {
  StepResult result;
  for (const HostBatch& batch : micro_batches) result.tokens += batch.valid_tokens;
  float loss_scale = result.tokens > 0 ? 1.0f / static_cast<float>(result.tokens) : 0.0f;
  double loss = 0;
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    const std::string graph = i == 0 ? "train" : "accumulate";
    feed(graph, micro_batches[i]);
    input_as<float>(*executor_, graph, "loss_scale")[0] = loss_scale;
    if (has_input(graph, "rng")) {
      auto rng = input_as<int64_t>(*executor_, graph, "rng");
      rng[0] = static_cast<int64_t>(seed);
      rng[1] = step;
      rng[2] = static_cast<int64_t>(i);
    }
    executor_->run(graph);
    loss += scalar_output(*executor_, graph, "loss");
  }
  result.loss = result.tokens > 0 ? loss / static_cast<double>(result.tokens) : 0.0;
  return result;
}

void Stepper::apply(double lr, int64_t step, StepResult& result) {
  input_as<float>(*executor_, "apply", "lr")[0] = static_cast<float>(lr);
  input_as<float>(*executor_, "apply", "step")[0] = static_cast<float>(step);
  executor_->run("apply");
  result.grad_norm = scalar_output(*executor_, "apply", "grad_norm");
  result.finite = scalar_output(*executor_, "apply", "finite") != 0;
}

LossSum Stepper::evaluate(const HostBatch& batch) {
  feed("eval", batch);
  executor_->run("eval");
  return {.sum = scalar_output(*executor_, "eval", "loss"), .tokens = batch.valid_tokens};
}

}  // namespace octet
