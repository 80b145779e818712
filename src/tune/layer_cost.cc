#include "tune/layer_cost.h"

#include <algorithm>
#include <cmath>

#include "model/model_spec.h"
#include "passes/node_clock.h"
#include "passes/pipeline_schedule.h"
#include "passes/stage_graphs.h"
#include "train/stepper.h"

namespace octet {
namespace {

constexpr int64_t kPlanned = 2;  // layers

bool of_layer(const std::string& param) { return param.starts_with("layers."); }

void add_states(const Program& program, LayerCost& cost) {
  for (const StateEntry& entry : program.states()) {
    const int64_t bytes = held_bytes(entry);
    if (!of_layer(entry.param)) {
      cost.end_states += bytes;
      continue;
    }
    switch (entry.role) {
      case StateRole::kMaster: cost.weights += bytes, cost.parameters += entry.type.shape.elements(); break;
      case StateRole::kMoment: cost.moments += bytes; break;
      case StateRole::kGradient: cost.gradients += bytes; break;
      default: cost.codes += bytes; break;
    }
  }
}

void add_seconds(const Graph& graph, const Target& target, LayerCost& cost) {
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    const double seconds = clock_seconds(graph, NodeId{i}, target).kernel;
    if (node.layer < 0) {
      cost.ends += seconds;
      continue;
    }
    (node.phase == Phase::kForward ? cost.forward : cost.backward) += seconds;
    if (node.phase == Phase::kRecompute) cost.recomputed += seconds;
    if (node.phase == Phase::kForward && work_kind(node) == WorkKind::kAttention) cost.attention += seconds;
  }
  const double waiting = graph_seconds(graph, target).waiting;
  cost.forward += waiting / 2, cost.backward += waiting / 2;
}

}  // namespace

LayerCost layer_cost(const RunConfig& config, const RunLayout& layout, const Target& target) {
  RunLayout alone = layout;
  alone.pipeline = alone.data = alone.chunks = 1, alone.shard = "none", alone.recompute = "light";
  RunConfig few = with_layout(config, alone);
  few.global_batch = 2 * few.micro_batch;
  LayerCost cost{.layers = ModelSpec(resolve_model(config, 0)).layers};
  few.layers = std::min(kPlanned, cost.layers);
  const std::unique_ptr<TrainingWorkload> workload = workload_row(few).plan(few);
  StepperOptions options = stepper_options(few, target);
  options.compile.verify = false;
  const Plan plan = compile_training(*workload, options);
  add_states(plan.program, cost);
  const Graph* others = plan.program.find_graph(GraphRole::kAccumulate);
  add_seconds(others != nullptr ? *others : *plan.program.find_graph(GraphRole::kTrain), target, cost);
  for (const SavedValue& saved : saved_for_backward(*plan.program.find_graph(GraphRole::kTrain)))
    if (saved.layer >= 0) cost.kept += saved.bytes;
  const double each = 1.0 / static_cast<double>(few.layers);
  for (double* of : {&cost.forward, &cost.backward, &cost.attention, &cost.recomputed}) *of *= each;
  for (int64_t* of : {&cost.kept, &cost.weights, &cost.codes, &cost.moments, &cost.gradients, &cost.parameters})
    *of /= few.layers;
  const ModelConfig model = resolve_model(config, 0);
  const int64_t tokens = layout.micro_batch * config.sequence_length / layout.context;
  cost.border = tokens * model.hidden * 2 / (layout.sequence ? layout.tensor : 1);
  return cost;
}

LayerCost between(const LayerCost& a, const LayerCost& b, double share) {
  LayerCost made = a;
  for (double LayerCost::*of :
       {&LayerCost::forward, &LayerCost::backward, &LayerCost::attention, &LayerCost::recomputed, &LayerCost::ends})
    made.*of += share * (b.*of - a.*of);
  for (int64_t LayerCost::*of : {&LayerCost::kept, &LayerCost::border})
    made.*of += static_cast<int64_t>(share * static_cast<double>(b.*of - a.*of));
  return made;
}

