// The cuda executor: training of both families under every recipe against the interpreter, the same bits from eager
// runs, replayed graphs and a second run, and published goldens in float32.
#include <gtest/gtest.h>

#include <map>

#include "base/file.h"
#include "base/testing/test_data.h"
#include "eval/verify.h"
#include "exec/testing/program_conformance.h"
#include "train/verify_training.h"

namespace octet {
namespace {

using conformance::Setting;
constexpr int kSteps = 3;

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda_available(&why)) GTEST_SKIP() << why;
  }
};

struct Trained {
  std::vector<double> losses;  // of every step, then of the evaluation
  std::map<std::string, std::vector<std::byte>> gradients, states;
};

// Two micro-batches, whose gradients are kept; then whole steps from the start.
Trained run_of(Executor& executor) {
  Trained run;
  tiny::initialize(executor);
  tiny::loss(executor, "train", 0);
  tiny::loss(executor, "accumulate", 1);
  for (const StateEntry& entry : executor.program().states()) {
    if (entry.role == StateRole::kGradient)  // not the losses' sum
      run.gradients[entry.name] = tiny::state(executor, entry.name);
  }
  tiny::initialize(executor);
  run.losses = tiny::train(executor, kSteps);
  for (const StateEntry& entry : executor.program().states())
    run.states[entry.name] = tiny::state(executor, entry.name);
  return run;
}

Trained cuda_run(const Setting& setting, const CudaOptions& options, bool every_expert = false) {
  return run_of(*make_cuda_executor(conformance::compiled_plan(setting, cuda_target(), every_expert), options));
}

// |a - b| and |b|, squared, of two tensors' 2-norms.
struct Distance {
  double error = 0, size = 0;
  double relative() const { return std::sqrt(error / size); }
  void add(const TensorType& type, const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
    const cpu::RefTensor x = cpu::load_tensor(type, a.data()), y = cpu::load_tensor(type, b.data());
    for (size_t i = 0; i < y.values.size(); ++i) {
      error += (x.values[i] - y.values[i]) * (x.values[i] - y.values[i]);
      size += y.values[i] * y.values[i];
    }
  }
};

// Relative; gradients all together, since some are noise by themselves (key biases). Float32 sums differ in order only.
// Under bf16 and FP8, values near a rounding boundary fall to either side, FP8 tensor cores keep 13 bits of a product,
// and an amax one unit off moves every code of a tensor: two correct runs differ like two independent errors of the
// size of the recipe's (the interpreter's) distance from float32, sqrt(2) of it for a whole gradient. A loss is one
// number: it has a bound of its own.
struct Bounds {
  double loss, gradient;
};
Bounds bounds_of(const Setting& setting, const Trained& expected) {
  if (std::string(setting.recipe) == "fp32") return {2e-5, 2e-5};
  // Interpreters round nothing to TF32: a quarter of what octet verify allows bf16, which has two bits less.
  if (std::string(setting.recipe) == "tf32") return {2.5e-3, 1.25e-2};
  Setting exact_setting = setting;
  exact_setting.recipe = "fp32", exact_setting.switched = false;
  const Plan plan = conformance::compiled_plan(exact_setting, cuda_target(), /*every_expert=*/true);
  const Trained exact = run_of(*make_interpreter(plan.program));
  Distance gradients;
  for (const auto& [name, bytes] : exact.gradients)
    gradients.add(plan.program.find_state(name)->type, expected.gradients.at(name), bytes);
  return {std::string(setting.recipe) == "bf16" ? 1e-2 : 2e-2, std::sqrt(2.0) * gradients.relative()};
}

class CudaTraining : public OnGpu, public testing::WithParamInterface<Setting> {};

TEST_P(CudaTraining, FollowsTheInterpreter) {
  const Plan plan = conformance::compiled_plan(GetParam(), cuda_target(), /*every_expert=*/true);
  const Trained expected = run_of(*make_interpreter(plan.program)), actual = cuda_run(GetParam(), {}, true);
  const Bounds bounds = bounds_of(GetParam(), expected);
  double worst_loss = 0;
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    worst_loss = std::fmax(worst_loss, std::fabs(actual.losses[i] - expected.losses[i]) / expected.losses[i]);
    EXPECT_NEAR(actual.losses[i], expected.losses[i], bounds.loss * expected.losses[i]) << "step " << i;
  }
  EXPECT_LT(actual.losses.back(), actual.losses.front()) << "nothing was learned: the comparison would say little";
  ASSERT_FALSE(expected.gradients.empty());
  Distance gradients;
  for (const auto& [name, bytes] : expected.gradients)
    gradients.add(plan.program.find_state(name)->type, actual.gradients.at(name), bytes);
  EXPECT_LE(gradients.relative(), bounds.gradient);
  RecordProperty("largest_loss_error", fmt::format("{:.3g}", worst_loss));
  RecordProperty("loss_bound", fmt::format("{:.3g}", bounds.loss));
  RecordProperty("gradient_bound", fmt::format("{:.3g}", bounds.gradient));
  RecordProperty("gradient_error", fmt::format("{:.3g}", gradients.relative()));
}

TEST_P(CudaTraining, ReplayEqualsEagerBitForBit) {
  const Trained eager = cuda_run(GetParam(), {.eager = true, .deterministic = true});
  const Trained replayed = cuda_run(GetParam(), {.deterministic = true});
  EXPECT_EQ(eager.losses, replayed.losses);
  for (const auto& [name, bytes] : eager.gradients) EXPECT_EQ(bytes, replayed.gradients.at(name)) << name;
  for (const auto& [name, bytes] : eager.states) EXPECT_EQ(bytes, replayed.states.at(name)) << name;
}

