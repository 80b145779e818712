#include "train/stage_report.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "base/error.h"
#include "ir/facts.h"
#include "passes/node_clock.h"
#include "passes/pipeline_schedule.h"
#include "passes/stage_graphs.h"
#include "train/stepper.h"

namespace octet {
namespace {

double transfer_seconds(int64_t bytes, const Mesh& mesh, const Target& target) {
  return bytes == 0 ? 0 : link_seconds(static_cast<double>(bytes), {Axis::kPipeline}, mesh, target);
}

// The stages of one compiled plan: all that slots do not change.
struct CompiledStage {
  PlanReport rank;
  std::vector<int64_t> slot_bytes;  // by chunk: of one slot, and with its alignment
  std::vector<int64_t> slot_bytes_aligned;
  std::vector<PieceSeconds> pieces;  // by chunk
  double computing = 0, collectives = 0, update = 0;
  std::array<double, kWorkKinds> kernels = {};
  int64_t sent_bytes = 0;    // of one micro-batch
  int64_t shared_bytes = 0;  // gradients of tied tables, once a step
};

class StagePlanner {
 public:
  StagePlanner(const TrainingWorkload& workload, const RunConfig& config, const Target& target, bool verify)
      : workload_(workload),
        options_(stepper_options(config, target)),
        parallel_(options_.compile.parallel),
        target_(target) {
    options_.compile.verify = verify;
    whole_ = compile_whole(training_program(workload_, options_), options_.compile, &passes_);
    pad_for_stages(whole_, options_.compile);
    cut_ = cut_layers(*whole_.find_graph(GraphRole::kTrain), parallel_, target);
  }

  PipelineReport run() {
    const auto count = static_cast<size_t>(parallel_.mesh[Axis::kPipeline]);
    PipelineReport report{.chunks = parallel_.chunks, .micro_batches = parallel_.micro_batches};
    report_model(workload_, whole_, report.model);
    report.model.mesh = parallel_.mesh;
    report.has_rates = target_.bf16_flops > 0 && target_.bytes_per_second > 0;
    std::tie(report.flops_rate, report.flops_name) = product_rate(options_.compile.recipe, target_);
    const std::vector<PipelineSchedule> order =
        schedules(parallel_.mesh[Axis::kPipeline], parallel_.chunks, parallel_.micro_batches);
    const std::vector<int32_t> alike = alike_stages(whole_, cut_, parallel_);
    std::map<int32_t, CompiledStage> compiled;
    std::vector<PieceSeconds> pieces(count * static_cast<size_t>(parallel_.chunks));
    for (size_t s = 0; s < count; ++s) {
      auto found = compiled.find(alike[s]);
      if (found == compiled.end()) found = compiled.emplace(alike[s], compile(static_cast<int32_t>(s), order[s])).first;
      const CompiledStage& plan = found->second;
      report.stages.push_back(report_of(plan, order[s].slots, static_cast<int32_t>(s)));
      for (size_t c = 0; c < plan.pieces.size(); ++c) pieces[c * count + s] = plan.pieces[c];
      if (alike[s] == static_cast<int32_t>(s)) report.model.nodes += plan.rank.nodes;
    }
    report.compiled = static_cast<int32_t>(compiled.size());
    time_step(report, order, pieces, compiled, alike);
    return report;
  }

 private:
  CompiledStage compile(int32_t stage, const PipelineSchedule& order) {
    CompileOptions options = options_.compile;
    options.parallel.stage = stage;
    if (!options.dump_dir.empty()) options.dump_dir += fmt::format("/stage_{}", stage);
    std::vector<PassReport> passes = passes_;
    const Plan plan = compile_stage(whole_, options, &passes);
    const Program& program = plan.program;
    CompiledStage made;
    report_bytes(plan, made.rank);
    for (int32_t chunk = 0; chunk < parallel_.chunks; ++chunk) add_chunk(made, plan, chunk, order);
    for (const StateEntry& entry : program.states())
      if (entry.role == StateRole::kTransfer && !entry.param.empty() && entry.slots > 0)
        made.shared_bytes += entry.type.bytes();
    const Graph& apply = *program.find_graph(GraphRole::kApply);
    made.update = graph_seconds(apply, target_).all();
    add_collectives(apply, target_, "step", 1, made.rank.collectives);
    return made;
  }