// Of a layer's seconds: how long all micro-batches take in stages that are cut as runs cut them.
double Estimator::step_layers(int64_t layers, double ends, const RunLayout& l, int64_t micro_batches) {
  constexpr double kStep = 0.1;  // the head's seconds of a layer's: schedules of nearly the same are the same
  const auto steps = static_cast<int64_t>(std::lround(ends / kStep));
  const auto p = static_cast<int32_t>(l.pipeline), v = static_cast<int32_t>(l.chunks);
  const auto part = static_cast<int32_t>(std::min<int64_t>(micro_batches, 3 * l.pipeline));  // the others go on alike
  const auto [known, fresh] = steps_.emplace(std::array{l.pipeline, l.chunks, steps, int64_t{part}}, Step{});
  if (fresh) {
    std::vector<double> seconds(static_cast<size_t>(layers), 1.0);
    seconds.back() += kStep * static_cast<double>(steps);
    std::vector<PieceSeconds> pieces(static_cast<size_t>(p * v));
    const std::vector<int32_t> cut = balance_layers(seconds, p, v);
    for (size_t i = 0; i < cut.size(); ++i) {
      PieceSeconds& piece = pieces[static_cast<size_t>(cut[i])];
      for (double& way : piece.forward) way += seconds[i] / 3;
      for (double& way : piece.backward) way += seconds[i] * 2 / 3;
    }
    const auto end = [&](int32_t count) {
      const std::vector<StageSeconds> stages = simulate(schedules(p, v, count), pieces, Transfers::kBeside);
      return std::ranges::max_element(stages, {}, &StageSeconds::end)->end;
    };
    known->second.part = end(part);
    if (part == 3 * p) known->second.further = (known->second.part - end(2 * p)) / p;
  }
  return known->second.part + static_cast<double>(micro_batches - part) * known->second.further;
}

Estimate Estimator::operator()(const LayerCost& c, const RunLayout& l) {
  const auto p = static_cast<double>(l.pipeline), v = static_cast<double>(l.chunks);
  const int64_t count = global_batch_ / l.micro_batch / l.data;
  const auto micro_batches = static_cast<double>(count);
  double again = c.recomputed;
  if (l.recompute == "none") again = 0;
  if (l.recompute == "selective") again = c.recomputed + c.attention;
  if (l.recompute == "full") again = c.forward;
  const double layer = c.forward + c.backward - c.recomputed + again, layers = static_cast<double>(c.layers);
  const double even = layers / p;
  const double stage = even * layer + c.ends / p;
  const double all_micro_batches =
      l.pipeline == 1 ? micro_batches * stage : layer * step_layers(c.layers, c.ends / layer, l, count);
  // Gradients over the ranks that hold the same parameters: what each micro-batch or step exchanges.
  const double replicas = static_cast<double>(l.data * l.context);
  const double parameters = static_cast<double>(c.parameters) * even, ring = (replicas - 1) / replicas;
  Mesh mesh;
  mesh[Axis::kPipeline] = static_cast<int32_t>(l.pipeline), mesh[Axis::kData] = static_cast<int32_t>(l.data);
  mesh[Axis::kContext] = static_cast<int32_t>(l.context), mesh[Axis::kTensor] = static_cast<int32_t>(l.tensor);
  const auto exchange = [&](double bytes) {
    return replicas > 1 ? link_seconds(bytes * ring, {Axis::kData, Axis::kContext}, mesh, target_) : 0.0;
  };
  const bool optimizer = l.shard != "none", gradients = optimizer && l.shard != "optimizer",
             all = l.shard == "parameters";
  double micro_batch = stage;
  if (gradients) micro_batch = std::max(stage, exchange(4 * parameters) + (all ? exchange(4 * parameters) : 0));
  constexpr double kUpdateBytes = 40;  // a parameter: float32 weight, gradient, moments read and written, a copy made
  const double memory = target_.step.known() ? target_.step.bytes_per_second : target_.bytes_per_second;
  const double update = kUpdateBytes * parameters / memory / (optimizer ? replicas : 1) +
                        (gradients ? 0.0 : exchange(optimizer ? 6 * parameters : 8 * parameters));
  Estimate made{.seconds = all_micro_batches * micro_batch / stage + update + target_.step.step_seconds};
  const auto cut = [&](int64_t bytes, bool sharded) { return static_cast<double>(bytes) / (sharded ? replicas : 1); };
  const double own = std::floor(even);
  const double states = cut(c.weights, optimizer) + cut(c.moments, optimizer) + cut(c.gradients, gradients) +
                        cut(c.codes, all) + (!optimizer && replicas > 1 ? static_cast<double>(c.gradients) : 0);
  const bool border = l.recompute == "full" || l.recompute == "selective";
  const double kept = border ? static_cast<double>(c.border) : 0.9 * static_cast<double>(c.kept);
  double flight = l.pipeline == 1 ? layers : own * std::min(p, micro_batches);  // layers times micro-batches
  if (l.chunks > 1) flight = own * (p + (p - 1) / v);
  made.bytes = static_cast<int64_t>(own * states + kept * flight);
  return made;
}

}  // namespace octet
