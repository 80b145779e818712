// Recipe auto on a GPU: the cases of tests/system/auto_test.cc; plans, captured graphs and weight copies after a
// switch; decisions by the device's own timings.
#include "exec/executor.h"
#include "system/auto_cases.h"
#include "train/auto_precision.h"
#include "train/language_model.h"

namespace octet {
namespace {

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda_available(&why)) GTEST_SKIP() << why;
    target_ = cuda_target();
    target_.timings.clear();  // so that tiny shapes are judged by statistics alone
  }
  Target target_;
};
using CudaAuto = OnGpu;
class CudaAutoOf : public OnGpu, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, CudaAutoOf, testing::Values("gpt2", "llama"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CudaAutoOf, AHealthyModelSettlesUnderOneScale) {
  auto_cases::a_healthy_model_settles_under_one_scale(target_, GetParam());
}

TEST_F(CudaAuto, PlantedOutliersMoveTheGemmsTheyTouchAndNoOthers) {
  auto_cases::planted_outliers_move_the_gemms_they_touch_and_no_others(target_);
}

TEST_F(CudaAuto, AnAdaptersBaseIsHeldAsDecided) { auto_cases::an_adapters_base_is_held_as_decided(target_); }

TEST_F(CudaAuto, SwitchesThatDoNotFitAreTakenBack) { auto_cases::switches_that_do_not_fit_are_taken_back(target_); }

TEST_F(CudaAuto, TimingsThatShowNoGainKeepAShapeInBf16) {
  auto_cases::timings_that_show_no_gain_keep_a_shape_in_bf16(target_);
}

TEST_F(CudaAuto, TheSameSeedAndAResumeGiveTheSameSwitchesAndBits) {
  auto_cases::the_same_seed_and_a_resume_give_the_same_switches_and_bits(target_);
}

// Graphs captured before a switch are destroyed with their executor: replayed steps have the bits of eager ones.
TEST_F(CudaAuto, ReplayedGraphsFollowTheSwitchesBitForBit) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  RunConfig config = auto_cases::restless(folder);
  const std::vector<double> replayed = auto_cases::losses_from(config, target_);
  const std::vector<Switch> switches = auto_cases::read_log(config.out).switches;
  config.eager = true;
  config.out = folder.file("eager");
  EXPECT_EQ(auto_cases::losses_from(config, target_), replayed);
  EXPECT_EQ(auto_cases::read_log(config.out).switches, switches);
  EXPECT_GE(switches.size(), 3u) << "too few switches to show something";
}

// The device's own timings exclude FP8 where it is slower, from the start: in all linears of a narrow model, in the
// attention linears of a wider one.
TEST_F(CudaAuto, TheDevicesOwnTimingsDecideFromTheStart) {
  set_log_level(LogLevel::kWarning);
  const Target timed = cuda_target();
  ASSERT_FALSE(timed.timings.empty());
  for (auto [hidden, intermediate] : {std::pair<int64_t, int64_t>{64, 256}, {1024, 8192}}) {
    SCOPED_TRACE(hidden);
    TempFolder folder;
    RunConfig config = auto_cases::auto_config(folder);
    config.layers = 1, config.hidden = hidden, config.intermediate = intermediate;
    config.steps = 3;
    config.eval_interval = 0;
    const ModelConfig model = resolve_model(config, config.vocab_size);
    const PrecisionPolicy policy(policy_gemms(LanguageModel(model, config), stepper_options(config, timed)), {}, timed);
    const std::vector<double> losses = auto_cases::losses_from(config, timed);
    const auto_cases::Logged logged = auto_cases::read_log(config.out);
    ASSERT_EQ(logged.rungs.size(), policy.gemms().size());
    for (const PolicyGemm& gemm : policy.gemms()) {
      const bool fp8 = hidden == 1024 && gemm.gemm.starts_with("layers.0.mlp.");
      EXPECT_EQ(policy.level(gemm.key()), fp8 ? PrecisionLevel::kTensor : PrecisionLevel::kHigh) << gemm.key();
      EXPECT_EQ(logged.rungs.at(gemm.key()), static_cast<char>('0' + static_cast<int>(policy.level(gemm.key()))))
          << gemm.key();
    }
    EXPECT_EQ(logged.switches.size(), policy.switches().size());
    for (const Switch& s : logged.switches) EXPECT_NE(s.reason.find("on " + timed.name), std::string::npos) << s.reason;
    for (double loss : losses) EXPECT_TRUE(std::isfinite(loss));
  }
}

}  // namespace
}  // namespace octet
