// Training of every family of decoders in every recipe on a GPU: losses of the first steps beside the CPU's of the same
// recipe. Sizes whose tiles are filled in part and whole; mixtures also with experts that get no rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/rng.h"
#include "exec/executor.h"
#include "train/batches.h"
#include "train/language_model.h"
#include "train/stepper.h"
#include "weights/weights.h"

namespace octet {
namespace {

struct Size {
  const char* name;
  int64_t hidden, length;  // of two sequences
  int64_t experts;
};
constexpr Size kSizes[] = {
    {"tiles filled in part", 64, 20, 8}, {"whole tiles", 256, 256, 4}, {"experts without rows", 64, 8, 64}};
constexpr int kSteps = 4;
constexpr int64_t kVocab = 320;

ModelConfig model_of(const std::string& family, const Size& size) {
  ModelConfig c = model_family(family);
  c.vocab_size = kVocab, c.max_positions = size.length, c.hidden = size.hidden, c.layers = 2;
  c.heads = 4, c.intermediate = 2 * size.hidden, c.dropout = 0;
  if (c.gated && c.kv_heads == 0) c.kv_heads = 2;
  if (c.experts.count > 0) {
    c.experts.count = size.experts, c.experts.per_token = 2, c.experts.intermediate = size.hidden;
    if (c.experts.shared_intermediate > 0) c.experts.shared_intermediate = size.hidden;
  }
  validate(c);
  return c;
}

std::vector<Batch> batches_of(const Size& size) {
  std::vector<Batch> batches;
  Philox random(7, 0);
  for (int i = 0; i < 2; ++i) {  // the second is accumulated onto the first
    BatchPacker packer(2, size.length, /*separate_documents=*/false);
    for (int sequence = 0; sequence < 2; ++sequence) {
      std::vector<int32_t> tokens(static_cast<size_t>(size.length) + 1);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random.uniform() * kVocab);
      packer.add(tokens, {0});
    }
    batches.push_back(packer.finish());
  }
  return batches;
}

// Losses and gradient norms of a few steps.
std::vector<double> train_on(const Target& target, const ModelConfig& model, const std::string& recipe,
                             const Size& size) {
  StepperOptions options{.optimizer = {.lr = 1e-3},
                         .compile = {.target = target, .recipe = parse_recipe(recipe)},
                         .cuda = {.deterministic = true}};
  Stepper stepper(LanguageModel(model, 2, size.length), options);
  initialize_weights(stepper.executor(), 1337);
  const std::vector<Batch> batches = batches_of(size);
  std::vector<double> values;
  for (int step = 1; step <= kSteps; ++step) {
    const StepResult result = stepper.step({.micro_batches = batches, .lr = 1e-3, .step = step, .seed = 7});
    EXPECT_TRUE(result.finite) << "step " << step;
    values.push_back(result.loss);
    values.push_back(result.grad_norm);
  }
  return values;
}

// Sums in another order, and operands rounded to another neighbour. A router's near ties choose other experts for some
// tokens, which moves a loss by little and a gradient by more.
struct Allowed {
  double loss, gradient;
};
Allowed allowed_of(const std::string& recipe) {
  if (recipe == "fp32") return {1e-4, 2e-3};
  return recipe == "bf16" ? Allowed{3e-3, 0.03} : Allowed{1e-2, 0.15};
}

class CudaFamilies : public testing::TestWithParam<std::tuple<std::string, const char*>> {};

TEST_P(CudaFamilies, LearnsAsOnTheCpu) {
  std::string why;
  if (!cuda_available(&why)) GTEST_SKIP() << why;
  const auto& [family, recipe] = GetParam();
  const Allowed allowed = allowed_of(recipe);
  for (const Size& size : kSizes) {
    SCOPED_TRACE(size.name);
    const ModelConfig model = model_of(family, size);
    if (model.experts.count == 0 && size.experts > 8) continue;
    const std::vector<double> cpu = train_on(cpu_target(), model, recipe, size),
                              gpu = train_on(cuda_target({.deterministic = true}), model, recipe, size);
    double loss = 0, gradient = 0;
    for (size_t i = 0; i < cpu.size(); ++i) {
      double& worst = i % 2 == 0 ? loss : gradient;
      worst = std::max(worst, std::fabs(gpu[i] - cpu[i]) / cpu[i]);
      EXPECT_NEAR(gpu[i], cpu[i], (i % 2 == 0 ? allowed.loss : allowed.gradient) * cpu[i])
          << (i % 2 == 0 ? "loss" : "gradient norm") << " of step " << i / 2 + 1;
    }
    EXPECT_GT(gpu[0], 1) << "nothing is learned";
    EXPECT_LT(gpu[cpu.size() - 2], gpu[0]) << "the loss does not fall";
    std::printf("%s %s, %s: losses off by %.2e, gradient norms by %.2e\n", family.c_str(), recipe, size.name, loss,
                gradient);
  }
}

INSTANTIATE_TEST_SUITE_P(Training, CudaFamilies,
                         testing::Combine(testing::ValuesIn(architectures()),
                                          testing::Values("fp32", "bf16", "fp8-current", "fp8-delayed", "fp8-block")),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param) + "_" + std::get<1>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace octet
