#include "tune/stage_sample.h"

#include "base/error.h"
#include "passes/stage_graphs.h"
#include "train/plan_report.h"

namespace octet {
namespace {

// base + (more - few) steps, of numbers and of all that is made of them.
struct Line {
  int64_t steps;

  int64_t operator()(int64_t base, int64_t few, int64_t more) const { return base + (more - few) * steps; }
  double operator()(double base, double few, double more) const {
    return std::max(base + (more - few) * static_cast<double>(steps), 0.0);
  }
  template <typename T, size_t N>
  std::array<T, N> operator()(const std::array<T, N>& base, const std::array<T, N>& few,
                              const std::array<T, N>& more) const {
    std::array<T, N> made = {};
    for (size_t i = 0; i < N; ++i) made[i] = (*this)(base[i], few[i], more[i]);
    return made;
  }
  std::vector<int64_t> operator()(const std::vector<int64_t>& base, const std::vector<int64_t>& few,
                                  const std::vector<int64_t>& more) const {
    check(base.size() == few.size() && few.size() == more.size(), ErrorCode::kInternal,
          "samples of {}, {} and {} graphs", base.size(), few.size(), more.size());
    std::vector<int64_t> made;
    for (size_t i = 0; i < base.size(); ++i) made.push_back((*this)(base[i], few[i], more[i]));
    return made;
  }
  GraphSeconds operator()(const GraphSeconds& base, const GraphSeconds& few, const GraphSeconds& more) const {
    return {.kernels = (*this)(base.kernels, few.kernels, more.kernels),
            .waiting = (*this)(base.waiting, few.waiting, more.waiting)};
  }
};

Line line_to(int64_t layers, const StageSample& base, const LayerStep& step) {
  const int64_t period = step.more->layers - step.few->layers;
  check(period > 0 && (layers - base.layers) % period == 0, ErrorCode::kInternal,
        "a sample of {} layers in steps of {} says nothing of {}", base.layers, period, layers);
  return {(layers - base.layers) / period};
}

int64_t input_bytes(const Plan& plan, const Graph& graph) {
  const int64_t alignment = std::max<int64_t>(plan.target.buffer_alignment, 64);
  int64_t bytes = 0;
  for (NodeId id : plan.graphs.at(graph.name()).inputs)
    bytes += (graph.node(id).results[0].bytes() + alignment - 1) / alignment * alignment;
  return bytes;
}

bool is_update(const Graph& graph) { return graph.role() == GraphRole::kApply || graph.role() == GraphRole::kPrepare; }

StageSample sample(const Plan& plan, int64_t layers) {
  PlanReport r;
  report_bytes(plan, r);
  StageSample made{.layers = layers,
                   .states = {r.weight_bytes + r.frozen_bytes, r.compute_bytes, r.moment_bytes, r.gradient_bytes,
                              r.scale_bytes, 0, r.padding_bytes},
                   .workspace = r.workspace_bytes};
  for (const Graph& graph : plan.program.graphs()) {
    const int64_t arena = plan.graphs.at(graph.name()).arena_bytes, inputs = input_bytes(plan, graph);
    (is_update(graph) ? made.arenas : made.piece.arenas).push_back(arena);
    (is_update(graph) ? made.inputs : made.piece.inputs) += inputs;
  }
  made.update = std::make_shared<const Graph>(*plan.program.find_graph(GraphRole::kApply));
  return made;
}

}  // namespace

StageSample sample_whole(const Plan& plan, int64_t layers) {
  StageSample made = sample(plan, layers);
  const Graph& train = *plan.program.find_graph(GraphRole::kTrain);
  made.piece.kept = plan.graphs.at(train.name()).saved_bytes;
  made.piece.forward.fill(graph_seconds(train, plan.target));
  if (const Graph* others = plan.program.find_graph(GraphRole::kAccumulate))
    made.piece.forward[1] = graph_seconds(*others, plan.target);
  return made;
}

StageSample sample_stage(const Plan& plan, int64_t layers, int32_t slots) {
  StageSample made = sample(plan, layers);
  PieceSample& piece = made.piece;
  const Program& program = plan.program;
  for (const bool adding : {false, true}) {
    const size_t at = adding ? 1 : 0;
    if (const Graph* graph = program.find_graph(forward_graph(0, adding)))
      piece.forward[at] = graph_seconds(*graph, plan.target);
    if (const Graph* graph = program.find_graph(backward_graph(0, adding)))
      piece.backward[at] = graph_seconds(*graph, plan.target);
  }
  for (const bool gradient : {false, true})
    for (const std::string& name : transfer_states(program, /*sent=*/true, gradient, 0))
      (gradient ? piece.sent_gradient : piece.sent) += program.find_state(name)->type.bytes();
  int64_t& padding = made.states.back();
  for (const StateEntry& entry : program.states()) {
    const int64_t aligned = slot_bytes(entry, plan.target.buffer_alignment), bytes = held_bytes(entry);
    if (entry.role == StateRole::kSaved) {
      piece.slot += bytes, piece.slot_aligned += aligned / slots;
      padding -= aligned - slots * bytes;
    } else if (entry.role == StateRole::kTransfer && entry.param.empty()) {
      piece.transfers += bytes, piece.transfers_aligned += aligned;
      padding -= aligned - bytes;
    } else if (entry.role == StateRole::kTransfer) {
      made.states[5] += bytes, made.shared += bytes;
    }
  }
  return made;
}

GraphSeconds update_seconds(const StageSample& base, const LayerStep& step, int64_t layers, const Mesh& mesh,
                            const Target& target) {
  const auto seconds = [&](const StageSample& sample) {
    Graph update = *sample.update;
    update.set_mesh(mesh);
    return graph_seconds(update, target);
  };
  return line_to(layers, base, step)(seconds(base), seconds(*step.few), seconds(*step.more));
}

StageSample with_layers(const StageSample& base, const LayerStep& step, int64_t layers) {
  const Line line = line_to(layers, base, step);
  const auto of = [&](auto StageSample::*field) { return line(base.*field, step.few->*field, step.more->*field); };
  const auto of_piece = [&](auto PieceSample::*field) {
    return line(base.piece.*field, step.few->piece.*field, step.more->piece.*field);
  };
  return {.layers = layers,
          .states = of(&StageSample::states),
          .inputs = of(&StageSample::inputs),
          .workspace = base.workspace,
          .shared = of(&StageSample::shared),
          .arenas = of(&StageSample::arenas),
          .update = base.update,
          .piece = {.inputs = of_piece(&PieceSample::inputs),
                    .transfers = of_piece(&PieceSample::transfers),
                    .transfers_aligned = of_piece(&PieceSample::transfers_aligned),
                    .slot = of_piece(&PieceSample::slot),
                    .slot_aligned = of_piece(&PieceSample::slot_aligned),
                    .sent = of_piece(&PieceSample::sent),
                    .sent_gradient = of_piece(&PieceSample::sent_gradient),
                    .kept = of_piece(&PieceSample::kept),
                    .arenas = of_piece(&PieceSample::arenas),
                    .forward = of_piece(&PieceSample::forward),
                    .backward = of_piece(&PieceSample::backward)}};
}

}  // namespace octet
