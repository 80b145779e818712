// A model served by several ranks of tensor parallelism: threads of this process, each with a GPU or a share of the
// cores, a runner of its own on its parts of the weights and of the caches.
//
// Rank 0 is whoever calls this runner. Each call goes to the others as bytes (infer/runner_calls.h), which make it too;
// the graphs' collectives bring the parts together. Every rank samples the same ids from the same logits, so no token
// is sent. When a rank throws, the next call of rank 0, or the one that waits for that rank, throws its error; a rank
// that neither answers nor throws ends a call of rank 0 after a time.
#pragma once

#include <memory>
#include <vector>

#include "dist/local_ranks.h"
#include "infer/plan_runner.h"
#include "infer/runner_calls.h"

namespace octet {

class RankedRunner final : public Runner {
 public:
  using Open = std::function<std::unique_ptr<Runner>(const LocalRank& rank)>;
  // Makes the runners of all ranks at once, each in the rank's thread; that of rank 0 in the calling one. When all are
  // there, those of GPUs warm up. Throws the error of the first rank that fails. `timeout`: seconds that rank 0 waits
  // for another in a call, and each rank in an exchange.
  RankedRunner(int32_t ranks, bool gpus, const Open& open, double timeout = 60);
  ~RankedRunner() override;

  const RunnerLimits& limits() const override { return own_->limits(); }
  void copy_blocks(std::span<const BlockCopy> copies) override;
  void forward(const StepInput& input) override;
  void sample(const SampleInput& input) override;
  SampleOutput wait() override;
  int64_t padded_tokens(const StepInput& input) const override { return own_->padded_tokens(input); }

 private:
  void follow(const LocalRank& rank, const Open& open);
  void start(const LocalRank& rank, Runner& runner);
  template <typename Work>
  void lead(CallBytes call, const Work& work);
  std::string behind() const;
  void close();

  const double timeout_;
  ThreadShare threads_;
  std::vector<CallQueue> queues_;  // of ranks 1 ...
  LocalRanks ranks_;
  std::unique_ptr<Runner> own_;
};

// Throws kInvalidArgument, with what would do, where options.tensor ranks cannot share the model or are more than there
// are GPUs.
void check_ranks(const ModelConfig& model, const ServingOptions& options);

// make_runner and make_random_runner, on options.tensor ranks.
std::unique_ptr<Runner> open_runner(const WeightSource& weights, const ServingOptions& options);
std::unique_ptr<Runner> open_random_runner(const ModelConfig& model, const ServingOptions& options);

}  // namespace octet
