#include "compress/layer_graphs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/testing/distance.h"
#include "compress/calibration_run.h"
#include "compress/compress_layer.h"
#include "compress/testing/random_weights.h"

namespace octet {
namespace {

constexpr int64_t kLength = 12;

// What a graph of these weights makes of x and the tokens.
std::vector<float> run(const Graph& graph, const WeightSource& weights, const std::vector<float>& x = {}) {
  const auto executor = load_graph(graph, {.target = cpu_target(), .recipe = parse_recipe("fp32")}, weights);
  Batch batch = token_batch(1, kLength, /*targets=*/false);
  std::ranges::copy(some_ids(kLength, weights.config().vocab_size), batch.ints("ids").begin());
  if (!x.empty())
    std::ranges::copy(x, batch.add("x", {DType::kF32, {kLength, weights.config().hidden}}).values<float>().begin());
  for (auto& [name, tensor] : batch.tensors) tensor.optional = true;
  write_inputs(*executor, graph.name(), batch);
  executor->run(graph.name());
  const auto y = output_as<float>(*executor, graph.name(), graph.outputs().back().name);
  return {y.begin(), y.end()};
}

TEST(LayerGraphs, LayersInTurnAreTheModel) {
  for (const std::string& name : architectures()) {
    const ModelConfig config = small_model(name);
    const RandomWeights weights(config);
    const LayerGraphs layers(config, kLength);
    ASSERT_EQ(layers.layers(), config.layers) << name;
    std::vector<float> x = run(layers.embedding(), weights);
    for (int64_t i = 0; i < config.layers; ++i) x = run(layers.layer(i).graph, weights, x);
    // The whole model up to what its last norm reads.
    Graph whole("whole");
    Builder builder(whole);
    build_logits(builder, config, {.tokens = kLength, .max_segments = 1, .max_length = kLength});
    for (const Node& node : whole.nodes())
      if ((node.op == Op::kLayerNorm || node.op == Op::kRmsNorm) && node.layer < 0 && node.inputs[0] != Value::none())
        whole.outputs() = {{"y", node.inputs[0]}};
    EXPECT_LT(relative_distance(x, run(whole, weights)), 1e-6) << name;
  }
}

TEST(LayerGraphs, LinearsThatReadOneInputAreTogether) {
  const LayerGraph llama = LayerGraphs(small_model("llama"), kLength).layer(1);
  ASSERT_EQ(llama.inputs.size(), 4u);
  EXPECT_EQ(llama.inputs[0].gemms, (std::vector<std::string>{"layers.1.attn.q", "layers.1.attn.k", "layers.1.attn.v"}));
  EXPECT_EQ(llama.inputs[1].gemms, std::vector<std::string>{"layers.1.attn.o"});
  EXPECT_EQ(llama.inputs[2].gemms, (std::vector<std::string>{"layers.1.mlp.gate", "layers.1.mlp.up"}));
  EXPECT_EQ(llama.inputs[3].width, 256);
  EXPECT_EQ(llama.inputs[0].fold->vectors, std::vector<std::string>{"layers.1.norm1.weight"});
  EXPECT_EQ(llama.inputs[1].fold->linear, "layers.1.attn.v");
  EXPECT_EQ(llama.inputs[3].fold->linear, "layers.1.mlp.up");
  ModelConfig shared = small_model("llama");
  shared.kv_heads = 1;
  EXPECT_FALSE(LayerGraphs(shared, kLength).layer(0).inputs[1].fold.has_value());
  const LayerGraph gpt2 = LayerGraphs(small_model("gpt2"), kLength).layer(0);
  EXPECT_EQ(gpt2.inputs[0].fold->vectors.size(), 2u);
  EXPECT_EQ(gpt2.inputs[1].fold->linear_bias, "layers.0.attn.v.bias");
  EXPECT_FALSE(gpt2.inputs[3].fold.has_value()) << "nothing passes gelu";
  EXPECT_EQ(LayerGraphs(small_model("opt"), kLength).layer(0).inputs[3].fold->linear, "layers.0.mlp.up");
  EXPECT_TRUE(LayerGraphs(small_model("gemma"), kLength).layer(0).inputs[0].fold->plus_one);
}

// Wherever a family lets scales be folded, its layers make what they made: SmoothQuant with every linear left out of
// codes by a bound is folding alone.
TEST(LayerGraphs, FoldedScalesChangeNothing) {
  for (const std::string& name : architectures()) {
    const ModelConfig config = small_model(name);
    const RandomWeights weights(config);
    const LayerGraph layer = LayerGraphs(config, kLength).layer(0);
    CalibrationRun text(weights, some_ids(3 * kLength, config.vocab_size), kLength, cpu_target());
    EditedWeights edited(weights);
    const CompressRule rule{.method = CompressMethod::kSmoothQuant,
                            .codes = {.bits = 8, .group = 0, .scale_type = DType::kF32},
                            .bound = 1e-9};
    const CompressedLayer made = compress_layer(text.observe(layer, weights, false, false), edited, rule);
    EXPECT_TRUE(made.codes.empty());
    EXPECT_NE(edited.read("layers.0.attn.q.weight", edited.shape("layers.0.attn.q.weight")),
              weights.read("layers.0.attn.q.weight", edited.shape("layers.0.attn.q.weight")))
        << name;
    std::vector<float> x(static_cast<size_t>(kLength * config.hidden));
    Philox rng(2);
    for (float& value : x) value = static_cast<float>(rng.normal());
    EXPECT_LT(relative_distance(run(layer.graph, edited, x), run(layer.graph, weights, x)), 1e-5) << name;
  }
}

TEST(CalibrationRun, StatisticsAreThoseOfTheInputs) {
  const ModelConfig config = small_model("llama");
  const RandomWeights weights(config);
  const LayerGraph layer = LayerGraphs(config, kLength).layer(0);
  CalibrationRun text(weights, some_ids(3 * kLength, config.vocab_size), kLength, cpu_target());
  for (const ObservedInput& observed : text.observe(layer, weights, /*grams=*/true, /*advance=*/false)) {
    ASSERT_EQ(observed.stats.size(), 1u);
    const InputStats& stats = observed.stats[0];
    ASSERT_EQ(stats.rows, 3 * kLength);  // few tokens: all of them
    const auto width = static_cast<size_t>(stats.width);
    double largest = 0;
    for (size_t k = 0; k < width; ++k) largest = std::max(largest, static_cast<double>(observed.gram[k * width + k]));
    for (size_t i = 0; i < width; ++i) {
      double sum = 0, most = 0, product = 0;
      for (size_t t = 0; t < 3 * kLength; ++t) {
        const auto value = static_cast<double>(stats.sample[t * width + i]);
        sum += std::abs(value), most = std::max(most, std::abs(value));
        product += value * static_cast<double>(stats.sample[t * width + (i + 5) % width]);
      }
      EXPECT_NEAR(static_cast<double>(stats.mean_abs[i]), sum / (3 * kLength), 1e-5 * most);
      EXPECT_EQ(static_cast<double>(stats.max_abs[i]), most);
      EXPECT_NEAR(static_cast<double>(observed.gram[i * width + (i + 5) % width]), product, 1e-5 * largest);
    }
  }
}

// Of experts: those of its rows for each, and all rows are somebody's.
TEST(CalibrationRun, ExpertsHaveStatisticsOfTheirRows) {
  const ModelConfig config = small_model("mixtral");
  const RandomWeights weights(config);
  const LayerGraph layer = LayerGraphs(config, kLength).layer(0);
  CalibrationRun text(weights, some_ids(3 * kLength, config.vocab_size), kLength, cpu_target());
  int inputs = 0;
  for (const ObservedInput& observed : text.observe(layer, weights, /*grams=*/true, /*advance=*/false)) {
    if (observed.input.experts == 0) continue;
    ++inputs;
    ASSERT_EQ(std::ssize(observed.stats), config.experts.count);
    int64_t rows = 0;
    const auto width = static_cast<size_t>(observed.input.width);
    for (size_t e = 0; e < observed.stats.size(); ++e) {
      const InputStats& stats = observed.stats[e];
      rows += stats.rows;
      for (size_t i = 0; i < width; i += 7) {
        double squares = 0, sum = 0;
        for (size_t r = 0; r < static_cast<size_t>(stats.rows); ++r) {
          const auto value = static_cast<double>(stats.sample[r * width + i]);
          squares += value * value, sum += std::abs(value);
        }
        EXPECT_NEAR(static_cast<double>(observed.gram[(e * width + i) * width + i]), squares, 1e-5 * squares);
        EXPECT_NEAR(static_cast<double>(stats.mean_abs[i]) * static_cast<double>(stats.rows), sum, 1e-5 * sum);
      }
    }
    EXPECT_EQ(rows, 3 * kLength * config.experts.per_token);
  }
  EXPECT_EQ(inputs, 2) << "of gate and up, of down";
}

TEST(CalibrationRun, TextsThatAreTooShortAreRefused) {
  const std::vector<int32_t> ids = some_ids(100, 96);
  EXPECT_EQ(choose_windows(ids, 3, 32, 1).size(), 96u);
  EXPECT_EQ(choose_windows(ids, 2, 32, 1), choose_windows(ids, 2, 32, 1));
  EXPECT_NE(choose_windows(ids, 3, 32, 1), choose_windows(ids, 3, 32, 2));
  std::vector<int32_t> begun = choose_windows(ids, 3, 32, 1);
  for (const size_t begin : {0, 32, 64}) begun[begin] = 93;
  EXPECT_EQ(choose_windows(ids, 3, 32, 1, /*begin_id=*/93), begun);
  try {
    choose_windows(ids, 4, 32, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.message()).find("100 tokens are 3 windows of 32, but 4 are needed"), std::string::npos);
  }
}

TEST(CalibrationRun, InputsThatAreNotFiniteNameTheLinear) {
  const ModelConfig config = small_model("llama");
  RandomWeights weights(config);
  for (float& value : weights.values("layers.0.mlp.up.weight")) value = 3e38f;
  CalibrationRun text(weights, some_ids(kLength, config.vocab_size), kLength, cpu_target());
  try {
    text.observe(LayerGraphs(config, kLength).layer(0), weights, false, false);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.message()).find("layers.0.mlp.down is not finite"), std::string::npos)
        << error.message();
  }
}

}  // namespace
}  // namespace octet
