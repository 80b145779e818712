#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "ir/facts.h"
#include "ir/rewrite.h"
#include "passes/passes.h"
#include "passes/pipeline_schedule.h"
#include "passes/stage_graphs.h"
#include "passes/stage_part.h"

namespace octet {
namespace {

class StageProgram {
 public:
  StageProgram(const Program& whole, const Parallel& parallel, const Target& target)
      : whole_(whole), parallel_(parallel), stages_(parallel.mesh[Axis::kPipeline]) {
    const Graph& train = *whole.find_graph(GraphRole::kTrain);
    cut_ = cut_layers(train, parallel, target);
    tied_ = tied_parameters(train);
    stage_.name = whole.name;
    for (const StateEntry& entry : whole.states()) stage_.add_state(entry);
  }

  Program run() {
    const PipelineSchedule order = schedule(parallel_.chunks > 1 ? PipelineKind::kInterleaved : PipelineKind::k1F1B,
                                            stages_, parallel_.stage, parallel_.chunks, parallel_.micro_batches);
    for (const Graph& graph : whole_.graphs()) {
      if (runs_per_micro_batch(graph.role())) add_training(graph, order.slots);
      if (graph.role() == GraphRole::kEval) add_evaluation(graph);
    }
    find_held();
    for (const Graph& graph : whole_.graphs())
      if (graph.role() == GraphRole::kApply || graph.role() == GraphRole::kPrepare) add_updates(graph);
    for (StateEntry& entry : stage_.states())
      if (!is_held(entry)) entry.slots = 0;
    return std::move(stage_);
  }

 private:
  int32_t piece(int32_t chunk) const { return chunk * stages_ + parallel_.stage; }

  std::vector<int32_t> pieces_of(const Graph& graph) const {
    std::vector<int32_t> pieces = layers_of(graph, static_cast<int32_t>(cut_.size()));
    for (int32_t& piece : pieces)
      if (piece != kAnywhere) piece = cut_[static_cast<size_t>(piece)];
    return pieces;
  }

  // Those that pieces of both ends read.
  std::set<std::string> tied_parameters(const Graph& train) const {
    const std::vector<int32_t> pieces = pieces_of(train);
    std::map<std::string, std::set<int32_t>> readers;  // by parameter: stages
    for (int32_t i = 0; i < train.size(); ++i) {
      const int32_t own = pieces[static_cast<size_t>(i)];
      for (Value input : train.node(NodeId{i}).inputs) {
        if (own == kAnywhere || !input.exists()) continue;
        const StateEntry* entry = whole_.find_state(train.node(input).name);
        const Op op = train.node(input).op;
        if ((op == Op::kParam || op == Op::kState) && entry != nullptr &&
            (entry->role == StateRole::kMaster || entry->role == StateRole::kCompute))
          readers[entry->param].insert(own % stages_);
      }
    }
    std::set<std::string> tied;
    for (const auto& [param, of] : readers) {
      if (of.size() == 1) continue;
      check(of == std::set<int32_t>{0, stages_ - 1}, ErrorCode::kUnsupported,
            "parallel.pipeline: {} is read by stages other than the first and the last: want fewer stages", param);
      tied.insert(param);
    }
    return tied;
  }

  void add_training(const Graph& graph, const std::vector<int32_t>& slots) {
    const bool adding = graph.role() == GraphRole::kAccumulate;
    StagePart parts(graph, pieces_of(graph), stages_, stage_);
    for (int32_t chunk = 0; chunk < parallel_.chunks; ++chunk) {
      const int32_t copies = slots[static_cast<size_t>(chunk)];
      Graph backward = parts.part(piece(chunk), true, backward_graph(chunk, adding), copies);
      stage_.add_graph(parts.part(piece(chunk), false, forward_graph(chunk, adding), copies));
      stage_.add_graph(std::move(backward));
    }
  }

  void add_evaluation(const Graph& graph) {
    StagePart parts(graph, pieces_of(graph), stages_, stage_);
    for (int32_t chunk = 0; chunk < parallel_.chunks; ++chunk)
      stage_.add_graph(parts.part(piece(chunk), false, eval_graph(chunk), 1));
  }

