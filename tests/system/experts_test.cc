// Mixtures of experts across rooms: texts that share a batch, router losses, routers that break, meshes that are
// refused.
#include <gtest/gtest.h>

#include <cmath>

#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "exec/batch.h"
#include "exec/logical_states.h"
#include "io/safetensors.h"
#include "passes/pass.h"
#include "train/batches.h"
#include "train/language_model.h"
#include "train/stepper.h"
#include "weights/weights.h"

namespace octet {
namespace {

// Logits of texts packed one after the other, [tokens, vocab]. The embedding of token `poison` is NaN.
std::vector<float> logits_of(const WeightSource& weights, const std::vector<std::vector<int32_t>>& texts,
                             int64_t poison = -1) {
  int64_t tokens = 0, longest = 0;
  for (const auto& text : texts) tokens += std::ssize(text), longest = std::max<int64_t>(longest, std::ssize(text));
  Graph graph("logits");
  Builder builder(graph);
  const auto sequences = static_cast<int64_t>(texts.size());
  builder.output("logits", build_logits(builder, weights.config(),
                                        {.tokens = tokens, .max_segments = sequences, .max_length = longest}));
  auto executor = load_graph(std::move(graph), {.target = cpu_target(), .recipe = parse_recipe("fp32")}, weights);
  if (poison >= 0) {
    const LogicalState table = find_logical_state(executor->program(), "embed.weight", StateRole::kMaster);
    const std::vector<float> row(static_cast<size_t>(table.type.shape.cols()), NAN);
    const auto bytes = std::as_bytes(std::span(row));
    write_logical(*executor, table, bytes, poison * static_cast<int64_t>(bytes.size()));
  }
  auto ids = input_as<int32_t>(*executor, "logits", "ids"),
       positions = input_as<int32_t>(*executor, "logits", "positions");
  auto segments = input_as<int32_t>(*executor, "logits", "segments");
  size_t at = 0, text_index = 0;
  for (const auto& text : texts) {
    for (size_t i = 0; i < text.size(); ++i, ++at) ids[at] = text[i], positions[at] = static_cast<int32_t>(i);
    segments[++text_index] = static_cast<int32_t>(at);
  }
  executor->run("logits");
  const auto logits = output_as<float>(*executor, "logits", "logits");
  return {logits.begin(), logits.end()};
}

std::string golden() { return test_data_path("hf_goldens/mixtral_moe"); }

// Few rows of an expert or many: the sums of a row do not hang on it.
TEST(Experts, TextsThatShareABatchHaveTheBitsOfEachAlone) {
  if (golden().empty()) GTEST_SKIP() << missing_test_data("hf_goldens/mixtral_moe");
  const auto weights = open_weights(golden());
  std::vector<std::vector<int32_t>> texts;
  for (int length : {1, 7, 40, 23}) {
    auto& text = texts.emplace_back();
    for (int i = 0; i < length; ++i) text.push_back((17 * length + 31 * i + i * i) % 320);
  }
  const std::vector<float> together = logits_of(*weights, texts);
  auto at = together.begin();
  for (const auto& text : texts) {
    const std::vector<float> alone = logits_of(*weights, {text});
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), at)) << text.size() << " tokens";
    at += std::ssize(alone);
  }
}

// A token whose router sees NaN goes to some experts with weights of NaN, beside tokens that it does not touch.
TEST(Experts, NanInATextStaysThere) {
  if (golden().empty()) GTEST_SKIP() << missing_test_data("hf_goldens/mixtral_moe");
  const auto weights = open_weights(golden());
  const std::vector<int32_t> text = {1, 2, 3, 4};
  const std::vector<float> alone = logits_of(*weights, {text}), both = logits_of(*weights, {{319, 319}, text}, 319);
  EXPECT_TRUE(std::isnan(both[0]));
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), both.end() - std::ssize(alone)));
}

// The loss of a first training step on the golden's batch, a mean over its tokens.
double first_loss(double balance_loss, double z_loss) {
  const auto weights = open_weights(golden());
  ModelConfig model = weights->config();
  model.experts.balance_loss = balance_loss, model.experts.z_loss = z_loss;
  const TensorSource expected(golden() + "/expected.safetensors");
  const TensorView ids = expected.read("input_ids");
  const int64_t sequences = ids.type.shape[0], length = ids.type.shape[1] - 1;
  BatchPacker packer(sequences, length, false);
  for (int64_t s = 0; s < sequences; ++s) {
    std::vector<int32_t> text;
    for (int64_t t = 0; t <= length; ++t)
      text.push_back(static_cast<int32_t>(load_element(ids.type.dtype, ids.bytes.data(), s * (length + 1) + t)));
    packer.add(text, {0});
  }
  const Batch batch = packer.finish();
  Stepper stepper(LanguageModel(model, sequences, length),
                  {.compile = {.target = cpu_target(), .recipe = parse_recipe("fp32")}});
  load_weights(*weights, stepper.executor());
  const StepResult result = stepper.step({.micro_batches = {&batch, 1}, .lr = 1e-3, .step = 1});
  EXPECT_TRUE(std::isfinite(result.grad_norm));
  return result.loss;
}

// aux_loss of transformers 5.23 for these tokens (load_balancing_loss_func over both layers), and the mean of its
// router_logits' logsumexp squared, in float64.
TEST(Experts, RouterLossesAreTransformersOwn) {
  if (golden().empty()) GTEST_SKIP() << missing_test_data("hf_goldens/mixtral_moe");
  const double plain = first_loss(0, 0);
  EXPECT_NEAR(first_loss(1, 0) - plain, 2.0230100, 1e-5);  // float32 sums
  EXPECT_NEAR(first_loss(0, 1) - plain, 2.3869058, 1e-5);
  EXPECT_NEAR(first_loss(0.25, 0.5) - plain, 0.25 * 2.0230100 + 0.5 * 2.3869058, 1e-5);
}

TEST(Experts, MeshesThatWouldSplitThemAreRefused) {
  ModelConfig model = model_family("mixtral");
  model.hidden = 64, model.layers = 1, model.heads = 4, model.kv_heads = 4, model.intermediate = 32,
  model.vocab_size = 64;
  const auto compiled = [&](Mesh mesh) {
    StepperOptions options{.compile = {.target = cpu_target(), .recipe = parse_recipe("fp32")}};
    options.compile.parallel.mesh = mesh;
    return compile_training(LanguageModel(model, 2, 8), options);
  };
  Mesh tensor, context, data;
  tensor[Axis::kTensor] = 2, context[Axis::kContext] = 2, data[Axis::kData] = 2;
  const std::string refused = "mixtures of experts are not split";
  EXPECT_NE(error_of([&] { compiled(tensor); }).find(refused), std::string::npos);
  EXPECT_NE(error_of([&] { compiled(context); }).find(refused), std::string::npos);
  EXPECT_EQ(error_of([&] { compiled(data); }), "(no error)");
}

}  // namespace
}  // namespace octet
