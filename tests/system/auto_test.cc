// Recipe auto end to end on the CPU.
#include "exec/executor.h"
#include "system/auto_cases.h"
#include "train/auto_precision.h"
#include "train/language_model.h"

namespace octet {
namespace {

class Auto : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, Auto, testing::Values("gpt2", "llama"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Auto, AHealthyModelSettlesUnderOneScale) {
  auto_cases::a_healthy_model_settles_under_one_scale(cpu_target(), GetParam());
}

TEST(Auto, PlantedOutliersMoveTheGemmsTheyTouchAndNoOthers) {
  auto_cases::planted_outliers_move_the_gemms_they_touch_and_no_others(cpu_target());
}

TEST(Auto, AnAdaptersBaseIsHeldAsDecided) { auto_cases::an_adapters_base_is_held_as_decided(cpu_target()); }

TEST(Auto, SwitchesThatDoNotFitAreTakenBack) { auto_cases::switches_that_do_not_fit_are_taken_back(cpu_target()); }

TEST(Auto, TimingsThatShowNoGainKeepAShapeInBf16) {
  auto_cases::timings_that_show_no_gain_keep_a_shape_in_bf16(cpu_target());
}

TEST(Auto, TheSameSeedAndAResumeGiveTheSameSwitchesAndBits) {
  auto_cases::the_same_seed_and_a_resume_give_the_same_switches_and_bits(cpu_target());
}

// What timings measure is a plan like auto's own: with FP8 for the linears that read one x and bf16 for all others, a
// step for the H200 quantizes that x once, in one pass with its scale.
TEST(Auto, APlanOfOneGroupInFp8QuantizesItsInputOnce) {
  TempFolder folder;
  const RunConfig config = auto_cases::auto_config(folder);
  StepperOptions options = stepper_options(config, h200_target());
  options.compile.recipe.statistics = false;
  const LanguageModel model(resolve_model(config, config.vocab_size), config);
  const std::vector<PolicyGemm> gemms = policy_gemms(model, options);
  const std::vector<LinearGroup> groups = linear_groups(gemms);
  ASSERT_EQ(groups.size(), 8u);  // of each layer: q, k and v; o; up; down
  EXPECT_EQ(groups[0].linears, (std::vector<std::string>{"layers.0.attn.q", "layers.0.attn.k", "layers.0.attn.v"}));
  for (const LinearGroup& group : {groups[0], groups[2]}) {
    SCOPED_TRACE(group.linears[0]);
    const std::set<std::string> linears(group.linears.begin(), group.linears.end());
    for (const PolicyGemm& gemm : gemms)
      options.compile.recipe.decisions[gemm.key()] =
          level_precision(linears.contains(gemm.gemm) ? PrecisionLevel::kTensor : PrecisionLevel::kHigh);
    const Plan plan = compile_training(model, options);
    int products = 0, inputs = 0;
    for (const Node& node : plan.program.graph("train").nodes()) {
      const bool codes = !node.results.empty() && node.op != Op::kState &&
                         std::any_of(node.results.begin(), node.results.end(),
                                     [](const TensorType& type) { return type.dtype == DType::kE4M3; });
      inputs += static_cast<int>(codes);
      const std::string kind = node.op == Op::kFusion ? fusion_label(node) : "";
      EXPECT_TRUE(!codes || kind == "compute_scale+quantize") << node.name;
      products += static_cast<int>(linears.contains(node.name));
    }
    EXPECT_EQ(inputs, 1);
    EXPECT_EQ(products, 3 * static_cast<int>(linears.size()));
  }
}

}  // namespace
}  // namespace octet