  void find_held() {
    held_.insert(kLossSum);
    for (const StateEntry& entry : stage_.states())
      if (entry.name.starts_with(kSumPrefix)) held_.insert(entry.name);
    const auto hold = [&](const std::string& name) {
      held_.insert(name);
      const StateEntry* entry = stage_.find_state(name);
      if (!entry->param.empty()) params_.insert(entry->param);
    };
    for (const Graph& graph : stage_.graphs()) {
      for (const Node& node : graph.nodes())
        if (node.op == Op::kParam || node.op == Op::kState) hold(node.name);
      for (const NamedValue& update : graph.updates()) hold(update.name);
    }
  }
  bool is_held(const StateEntry& entry) const { return held_.contains(entry.name) || params_.contains(entry.param); }

  void add_updates(const Graph& whole) {
    Graph old = whole;
    std::erase_if(old.updates(), [&](const NamedValue& update) { return !is_held(*stage_.find_state(update.name)); });
    Rewriter rewriter(old);
    for (int32_t i = 0; i < old.size(); ++i) {
      const NodeId id{i};
      Node node = rewriter.mapped(id);
      if (node.op == Op::kSquareSum && node.attr<bool>("stages")) {
        node.inputs = counted(old, id, rewriter);
        check(
            !node.inputs.empty(), ErrorCode::kUnsupported,
            "parallel.pipeline={}: stage {} has no parameter that is trained: set fewer stages, or adapter.layers and "
            "adapter.targets with some in every stage",
            stages_, parallel_.stage);
      }
      const StateEntry* entry = node.op == Op::kState ? stage_.find_state(node.name) : nullptr;
      const NodeId made = rewriter.replace(id, std::move(node));
      if (entry != nullptr && entry->role == StateRole::kGradient && tied_.contains(entry->param) && is_held(*entry))
        rewriter.set({id, 0}, add_peer(rewriter, {made, 0}, StateEntry(*entry)));
    }
    stage_.add_graph(rewriter.finish());
  }

  // A tied table's gradient is the sum of both ends'.
  Value add_peer(Rewriter& rewriter, Value own, StateEntry entry) {
    entry.role = StateRole::kTransfer, entry.name = "";
    Builder& b = rewriter.builder();
    b.set_phase(Phase::kOptimizer);
    const Value peer = declare_state(stage_, b, entry);
    held_.insert(state_name(StateRole::kTransfer, entry.param));
    return b.add(own, peer);
  }

  // The gradients of this stage; those of tied tables are the first one's.
  std::vector<Value> counted(const Graph& old, NodeId id, const Rewriter& rewriter) const {
    std::vector<Value> gradients;
    for (Value input : old.node(id).inputs) {
      const StateEntry* entry = stage_.find_state(old.node(input).name);
      check(entry != nullptr, ErrorCode::kInternal, "stages: {} sums the squares of what is no state",
            describe(old, id));
      if (is_held(*entry) && (parallel_.stage == 0 || !tied_.contains(entry->param)))
        gradients.push_back(rewriter.map(input));
    }
    return gradients;
  }

  const Program& whole_;
  const Parallel& parallel_;
  int32_t stages_;
  Program stage_;
  std::vector<int32_t> cut_;  // the piece of each layer
  std::set<std::string> tied_, held_, params_;
};

}  // namespace

bool pad_for_stages(Program& program, const CompileOptions& options) {
  const int64_t tp = options.parallel.mesh[Axis::kTensor], multiple = options.target.vocab_multiple * tp;
  return multiple > 1 && pad_vocab(program, multiple, /*embeddings=*/tp > 1);
}

bool stages(Program& program, const CompileOptions& options) {
  const Parallel& parallel = options.parallel;
  const int32_t count = parallel.mesh[Axis::kPipeline];
  check(count > 1 || parallel.chunks == 1, ErrorCode::kInvalidArgument,
        "parallel.chunks={} wants several stages: set parallel.pipeline, or parallel.chunks=1", parallel.chunks);
  if (count == 1) return false;
  check(program.find_graph(GraphRole::kTrain) != nullptr, ErrorCode::kUnsupported,
        "parallel.pipeline={}: programs without a train graph are not cut into stages", count);
  check(program.find_graph(GraphRole::kTrainStats) == nullptr, ErrorCode::kUnsupported,
        "parallel.pipeline={}: precision.recipe=auto is not cut into stages: choose a recipe", count);
  for (const StateEntry& entry : program.states())
    check(entry.role != StateRole::kStatistic && entry.update != Update::kRows, ErrorCode::kUnsupported,
          "parallel.pipeline={}: {} {}, and programs with such are not cut into stages: set parallel.pipeline=1", count,
          entry.name, entry.role == StateRole::kStatistic ? "is a running statistic" : "has a gradient of rows");
  pad_for_stages(program, options);
  program = StageProgram(program, parallel, options.target).run();
  return true;
}

}  // namespace octet