TEST_P(CudaTraining, TwoRunsGiveTheSameBits) {
  const Trained first = cuda_run(GetParam(), {.deterministic = true}),
                second = cuda_run(GetParam(), {.deterministic = true});
  EXPECT_EQ(first.losses, second.losses);
  for (const auto& [name, bytes] : first.states) EXPECT_EQ(bytes, second.states.at(name)) << name;
}

using CudaStatistics = OnGpu;

// A step with statistics is the step without them.
TEST_F(CudaStatistics, LeaveLossAndGradientsTheirBits) {
  for (const Setting& setting : conformance::settings()) {
    if (std::string(setting.recipe) != "auto") continue;
    SCOPED_TRACE(conformance::setting_name(setting));
    const auto executor =
        make_cuda_executor(conformance::compiled_plan(setting, cuda_target()), CudaOptions{.deterministic = true});
    tiny::initialize(*executor);
    for (int batch = 0; batch < 3; ++batch) {  // the first launched, the others replayed
      std::map<std::string, double> losses;
      std::map<std::string, std::map<std::string, std::vector<std::byte>>> gradients;
      for (const char* graph : {"train", "train_stats"}) {
        losses[graph] = tiny::loss(*executor, graph, batch);
        for (const StateEntry& entry : executor->program().states()) {
          if (entry.role == StateRole::kGradient) gradients[graph][entry.name] = tiny::state(*executor, entry.name);
        }
      }
      EXPECT_EQ(losses["train"], losses["train_stats"]);
      for (const auto& [name, bytes] : gradients["train"]) EXPECT_EQ(bytes, gradients["train_stats"][name]) << name;
    }
  }
}

using CudaRecompute = OnGpu;

TEST_F(CudaRecompute, LightGivesTheBitsOfNone) {
  for (const char* architecture : {"gpt2", "llama"}) {
    for (const char* recipe : {"bf16", "fp8-current", "fp8-delayed", "fp8-block"}) {
      SCOPED_TRACE(std::string(architecture) + " " + recipe);
      const Trained none = cuda_run({architecture, recipe, Recompute::kNone}, {.deterministic = true});
      const Trained light = cuda_run({architecture, recipe, Recompute::kLight}, {.deterministic = true});
      EXPECT_EQ(none.losses, light.losses);
      for (const auto& [name, bytes] : none.gradients) EXPECT_EQ(bytes, light.gradients.at(name)) << name;
      for (const auto& [name, bytes] : none.states) EXPECT_EQ(bytes, light.states.at(name)) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, CudaTraining, testing::ValuesIn(conformance::settings()),
                         [](const auto& info) { return conformance::setting_name(info.param); });

class CudaGoldens : public OnGpu, public testing::WithParamInterface<const char*> {};

TEST_P(CudaGoldens, LogitsAndGreedyTokens) {
  const std::string folder = test_data_path(std::string("hf_goldens/") + GetParam());
  if (folder.empty()) GTEST_SKIP() << missing_test_data(GetParam());
  const VerifyReport report = verify_inference(folder, parse_recipe("fp32"), cuda_target());
  EXPECT_LE(report.max_logit_error, 2e-4);  // float32 sums in another order
  EXPECT_EQ(report.greedy_tokens, 24);
  EXPECT_EQ(report.greedy_equal, 24);
}

TEST_P(CudaGoldens, TenTrainingStepsAndFirstGradients) {
  const std::string folder = test_data_path(std::string("hf_goldens/") + GetParam());
  if (folder.empty()) GTEST_SKIP() << missing_test_data(GetParam());
  const TrainingReport report = verify_training(folder, {.target = cuda_target(), .recipe = parse_recipe("fp32")});
  ASSERT_EQ(report.losses.size(), 10u);
  EXPECT_LE(report.max_loss_error, 1e-4);
  EXPECT_LE(report.max_grad_norm_error, 1e-4);
  EXPECT_LE(report.max_gradient_error, 1e-4) << report.worst_gradient;
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, CudaGoldens,
                         testing::Values("gpt2", "llama_mha", "llama_gqa_rope3", "mixtral_moe"),
                         [](const auto& info) { return std::string(info.param); });

class CudaEncoderGoldens : public OnGpu, public testing::WithParamInterface<const char*> {};

TEST_P(CudaEncoderGoldens, HiddenStatesVectorsAndLogits) {
  const std::string folder = test_data_path(GetParam());
  if (folder.empty()) GTEST_SKIP() << missing_test_data(GetParam());
  EXPECT_LE(verify_encoder(folder, parse_recipe("fp32"), cuda_target()).max_logit_error, 2e-4);
  for (const char* name : {"bf16", "fp8-current"}) {
    const Recipe recipe = parse_recipe(name);
    const VerifyReport report = verify_encoder(folder, recipe, cuda_target());
    EXPECT_TRUE(report.passed(logit_tolerance(recipe))) << name << ": relative " << report.relative_error;
  }
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, CudaEncoderGoldens,
                         testing::Values("hf_goldens/bert", "serving/experts_encoders/bert_cross_encoder",
                                         "serving/experts_encoders/bert_model",
                                         "serving/experts_encoders/bert_pretraining",
                                         "serving/experts_encoders/roberta_model",
                                         "serving/experts_encoders/qwen3_embedding"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace octet
