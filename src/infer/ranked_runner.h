// A model served by several ranks of tensor parallelism: threads of this process, or processes of a launcher, each with
// a GPU or a share of the cores, a runner of its own on its parts of the weights and of the caches.
//
// Rank 0 is whoever calls this runner. Each call goes to the others as bytes (infer/runner_calls.h), which make it too;
// the graphs' collectives bring the parts together. Every rank samples the same ids from the same logits, so no token
// is sent. When a rank throws or is lost, the next call of rank 0, or the one that waits for that rank, throws its
// error; a rank that neither answers nor throws ends a call of rank 0 after a time.
#pragma once

#include <memory>
#include <vector>

#include "dist/rank_team.h"
#include "infer/plan_runner.h"
#include "infer/runner_calls.h"

namespace octet {

class RankedRunner final : public Runner {
 public:
  using Open = std::function<std::unique_ptr<Runner>(const LocalRank& rank)>;
  // Makes the runners of all ranks at once, that of the team's own rank in the calling thread. When all are there,
  // those of GPUs warm up. Throws the error of the first rank that fails. `timeout`: seconds that rank 0 waits for its
  // device in a call.
  RankedRunner(std::unique_ptr<RankTeam> team, const Open& open, double timeout = 60);
  ~RankedRunner() override;

  const RunnerLimits& limits() const override { return own_->limits(); }
  void copy_blocks(std::span<const BlockCopy> copies) override;
  void forward(const StepInput& input) override;
  void sample(const SampleInput& input) override;
  SampleOutput wait() override;
  void write_states(std::span<const StatePart> parts) override;
  int64_t padded_tokens(const StepInput& input) const override { return own_->padded_tokens(input); }
  void check_alive() const override { team_->check_alive(); }
  bool follow() override;

 private:
  void start(const LocalRank& rank, Runner& runner);
  void make_calls(const LocalRank& rank, Runner& runner);
  template <typename Work>
  void lead(CallBytes call, const Work& work);
  void note(const LocalRank& rank, const CallBytes& call, int64_t& step);

  const double timeout_;
  int64_t step_ = 0;  // of rank 0
  std::unique_ptr<RankTeam> team_;
  std::unique_ptr<Runner> own_;
};

// Throws kInvalidArgument, with what would do, where options.engine.tensor ranks cannot share the model.
void check_ranks(const ModelConfig& model, const ServingOptions& options);
// What must be equal on all ranks, a line each.
std::string ranks_text(const ModelConfig& model, const ServingOptions& options);

// make_runner and make_random_runner, on options.engine.tensor ranks.
std::unique_ptr<Runner> open_runner(const WeightSource& weights, const ServingOptions& options);
std::unique_ptr<Runner> open_random_runner(const ModelConfig& model, const ServingOptions& options);

}  // namespace octet
