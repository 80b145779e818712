// What runs trained becomes folders of PEFT, which merge into the same model.
#include "train/run_adapter.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "base/log.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "io/dataset.h"
#include "io/safetensors.h"
#include "train/trainer.h"

namespace octet {
namespace {

class RunAdapter : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kError);
    DatasetWriter writer(folder_.file("set"), TokenType::kU16);
    for (int32_t i = 0; i < 2000; ++i) writer.append(std::vector<int32_t>{i * (i % 7 + 1) % 64});
    writer.commit();
    config_.threads = 1, config_.train_data = folder_.file("set"), config_.recipe = "fp32";
    config_.vocab_size = 64, config_.hidden = 32, config_.layers = 2, config_.heads = 4, config_.intermediate = 64;
    config_.sequence_length = 16, config_.micro_batch = 2, config_.global_batch = 4, config_.steps = 3;
    config_.optimizer.lr = 3e-2, config_.optimizer.warmup_steps = 0, config_.checkpoint_best = false;
  }
  // The checkpoint of an adapter on a base of this family.
  std::string train_adapter(const std::string& architecture) {
    config_.architecture = architecture, config_.kv_heads = architecture == "llama" ? 2 : 0;
    config_.out = folder_.file("base"), config_.adapter = {}, config_.model_from = "";
    const AdapterSettings adapter = adapter_;
    config_.model_from = train(config_).checkpoint;
    config_.adapter = adapter, config_.out = folder_.file("run");
    return train(config_).checkpoint;
  }
  TempFolder folder_;
  RunConfig config_;
  AdapterSettings adapter_ = {.method = "lora", .rank = 3, .alpha = 6};
};

void expect_merges_alike(const std::string& checkpoint, const std::string& folder) {
  std::string base;
  Adapter adapter = read_run_adapter(checkpoint, base);
  const ModelConfig model = read_model_config(base);
  write_adapter(folder, adapter.spec, model, [&](const std::string& name) { return read_floats(*adapter.find(name)); },
                {.base = base});
  const auto ours = merge_adapter(open_weights(base), std::move(adapter)), plain = open_weights(base);
  const auto theirs = open_weights(folder);
  size_t changed = 0;
  for (const auto& [param, shape] : param_shapes(ours->config())) {
    const std::vector<float> a = ours->read(param, shape), b = theirs->read(param, shape);
    if (plain->config().tie_embeddings == ours->config().tie_embeddings && a != plain->read(param, shape)) ++changed;
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-6) << param;  // another order of sums
  }
  EXPECT_GT(changed, 4u);
}

TEST_F(RunAdapter, LoraOfFusedLinearsWithBiasesAndNorms) {
  adapter_.bias = "lora_only", adapter_.train = {"ln_f"};
  const std::string checkpoint = train_adapter("gpt2");
  EXPECT_TRUE(is_adapter_checkpoint(checkpoint));
  expect_merges_alike(checkpoint, folder_.file("peft"));
}

TEST_F(RunAdapter, DoraAndRowsOfTokens) {
  adapter_.method = "dora", adapter_.token_rows = {"9", "4"};
  expect_merges_alike(train_adapter("llama"), folder_.file("peft"));
}

TEST_F(RunAdapter, PromptsAreWrittenAsTheirEncoderMakesThem) {
  adapter_ = {.method = "p_tuning", .virtual_tokens = 3, .encoder_hidden = 24};
  const std::string checkpoint = train_adapter("llama");
  std::string base;
  const Adapter adapter = read_run_adapter(checkpoint, base);
  const ModelConfig model = read_model_config(base);
  write_adapter(folder_.file("peft"), adapter.spec, model,
                [&](const std::string& name) { return read_floats(*adapter.find(name)); }, {.base = base});
  const Adapter back = read_adapter(folder_.file("peft"), model);
  EXPECT_EQ(read_floats(*back.find("prompt.weight")), read_floats(*adapter.find("prompt.weight")));
  // The first value, by hand.
  const auto tensors = open_safetensors(checkpoint);
  const auto read = [&](const std::string& name) { return floats_of(tensors->read("prompt_encoder." + name)); };
  std::vector<float> x = read("embedding.weight");
  x.resize(32);
  for (const std::string layer : {"mlp_head.0.", "mlp_head.2.", "mlp_head.4."}) {
    const std::vector<float> w = read(layer + "weight");
    std::vector<float> y = read(layer + "bias");
    for (size_t n = 0; n < y.size(); ++n)
      for (size_t k = 0; k < x.size(); ++k) y[n] += w[n * x.size() + k] * x[k];
    if (layer != "mlp_head.4.")
      for (float& value : y) value = std::max(value, 0.0f);
    x = y;
  }
  EXPECT_NEAR(x[0], read_floats(*adapter.find("prompt.weight"))[0], 1e-5);
}

TEST_F(RunAdapter, ABaseThatHasGoneIsNamed) {
  const std::string checkpoint = train_adapter("llama");
  remove_path(folder_.file("base"));
  std::string base;
  EXPECT_NE(error_of([&] { read_run_adapter(checkpoint, base); }).find("is not a folder here"), std::string::npos);
}

}  // namespace
}  // namespace octet
