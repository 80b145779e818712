// Recipe auto end to end on the CPU.
#include "exec/executor.h"
#include "system/auto_cases.h"

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

TEST(Auto, SwitchesThatDoNotFitAreTakenBack) { auto_cases::switches_that_do_not_fit_are_taken_back(cpu_target()); }

TEST(Auto, TimingsThatShowNoGainKeepAShapeInBf16) {
  auto_cases::timings_that_show_no_gain_keep_a_shape_in_bf16(cpu_target());
}

TEST(Auto, TheSameSeedAndAResumeGiveTheSameSwitchesAndBits) {
  auto_cases::the_same_seed_and_a_resume_give_the_same_switches_and_bits(cpu_target());
}

}  // namespace
}  // namespace octet
