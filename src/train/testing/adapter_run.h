// A small base of random rules and runs of adapters on it, all made by the test.
#pragma once

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "exec/logical_states.h"
#include "io/dataset.h"
#include "train/language_model.h"
#include "train/trainer.h"

namespace octet {

inline constexpr int64_t kVocab = 64, kLength = 16;

class AdapterRun : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kError);
    make_set("base", 3), make_set("other", 5), make_set("few", 5, 8);
    config_.threads = 1;
    config_.train_data = config_.validation_data = folder_.file("base");
    config_.architecture = "llama", config_.vocab_size = kVocab;
    config_.hidden = 32, config_.layers = 2, config_.heads = 4, config_.kv_heads = 2, config_.intermediate = 64;
    config_.sequence_length = kLength, config_.micro_batch = 2, config_.global_batch = 8;
    config_.recipe = "fp32", config_.recompute = "none";
    config_.optimizer.lr = 1e-2, config_.optimizer.warmup_steps = 0, config_.optimizer.weight_decay = 0;
    config_.eval_interval = 1000, config_.checkpoint_interval = 5, config_.checkpoint_best = false;
  }
  // Token i + 1 follows from token i by another rule in each, of the first `tokens` of the vocabulary.
  void make_set(const std::string& name, int64_t factor, int64_t tokens = kVocab) {
    DatasetWriter writer(folder_.file(name), TokenType::kU16);
    Philox random(static_cast<uint64_t>(factor));
    for (int32_t i = 0, token = 1; i < 4000; ++i) {
      writer.append(std::vector<int32_t>{token});
      token = static_cast<int32_t>(random.below(8) == 0 ? random.below(static_cast<uint64_t>(tokens))
                                                        : (token * factor + 7) % tokens);
    }
    writer.commit();
  }
  // Trains a base of this family, then sets up a run of an adapter on it.
  void use_base(const std::string& architecture, int64_t steps = 20) {
    config_.architecture = architecture, config_.steps = steps;
    if (architecture == "gpt2") config_.kv_heads = 0;
    if (architecture == "qwen2_moe") config_.expert_intermediate = 32;
    if (architecture == "mixtral" || architecture == "qwen2_moe") config_.experts = 4, config_.experts_per_token = 2;
    config_.out = folder_.file("base_" + architecture);
    base_ = train(config_).checkpoint;
    config_.model_from = base_, config_.adapter.method = "lora";
    config_.adapter.rank = 4, config_.adapter.alpha = 8;
    config_.train_data = config_.validation_data = folder_.file("other");
    config_.out = folder_.file("run");
  }
  TrainResult run(const std::string& out) {
    config_.out = folder_.file(out);
    losses_.clear();
    return train(config_, {.on_step = [&](const RunState&, const StepResult& step) { losses_.push_back(step.loss); }});
  }
  std::unique_ptr<Stepper> stepper_of(const LanguageModel& workload) const {
    return std::make_unique<Stepper>(workload, stepper_options(config_, cpu_target()));
  }
  static std::vector<float> values(Executor& executor, const std::string& param) {
    const LogicalState tensor = find_logical_state(executor.program(), param, StateRole::kMaster);
    std::vector<float> floats(static_cast<size_t>(tensor.type.shape.elements()));
    read_logical(executor, tensor, std::as_writable_bytes(std::span(floats)));
    return floats;
  }
  TempFolder folder_;
  RunConfig config_;
  std::string base_;
  std::vector<double> losses_;
};

}  // namespace octet
