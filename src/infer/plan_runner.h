// The runner on a serving program and an executor: pads each step to the smallest graph that holds it.
#pragma once

#include <map>
#include <memory>

#include "exec/executor.h"
#include "infer/serving_program.h"
#include "weights/weights.h"

namespace octet {

class PlanRunner final : public Runner {
 public:
  // Weights are not loaded yet: call load_weights(), fill_random_weights() or write_state() on executor(), then
  // warm_up().
  // `ranks`: this one's way to the others, where the program is one for a mesh.
  PlanRunner(ServingProgram program, const CudaOptions& options = {}, Communicator* ranks = nullptr);

  Executor& executor() { return *executor_; }
  // Runs every graph twice on empty inputs, so that no later step loads modules or captures graphs. Writes no cache.
  void warm_up() override;

  const RunnerLimits& limits() const override { return limits_; }
  void copy_blocks(std::span<const BlockCopy> copies) override;
  void forward(const StepInput& input) override;
  void sample(const SampleInput& input) override;
  SampleOutput wait() override;
  void write_states(std::span<const StatePart> parts) override;
  int64_t padded_tokens(const StepInput& input) const override { return forward_bucket(input).tokens; }

 private:
  const ForwardBucket& forward_bucket(const StepInput& input) const;
  const SampleBucket& sample_bucket(const SampleInput& input) const;
  uint64_t adapter_classes(const StepInput& input) const;
  void find_adapter_rows(const StepInput& input, const ForwardBucket& bucket);
  void find_read_rows(const StepInput& input, size_t group);
  void check_step(const StepInput& input) const;
  void collect();

  RunnerLimits limits_;
  std::vector<ForwardBucket> decode_, mixed_;
  std::vector<SampleBucket> samples_;
  std::vector<std::string> copies_;
  bool at_once_ = true;  // run() is synchronous and the next run() overwrites its results
  std::unique_ptr<Executor> executor_;

  const SampleBucket* sampling_ = nullptr;  // of the last sample(), until its results are taken
  int64_t sampled_rows_ = 0;
  std::vector<int32_t> hidden_rows_;
  std::vector<int32_t> read_positions_, read_segments_, read_lengths_, read_table_;  // of the rows that are read
  // Inputs of a step's adapters: of each class of ranks the offsets of its groups.
  std::vector<std::vector<int32_t>> lora_offsets_, lora_groups_;
  std::vector<int32_t> gain_rows_, virtual_slots_, virtual_rows_;
  std::vector<int32_t> ids_, top_ids_, adjusted_ids_;
  std::vector<float> logprobs_, top_logprobs_, adjusted_logprobs_;
};

// A runner with the source's weights; of one of options.engine.tensor ranks, which all make theirs at once, with its
// parts of them.
std::unique_ptr<PlanRunner> make_runner(const WeightSource& weights, const ServingOptions& options,
                                        const CudaOptions& cuda = {}, Communicator* ranks = nullptr);
// A runner with random weights (weights/random_weights.h): for benchmarks and tests.
std::unique_ptr<PlanRunner> make_random_runner(const ModelSpec& model, const ServingOptions& options,
                                               const CudaOptions& cuda = {}, uint64_t seed = 1337,
                                               Communicator* ranks = nullptr);

}  // namespace octet
