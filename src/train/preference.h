// Direct preference optimisation: a language model, or its adapter, learns to tell chosen answers from rejected ones
// against a frozen reference. A target is a pair. Sources: Rafailov et al., DPO (arXiv 2305.18290, equation 7); label
// smoothing: Mitchell, cDPO (2023); Azar et al., IPO (arXiv 2310.12036, equation 17), of mean log-ratios as in TRL.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/language_model.h"
#include "train/preference_batch.h"
#include "train/stepper.h"

namespace octet {

class PreferenceModel : public LanguageModel {
 public:
  PreferenceModel(ModelConfig model, const RunConfig& config);  // without batches
  explicit PreferenceModel(const RunConfig& config);
  // Of pairs that the caller lays out itself: rows of `length` inputs.
  PreferenceModel(ModelConfig model, int64_t pairs, int64_t length, AdapterSpec adapter, PreferenceSettings settings);

  // With the log-ratios d = log p(answer) - log p_reference(answer) and z = beta (d_chosen - d_rejected), a pair's loss
  // is -(1 - smoothing) log sigmoid(z) - smoothing log sigmoid(-z); of ipo (d_chosen / tokens - d_rejected / tokens -
  // 1 / (2 beta))^2. Outputs besides, their sums over pairs: rewards_chosen and rewards_rejected (beta d), margin (z)
  // and accuracy (z > 0).
  Graph loss(GraphRole role, int64_t shape) const override;
  int64_t units() const override { return sequences_; }
  std::unique_ptr<TrainingWorkload> with_settings(const RunConfig& config) const override;

  Batch batch(DataSplit split, int64_t index) const override;
  DataRecord data() const override;
  std::vector<Metric> metrics() const override;
  CountedUnit unit() const override { return {.one = "pair", .brief = "pairs"}; }

  // The reference's log-probabilities of every pair, from OUT/reference_*.safetensors where it is of this data, model
  // and recipe.
  void prepare(const StepperOptions& options, const std::string& out) override;

 private:
  PreferencePair pair(const TokenSampler& sampler, int64_t index) const;
  std::vector<PairLogps> reference_of(const TokenSampler& sampler, const StepperOptions& options) const;

  PreferenceSettings settings_;
  std::string reference_, reference_fingerprint_;
  int64_t reference_nf4_ = 0;                                 // AdapterSpec::nf4 of the reference
  std::vector<PairLogps> training_logps_, validation_logps_;  // by row of the set
};

extern const WorkloadRow kPreferenceLearning;

// Of a frozen model (nf4: AdapterSpec's), batch by batch of `pairs` rows of `length`; all ranks call it together.
std::vector<PairLogps> reference_logps(const WeightSource& weights, int64_t pairs, int64_t length, int64_t count,
                                       const std::function<PreferencePair(int64_t)>& pair,
                                       const StepperOptions& options, int64_t nf4 = 0,
                                       const std::function<void(int64_t done)>& progress = {});

}  // namespace octet
