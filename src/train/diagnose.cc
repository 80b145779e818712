#include "train/diagnose.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "exec/logical_states.h"
#include "train/stage_report.h"
#include "train/stepper.h"

namespace octet {
namespace {

// Whether a state of float32 holds a NaN or infinity.
bool holds_non_finite(Executor& executor, const StateEntry& entry) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<float> piece;
  for (int64_t begin = 0, count = entry.type.shape.elements(); begin < count; begin += kPiece) {
    piece.resize(static_cast<size_t>(std::min(kPiece, count - begin)));
    executor.read_state_part(entry.name, begin * static_cast<int64_t>(sizeof(float)),
                             std::as_writable_bytes(std::span(piece)));
    if (!std::ranges::all_of(piece, [](float value) { return std::isfinite(value); })) return true;
  }
  return false;
}

struct Probes {
  std::vector<std::string> outputs, values;
};

// Adds the largest magnitude of every value as an output; NaNs and infinities go through to it.
Probes observe_all(Graph& graph) {
  Probes probes;
  Builder builder(graph);
  for (int32_t i = 0, count = graph.size(); i < count; ++i) {
    const Node node = graph.node(NodeId{i});  // NOLINT(performance-unnecessary-copy-initialization): emit() moves nodes
    const bool leaf =
        node.op == Op::kInput || node.op == Op::kParam || node.op == Op::kState || node.op == Op::kConstant;
    if (leaf || !is_float(node.results[0].dtype)) continue;
    const std::string& output = probes.outputs.emplace_back(fmt::format("probe.{}", i));
    probes.values.push_back(fmt::format("{} ({})", node.name, op_name(node.op)));
    const NodeId amax =
        builder.emit(Op::kReduce, {Value{NodeId{i}, 0}}, {{"reduction", "amax"}, {"axis", "all"}}, output);
    builder.output(output, {amax, 0});
  }
  return probes;
}

// False where `from` holds frozen parameters in codes, not in values.
bool copy_params(Executor& from, Executor& to) {
  std::vector<std::byte> bytes;
  std::vector<std::byte> converted;
  for (const LogicalState& tensor : logical_states(to.program())) {
    if (tensor.role != StateRole::kMaster) continue;
    if (from.program().find_state(tensor.param, StateRole::kCodes) != nullptr &&
        from.program().find_state(tensor.param, StateRole::kMaster) == nullptr)
      return false;
    const LogicalState master = find_logical_state(from.program(), tensor.param, StateRole::kMaster);
    bytes.resize(static_cast<size_t>(master.type.bytes()));
    read_logical(from, master, bytes);
    converted.resize(static_cast<size_t>(tensor.type.bytes()));
    convert(master.type.dtype, bytes.data(), tensor.type.dtype, converted.data(), tensor.type.shape.elements());
    write_logical(to, tensor, converted);
  }
  return true;
}

// Of the plan of these settings, of a pipeline its largest stage's; nothing where they have none.
std::optional<int64_t> planned_bytes(const TrainingWorkload& workload, const RunConfig& config, const Target& target) {
  const std::unique_ptr<TrainingWorkload> changed = workload.with_settings(config);
  if (config.pipeline == 1) return compile_training(*changed, stepper_options(config, target)).total_bytes();
  try {
    validate(config);
    return plan_stages(*changed, config, target, /*verify=*/false).largest().rank.total_bytes;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument && error.code() != ErrorCode::kUnsupported) throw;
    return std::nullopt;
  }
}

}  // namespace

std::string first_non_finite_value(const TrainingWorkload& workload, const StepperOptions& options, Executor& trained,
                                   const Batch& batch) {
  Program program;
  program.name = "diagnosis";
  const Probes probes = observe_all(program.add_graph(workload.loss(GraphRole::kEval, batch.shape)));
  const bool narrow = options.compile.recipe.compute != DType::kF32;
  Stepper stepper(
      compile(std::move(program), {.target = options.compile.target, .recipe = parse_recipe(narrow ? "bf16" : "fp32")}),
      options);
  if (!copy_params(trained, stepper.executor())) return "";
  const std::vector<double> largest = stepper.evaluate(batch, probes.outputs);
  const auto first = std::ranges::find_if(largest, [](double value) { return !std::isfinite(value); });
  return first == largest.end() ? "" : probes.values[static_cast<size_t>(first - largest.begin())];
}

std::string last_non_finite_gradient(Executor& executor) {
  std::string last;
  for (const StateEntry& entry : executor.program().states()) {
    if (entry.role == StateRole::kGradient && entry.index == kGradientRows && entry.slots > 0 &&
        holds_non_finite(executor, entry))
      last = entry.param;
  }
  return last;
}

std::string settings_that_fit(const TrainingWorkload& workload, const RunConfig& config, const Target& target,
                              int64_t available) {
  std::string fitting;
  const auto try_out = [&](const std::string& change, const RunConfig& changed) {
    const std::optional<int64_t> bytes = planned_bytes(workload, changed, target);
    if (!bytes || *bytes > available) return false;
    fitting += fmt::format("{}{} needs {} bytes", fitting.empty() ? "" : "; ", change, *bytes);
    return true;
  };
  RunConfig changed = config;
  const bool codes = compile_options(config, target).recipe.scaling != Scaling::kNone;
  if (codes && config.transposes == "cached") {
    changed.transposes = "on-demand";
    try_out("precision.transposes=on-demand", changed);
    changed = config;
  }
  for (const char* recompute : {"selective", "full"}) {
    changed.recompute = recompute;
    if (config.recompute != recompute && try_out(fmt::format("recompute={}", recompute), changed)) break;
  }
  changed = config;
  const int64_t together = std::max(config.global_batch, config.micro_batch);
  for (int64_t n = config.micro_batch / 2; n >= 1; n /= 2) {
    if (together % n != 0) continue;
    changed.micro_batch = n, changed.global_batch = together;
    if (try_out(fmt::format("train.micro_batch={} with train.global_batch={}", n, together), changed)) break;
  }
  if (config.pipeline > 1) {
    changed = config;
    for (int64_t n = 2 * config.pipeline; n * config.chunks <= workload.most_ranks(Axis::kPipeline); n *= 2) {
      changed.pipeline = n;
      if (try_out(fmt::format("parallel.pipeline={}", n), changed)) break;
    }
    changed = config;
    for (int64_t n = 2 * std::max<int64_t>(config.tensor, 1); n <= workload.most_ranks(Axis::kTensor); n *= 2) {
      changed.tensor = n;
      if (try_out(fmt::format("parallel.tensor={}", n), changed)) break;
    }
  }
  if (!fitting.empty()) return fitting;
  changed = config;
  changed.micro_batch = 1, changed.global_batch = together;
  changed.recompute = "full", changed.transposes = "on-demand";
  try_out(fmt::format("train.micro_batch=1 with train.global_batch={}, recompute=full{} together", together,
                      codes ? ", precision.transposes=on-demand" : ""),
          changed);
  return fitting;
}

std::string none_fits(const RunConfig& config) {
  return fmt::format(
      "tried for this run, alone and together: smaller micro-batches, recomputation, transposes on demand{}; none of "
      "them makes it fit",
      config.pipeline > 1 ? ", and alone more stages and tensor ranks" : "");
}

}  // namespace octet
