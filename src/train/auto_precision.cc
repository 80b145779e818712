#include "train/auto_precision.h"

#include <algorithm>
#include <memory>
#include <set>
#include <tuple>

#include "base/log.h"
#include "exec/batch.h"
#include "passes/passes.h"
#include "passes/plan_memory.h"
#include "passes/precision_parts.h"
#include "weights/weights.h"

namespace octet {
namespace {

// By name, each as graph "train_stats" measures a master weight.
StatsTable weight_statistics(const WeightSource& weights, std::vector<std::string> names, const Recipe& recipe) {
  StatsTable table;
  const ParamShapes shapes = param_shapes(weights.config());
  const auto shape_of = [&](const std::string& name) -> const Shape& { return shapes.at(name); };
  std::ranges::sort(names, {},
                    [&](const auto& name) { return std::tuple(shape_of(name)[0], shape_of(name)[1], name); });
  std::unique_ptr<Executor> executor;
  const Shape* planned = nullptr;
  const std::string role = graph_role_name(GraphRole::kEval);
  for (const std::string& name : names) {
    const Shape& shape = shape_of(name);
    if (planned == nullptr || shape != *planned) {
      executor.reset();
      Graph graph(GraphRole::kEval);
      graph.set_stage(Stage::kPrecise);
      Builder b(graph);
      b.output("stats", emit_tensor_stats(b, b.input("weight", {DType::kF32, shape}), recipe, recipe.forward_format,
                                          /*tiles=*/true, "stats"));
      Program program;
      program.add_graph(std::move(graph));
      executor = make_executor(plan_memory(std::move(program), cpu_target()));
      planned = &shape;
    }
    const std::vector<float> values = weights.read(name, shape);
    write_inputs(*executor, role, std::vector<InputValues>{{"weight", values}});
    executor->run(role);
    std::ranges::copy(output_as<float>(*executor, role, "stats"), table[name].begin());
  }
  return table;
}

}  // namespace

std::vector<PolicyGemm> policy_gemms(const TrainingWorkload& workload, const StepperOptions& options) {
  Program program = training_program(workload, options);
  autodiff(program, options.compile);
  std::vector<PolicyGemm> gemms;
  const Graph& train = *program.find_graph(GraphRole::kTrain);
  for (const GemmReport& gemm : precision_report(program, options.compile)) {
    if (gemm.graph != GraphRole::kTrain) continue;
    const bool frozen =
        gemm.kinds[1] == OperandKind::kWeight && is_frozen(train.node(train.find_leaf(Op::kParam, gemm.operands[1])));
    gemms.push_back({.gemm = gemm.gemm,
                     .role = gemm.role,
                     .m = gemm.m,
                     .n = gemm.n,
                     .k = gemm.k,
                     .operands = {gemm.operands[0], gemm.operands[1]},
                     .unsupported_reason = gemm.reason,
                     .held = frozen ? gemm.operands[1] : ""});
  }
  return gemms;
}

AutoPrecision::AutoPrecision(const TrainingWorkload& workload, const StepperOptions& options,
                             const PolicySettings& settings, int64_t interval)
    : workload_(workload),
      options_(options),
      interval_(interval),
      policy_(policy_gemms(workload, options), settings, options.compile.target) {}

void AutoPrecision::add_frozen(StatsTable& stats, const std::string& model, Communicator* ranks) {
  if (!frozen_) {
    std::set<std::string> names;
    for (const PolicyGemm& gemm : policy_.gemms())
      if (!gemm.held.empty() && gemm.unsupported_reason.empty()) names.insert(gemm.held);
    frozen_.emplace();
    if (!names.empty()) {
      const LoggedTime time("statistics of frozen weights");
      if (ranks == nullptr || ranks->rank() == 0)
        frozen_ = weight_statistics(*open_weights(model), {names.begin(), names.end()}, options_.compile.recipe);
      for (const std::string& name : names)
        if (ranks != nullptr) broadcast(*ranks, std::as_writable_bytes(std::span((*frozen_)[name])));
    }
  }
  stats.insert(frozen_->begin(), frozen_->end());
}

const Plan& AutoPrecision::plan(bool* cached) {
  std::string key;
  for (const PolicyGemm& gemm : policy_.gemms()) key += std::to_string(static_cast<int>(policy_.level(gemm.key())));
  auto found = plans_.find(key);
  if (cached != nullptr) *cached = found != plans_.end();
  if (found != plans_.end()) return found->second;
  StepperOptions options = options_;
  options.compile.recipe.decisions = policy_.decisions();
  return plans_.emplace(key, compile_training(workload_, options)).first->second;
}

}  // namespace octet