  void add_chunk(CompiledStage& made, const Plan& plan, int32_t chunk, const PipelineSchedule& order) {
    const Program& program = plan.program;
    const int64_t others = parallel_.micro_batches - 1;
    PieceSeconds piece;
    for (const bool backward : {false, true}) {
      for (const bool adding : {false, true}) {
        const Graph* graph =
            program.find_graph(backward ? backward_graph(chunk, adding) : forward_graph(chunk, adding));
        if (graph == nullptr || (adding && others == 0)) continue;
        const int64_t runs = adding ? others : 1;
        const GraphSeconds seconds = graph_seconds(*graph, target_);
        (backward ? piece.backward : piece.forward)[adding ? 1 : 0] = seconds.all();
        made.computing += static_cast<double>(runs) * seconds.computing();
        for (size_t k = 0; k < kWorkKinds; ++k) made.kernels[k] += static_cast<double>(runs) * seconds.kernels[k];
        made.collectives += static_cast<double>(runs) * seconds.waiting;
        add_collectives(*graph, target_, "step", runs, made.rank.collectives);
      }
      int64_t bytes = 0;
      for (const std::string& name : transfer_states(program, /*sent=*/true, /*gradient=*/backward, chunk))
        bytes += program.find_state(name)->type.bytes();
      made.sent_bytes += bytes;
      (backward ? piece.send_gradient : piece.send) = transfer_seconds(bytes, parallel_.mesh, target_);
    }
    made.pieces.push_back(piece);
    int64_t bytes = 0, aligned = 0;
    const std::string prefix = fmt::format("saved.{}.", chunk);
    const int64_t slots = order.slots[static_cast<size_t>(chunk)];
    for (const StateEntry& entry : program.states()) {
      if (entry.role != StateRole::kSaved || !entry.name.starts_with(prefix)) continue;
      bytes += entry.type.bytes();
      aligned += slot_bytes(entry, target_.buffer_alignment) / slots;
    }
    made.slot_bytes.push_back(bytes);
    made.slot_bytes_aligned.push_back(aligned);
    // Without slots, which report_of() adds.
    made.rank.activation_bytes -= slots * bytes;
    made.rank.padding_bytes -= slots * (aligned - bytes);
    made.rank.total_bytes -= slots * aligned;
  }

  StageReport report_of(const CompiledStage& plan, const std::vector<int32_t>& slots, int32_t stage) const {
    StageReport report{.slots = slots,
                       .rank = plan.rank,
                       .sent_bytes = static_cast<double>(plan.sent_bytes) * parallel_.micro_batches +
                                     static_cast<double>(plan.shared_bytes),
                       .computing = plan.computing,
                       .collectives = plan.collectives,
                       .update = plan.update,
                       .kernels = plan.kernels};
    for (size_t c = 0; c < slots.size(); ++c) {
      report.rank.activation_bytes += slots[c] * plan.slot_bytes[c];
      report.rank.padding_bytes += slots[c] * (plan.slot_bytes_aligned[c] - plan.slot_bytes[c]);
      report.rank.total_bytes += slots[c] * plan.slot_bytes_aligned[c];
    }
    for (size_t layer = 0; layer < cut_.size(); ++layer)
      if (cut_[layer] % parallel_.mesh[Axis::kPipeline] == stage) report.layers.push_back(static_cast<int32_t>(layer));
    return report;
  }

  void time_step(PipelineReport& report, const std::vector<PipelineSchedule>& order,
                 const std::vector<PieceSeconds>& pieces, const std::map<int32_t, CompiledStage>& compiled,
                 const std::vector<int32_t>& alike) const {
    double once = 0;  // a step: the update, after gradients of tied tables
    for (size_t s = 0; s < order.size(); ++s)
      once = std::max(once, report.stages[s].update +
                                transfer_seconds(compiled.at(alike[s]).shared_bytes, parallel_.mesh, target_));
    report.beside = target_.traits.overlaps_transfers;
    for (const Transfers way : {Transfers::kInTurn, Transfers::kBeside}) {
      const std::vector<StageSeconds> simulated = simulate(order, pieces, way);
      double end = 0, work = 0, idle = 0;
      for (const StageSeconds& stage : simulated) end = std::max(end, stage.end);
      const bool beside = way == Transfers::kBeside, as_runs = beside == report.beside;
      for (size_t s = 0; s < simulated.size(); ++s) {
        work += simulated[s].work, idle += end - simulated[s].work;
        if (!as_runs) continue;
        report.stages[s].transfers = simulated[s].transfers;
        report.stages[s].idle = end - simulated[s].work - simulated[s].transfers;
      }
      if (as_runs) report.bubble = idle / work, report.step_seconds = end + once + target_.step.step_seconds;
      if (beside) report.beside_bubble = idle / work, report.beside_seconds = end + once + target_.step.step_seconds;
    }
    report.bubble_formula = pipeline_bubble(parallel_.mesh[Axis::kPipeline], parallel_.chunks, parallel_.micro_batches);
  }

  const TrainingWorkload& workload_;
  StepperOptions options_;
  const Parallel& parallel_;
  const Target& target_;
  std::vector<PassReport> passes_;
  Program whole_;
  std::vector<int32_t> cut_;  // the piece of each layer
};

}  // namespace

const StageReport& PipelineReport::largest() const {
  return *std::ranges::max_element(stages, {}, [](const StageReport& stage) { return stage.rank.total_bytes; });
}

double PipelineReport::units() const {
  return static_cast<double>(model.units) * micro_batches * model.mesh[Axis::kData];
}

double PipelineReport::rank_flops() const {
  return (model.forward_flops + model.backward_flops) * units_per_second() / model.mesh.ranks();
}

PipelineReport plan_stages(const TrainingWorkload& workload, const RunConfig& config, const Target& target,
                           bool verify) {
  const auto started = std::chrono::steady_clock::now();
  PipelineReport report = StagePlanner(workload, config, target, verify).run();
  report.model.compile_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return report;
}

}  // namespace octet
