#include "train/stage_runner.h"

#include <algorithm>

#include "base/error.h"
#include "passes/stage_graphs.h"

namespace octet {
namespace {

using Kind = PipelineAction::Kind;

}  // namespace

StageRunner::StageRunner(Executor& executor, const Parallel& parallel)
    : executor_(executor),
      ranks_(*executor.ranks()),
      stage_(parallel.stage),
      stages_(parallel.mesh[Axis::kPipeline]),
      chunks_(parallel.chunks),
      schedule_(schedule(chunks_ > 1 ? PipelineKind::kInterleaved : PipelineKind::k1F1B, stages_, stage_, chunks_,
                         parallel.micro_batches)) {
  check(executor.coordinate()[Axis::kPipeline] == stage_, ErrorCode::kInternal,
        "a plan of stage {} of a pipeline is run by a rank of stage {}", stage_,
        executor.coordinate()[Axis::kPipeline]);
}

void StageRunner::step(const RunGraph& run) {
  for (const PipelineAction& action : schedule_.actions) {
    const bool adding = action.micro_batch > 0;
    switch (action.kind) {
      case Kind::kForward: run(forward_graph(action.chunk, adding), action.micro_batch, action.slot); break;
      case Kind::kBackward: run(backward_graph(action.chunk, adding), action.micro_batch, action.slot); break;
      default: transfer(action);
    }
  }
}

void StageRunner::evaluate(const std::function<void(const std::string& graph)>& run) {
  for (int32_t chunk = 0; chunk < chunks_; ++chunk) {
    const int32_t piece = chunk * stages_ + stage_;
    if (piece > 0) transfer({.kind = Kind::kReceive, .chunk = chunk, .peer = (stage_ + stages_ - 1) % stages_});
    run(eval_graph(chunk));
    if (piece + 1 < chunks_ * stages_) transfer({.kind = Kind::kSend, .chunk = chunk, .peer = (stage_ + 1) % stages_});
  }
}

void StageRunner::transfer(const PipelineAction& action) {
  const bool sends = action.kind == Kind::kSend;
  for (const std::string& name : transfer_states(executor_.program(), sends, action.gradient, action.chunk))
    sends ? executor_.send_state(name, rank_of(action.peer)) : executor_.receive_state(name, rank_of(action.peer));
}

void StageRunner::share_gradients() {
  for (const StateEntry& entry : executor_.program().states()) {
    if (entry.role != StateRole::kTransfer || entry.param.empty() || entry.slots == 0) continue;
    const int32_t other = rank_of(is_last() ? 0 : stages_ - 1);
    const std::string& gradient = executor_.program().find_state(entry.param, StateRole::kGradient)->name;
    if (!is_last()) executor_.send_state(gradient, other);
    executor_.receive_state(entry.name, other);
    if (is_last()) executor_.send_state(gradient, other);
  }
}

int32_t StageRunner::rank_of(int32_t stage) const {
  Coordinate there = ranks_.coordinate();
  there.at[static_cast<size_t>(Axis::kPipeline)] = stage;
  return ranks_.mesh().rank(there);
}

double StageRunner::from_last(double value) {
  const std::vector<int32_t> group = ranks_.mesh().group(ranks_.rank(), {Axis::kPipeline});
  double last = value;
  std::vector<std::span<const std::byte>> sends(group.size());
  std::vector<std::span<std::byte>> receives(group.size());
  if (is_last()) std::ranges::fill(sends, std::as_bytes(std::span(&value, 1)));
  receives.back() = std::as_writable_bytes(std::span(&last, 1));
  ranks_.exchange(group, sends, receives);
  return last;
}

}  // namespace octet
