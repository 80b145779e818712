#include "train/stage_report.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "base/testing/test_error.h"
#include "passes/stage_graphs.h"
#include "train/diagnose.h"
#include "train/language_model.h"
#include "train/stepper.h"

namespace octet {
namespace {

RunConfig config_of(const char* recipe, int64_t pipeline, int64_t chunks, int64_t micro_batches) {
  RunConfig config;
  config.recipe = recipe;
  config.micro_batch = 1, config.global_batch = micro_batches, config.sequence_length = 128;
  config.pipeline = pipeline, config.chunks = chunks;
  return config;
}

struct Way {
  const char* recipe;
  int64_t layers, pipeline, chunks, micro_batches, tensor, data;
  const char* shard;
};

// A stage that was not compiled has the bytes of the plan that its ranks would run.
TEST(StageReport, StagesHaveTheBytesOfTheirPlans) {
  for (const Way& way : {Way{"fp8-delayed", 10, 5, 1, 8, 1, 1, "none"}, Way{"bf16", 17, 4, 2, 8, 2, 1, "none"},
                         Way{"bf16", 24, 8, 1, 8, 1, 2, "optimizer"}}) {
    RunConfig config = config_of(way.recipe, way.pipeline, way.chunks, way.micro_batches);
    config.tensor = way.tensor, config.data_ranks = way.data, config.shard = way.shard;
    config.sequence_length = 1024;
    ModelConfig model = named_model("gpt2-124m");
    model.layers = way.layers;
    const PipelineReport report = plan_stages(LanguageModel(model, config), config, h200_target());
    ASSERT_EQ(std::ssize(report.stages), way.pipeline);
    EXPECT_LT(report.compiled, way.pipeline) << "none was alike";
    size_t layers = 0;
    for (int32_t s = 0; s < way.pipeline; ++s) {
      SCOPED_TRACE(testing::Message() << way.recipe << ", stage " << s << " of " << way.pipeline);
      const StageReport& stage = report.stages[static_cast<size_t>(s)];
      StepperOptions options = stepper_options(config, h200_target());
      options.compile.parallel.stage = s;
      const Plan plan = compile_training(LanguageModel(model, config), options);
      EXPECT_EQ(stage.rank.total_bytes, plan.total_bytes());
      EXPECT_EQ(stage.rank.weight_bytes, plan.program.state_bytes({StateRole::kMaster}));
      EXPECT_EQ(stage.rank.activation_bytes, plan.program.state_bytes({StateRole::kSaved}));
      const PlanReport& b = stage.rank;
      EXPECT_EQ(b.total_bytes, b.weight_bytes + b.compute_bytes + b.moment_bytes + b.gradient_bytes + b.scale_bytes +
                                   b.activation_bytes + b.transfer_bytes + b.transient_bytes + b.workspace_bytes +
                                   b.input_bytes + b.padding_bytes);
      EXPECT_GE(b.padding_bytes, 0);
      layers += stage.layers.size();
    }
    EXPECT_EQ(layers, static_cast<size_t>(model.layers));
  }
}

// Of 1F1B with m >= p a stage keeps p - s micro-batches; seconds are those of the slowest stage and what it waits.
TEST(StageReport, TheStepIsTheSimulatedScheduleAndTheUpdate) {
  const RunConfig config = config_of("bf16", 4, 1, 16);
  const PipelineReport report = plan_stages(LanguageModel(named_model("gpt2-124m"), config), config, h200_target());
  double slowest = 0, update = 0;
  for (size_t s = 0; s < 4; ++s) {
    const StageReport& stage = report.stages[s];
    EXPECT_EQ(stage.slots, (std::vector<int32_t>{4 - static_cast<int32_t>(s)}));
    slowest = std::max(slowest, stage.computing + stage.collectives);
    update = std::max(update, stage.update);
    EXPECT_NEAR(
        stage.computing + stage.collectives + stage.transfers + stage.idle,
        report.stages[0].computing + report.stages[0].collectives + report.stages[0].transfers + report.stages[0].idle,
        1e-9);
    // Two borders of activations and gradients, bf16 of 128 x 768, but one at either end; and the tied table there.
    const double border = 16.0 * 128 * 768 * 2;
    const bool end = s == 0 || s == 3;
    EXPECT_EQ(stage.sent_bytes, end ? border + 50304.0 * 768 * 4 : 2 * border) << s;
  }
  EXPECT_GT(report.beside_seconds, slowest + update);
  EXPECT_TRUE(report.beside);
  EXPECT_EQ(report.step_seconds, report.beside_seconds);
  EXPECT_EQ(report.bubble, report.beside_bubble);
  Target cpu = h200_target();
  cpu.device = Device::kCpu, cpu.traits = {};
  const PipelineReport in_turn = plan_stages(LanguageModel(named_model("gpt2-124m"), config), config, cpu);
  EXPECT_FALSE(in_turn.beside);
  EXPECT_GT(in_turn.step_seconds, in_turn.beside_seconds);
  EXPECT_GT(in_turn.bubble, in_turn.beside_bubble);
  EXPECT_DOUBLE_EQ(report.bubble_formula, 3.0 / 16);
  EXPECT_DOUBLE_EQ(report.units(), 16.0 * 128);
  EXPECT_NEAR(
      report.mfu(),
      report.units() / report.step_seconds * (report.model.forward_flops + report.model.backward_flops) / 4 / 700e12,
      1e-12);
}

TEST(StageReport, TextAndJsonNameEveryStage) {
  const ModelConfig model = named_model("gpt2-124m");
  RunConfig config = config_of("bf16", 2, 3, 4);
  config.tensor = 2;
  const PipelineReport report = plan_stages(LanguageModel(model, config), config, h200_target());
  const std::string text = to_text(report, h200_target());
  for (const char* part :
       {"ranks     4 (pp=2 tp=2)", "2 stages of 3 chunks", "with transfers beside computing, as runs do",
        "(p - 1) / (v m) = 0.0833", "tokens/s", "fits "})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  const nlohmann::json json = parse_json(to_json(report), "plan");
  ASSERT_EQ(json.at("stages").size(), 2u);
  EXPECT_EQ(json.at("stages")[0].at("slots").size(), 3u);
  EXPECT_EQ(json.at("stages")[1].at("total_bytes"), report.stages[1].rank.total_bytes);
  EXPECT_EQ(json.at("stages")[0].at("collectives")[0].at("over"), "tp");
  EXPECT_GT(json.at("step_seconds"), 0);
  // A target without rates has bytes, and no seconds.
  const PipelineReport bare = plan_stages(LanguageModel(model, config), config, Target{});
  EXPECT_NE(to_text(bare, Target{}).find("says no rates"), std::string::npos);
  EXPECT_NE(to_text(bare, Target{}).find("in turn with computing, as runs do"), std::string::npos);
  EXPECT_FALSE(parse_json(to_json(bare), "plan").contains("step_seconds"));
}

TEST(StageReport, RefusesWhatHasNoStages) {
  const ModelConfig model = named_model("gpt2-124m");
  const auto refusal = [&](const RunConfig& config) {
    return error_of([&] { plan_stages(LanguageModel(model, config), config, h200_target()); });
  };
  EXPECT_NE(refusal(config_of("bf16", 13, 1, 13)).find("the model has 12 layers: want at most 12 stages"),
            std::string::npos);
  EXPECT_NE(refusal(config_of("bf16", 4, 4, 8)).find("parallel.chunks from 1 to 3"), std::string::npos);
  EXPECT_NE(refusal(config_of("bf16", 4, 2, 6)).find("want a multiple of 4"), std::string::npos);
  EXPECT_NE(refusal(config_of("auto", 2, 1, 4)).find("choose a recipe"), std::string::npos);
}

// The stage that does not fit, its bytes and the memory; settings with which the largest stage would.
TEST(StageReport, AStageThatDoesNotFitIsNamedWithWhatWould) {
  const ModelConfig model = named_model("gpt2-124m");
  RunConfig config = config_of("bf16", 2, 1, 8);
  config.micro_batch = 4, config.sequence_length = 1024, config.global_batch = 32;
  Target target = h200_target();
  const PipelineReport report = plan_stages(LanguageModel(model, config), config, target);
  const int64_t most = report.largest().rank.total_bytes;
  target.memory_bytes = most - 1;
  EXPECT_NE(
      to_text(report, target)
          .find(fmt::format("stage 0 does NOT fit h200: it needs {} bytes of {}, 1 (1 B) are missing", most, most - 1)),
      std::string::npos)
      << to_text(report, target);
  const std::string fitting = settings_that_fit(LanguageModel(model, config), config, target, target.memory_bytes);
  for (const char* setting : {"recompute=selective needs ", "train.micro_batch=2 with train.global_batch=32 needs ",
                              "parallel.pipeline=4 needs ", "parallel.tensor=2 needs "})
    EXPECT_NE(fitting.find(setting), std::string::npos) << fitting;
  config.pipeline = 4;
  EXPECT_NE(
      fitting.find(fmt::format("parallel.pipeline=4 needs {} bytes",
                               plan_stages(LanguageModel(model, config), config, target).largest().rank.total_bytes)),
      std::string::npos);
  config.pipeline = 2;
  EXPECT_EQ(settings_that_fit(LanguageModel(model, config), config, target, 1000), "");
  EXPECT_NE(none_fits(config).find("more stages"), std::string::npos);
}

}  // namespace
}  // namespace octet
