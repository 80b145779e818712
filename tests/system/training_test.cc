// Training end to end on tiny models: recipes, packing, passes on and off, faults.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/file.h"
#include "base/log.h"
#include "passes/passes.h"
#include "system/tiny.h"
#include "train/batches.h"
#include "train/start_checks.h"
#include "train/trainer.h"
#include "weights/weights.h"

namespace octet {
namespace {

std::vector<double> losses_of(RunConfig config, int64_t steps) {
  config.out += config.recipe;
  config.eval_interval = 0;
  config.checkpoint_interval = 0;
  config.steps = steps;
  config.optimizer.decay_steps = 150;
  config.optimizer.lr = 8e-3;
  std::vector<double> losses;
  train(config, {.on_step = [&](const RunState&, const StepResult& step) { losses.push_back(step.loss); }});
  return losses;
}

TEST(SlowRecipes, AreNamedWithTheWordThatIsQuicker) {
  for (const char* name : {"fp8-current", "fp8-delayed", "fp8-block", "auto"}) {
    const std::string note = slow_recipe_note(parse_recipe(name), Device::kCpu, false);
    EXPECT_NE(note.find("precision.recipe=bf16"), std::string::npos) << name << note;
    EXPECT_NE(note.find(name), std::string::npos) << note;
    EXPECT_EQ(slow_recipe_note(parse_recipe(name), Device::kCpu, true), "") << name;
    EXPECT_EQ(slow_recipe_note(parse_recipe(name), Device::kCuda, false), "") << name;
  }
  for (const char* name : {"fp32", "tf32", "bf16"})
    EXPECT_EQ(slow_recipe_note(parse_recipe(name), Device::kCpu, false), "") << name;
}

class Families : public testing::TestWithParam<const char*> {};

TEST_P(Families, EveryRecipeFollowsFloat32) {
  set_log_level(LogLevel::kWarning);
  TempFolder folder;
  std::vector<double> exact = losses_of(tiny_config(folder, "fp32", GetParam()), 150);
  EXPECT_LT(exact.back(), 0.8 * std::log(64.0));  // it learns
  // Step by step while the loss still falls slowly: later a step's difference says more about how steeply the curve
  // falls there than about rounding. FP8's rounding of a 32-wide model is at its coarsest here.
  for (const char* recipe : {"bf16", "fp8-current", "fp8-delayed", "fp8-block"}) {
    std::vector<double> losses = losses_of(tiny_config(folder, recipe, GetParam()), 25);
    ASSERT_EQ(losses.size(), 25u);
    double largest = 0;
    for (size_t i = 0; i < losses.size(); ++i) largest = std::max(largest, std::abs(losses[i] - exact[i]) / exact[i]);
    RecordProperty(std::string("largest_gap_") + recipe, std::to_string(largest));
    EXPECT_LT(largest, 0.03) << recipe;  // measured: up to 0.017 (fp8-block, llama)
    EXPECT_GT(largest, 0) << recipe << " computes what fp32 does";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Families, testing::Values("gpt2", "llama"),
                         [](const auto& info) { return std::string(info.param); });

struct StepBytes {
  double loss = 0;
  std::vector<std::vector<float>> gradients;
};

ModelConfig tiny_model(const std::string& family) {
  TempFolder folder;
  return resolve_model(tiny_config(folder, "fp32", family), 0);
}

StepBytes gradients_of(const LanguageModel& model, const std::vector<Batch>& batches,
                       const CompileOptions& compile_options) {
  Stepper stepper(model, {.compile = compile_options});
  initialize_weights(stepper.executor(), 5);
  StepBytes result;
  const StepWork work{.micro_batches = batches, .seed = 3};
  const int64_t tokens = work.targets();
  stepper.begin(work);
  stepper.run_remaining_micro_batches(work);
  float loss = 0;
  stepper.executor().read_state(kLossSum, std::as_writable_bytes(std::span(&loss, 1)));
  result.loss = static_cast<double>(loss) / static_cast<double>(tokens);
  for (const StateEntry& entry : stepper.executor().program().states()) {
    if (entry.role != StateRole::kGradient) continue;
    std::vector<float> values(static_cast<size_t>(entry.type.shape.elements()));
    stepper.executor().read_state(entry.name, std::as_writable_bytes(std::span(values)));
    result.gradients.push_back(std::move(values));
  }
  return result;
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(static_cast<double>(a[i]) - b[i], 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(error / std::max(size, 1e-20));
}

void expect_equal_steps(const StepBytes& a, const StepBytes& b, double tolerance) {
  EXPECT_NEAR(a.loss, b.loss, tolerance * std::abs(b.loss));
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    double size = 0;
    for (float value : b.gradients[i]) size += std::abs(value);
    if (size < 1e-4) continue;  // zero in theory (key biases): rounding noise on both sides
    EXPECT_LE(relative_distance(a.gradients[i], b.gradients[i]), tolerance) << "gradient " << i;
  }
}

std::vector<int32_t> sequence(int start, int length) {
  std::vector<int32_t> tokens;
  for (int i = 0; i <= length; ++i) tokens.push_back((start + i * i) % 64);
  return tokens;
}

// Two documents packed into one row give the losses and gradients they give apart.
TEST_P(Families, PackedDocumentsEqualSeparateOnes) {
  ModelConfig model = tiny_model(GetParam());
  CompileOptions options{.target = cpu_target(), .recipe = parse_recipe("fp32")};
  std::vector<int32_t> first = sequence(3, 6), second = sequence(11, 10);
  BatchPacker packed(1, 17, true);
  std::vector<int32_t> row = first;
  row.insert(row.end(), second.begin(), second.end());  // 7 + 11 tokens: 17 inputs, one target crosses
  packed.add(row, {0, 7});
  Batch packed_batch = packed.finish();
  packed_batch.ints("targets")[6] = -1;  // the first document's last input has no target of its own
  EXPECT_EQ(packed_batch.target_count, 16);
  BatchPacker apart(2, 17, false);
  apart.add(first, {0});
  apart.add(second, {0});
  Batch apart_batch = apart.finish();
  EXPECT_EQ(apart_batch.target_count, 16);
  StepBytes a = gradients_of({model, 1, 17, true}, {packed_batch}, options);
  StepBytes b = gradients_of({model, 2, 17}, {apart_batch}, options);
  expect_equal_steps(a, b, 1e-5);  // float32 sums over rows in another order
}

TEST_P(Families, AccumulatedMicroBatchesEqualOneLargeBatch) {
  ModelConfig model = tiny_model(GetParam());
  CompileOptions options{.target = cpu_target(), .recipe = parse_recipe("fp32")};
  std::vector<Batch> micro;
  BatchPacker large(4, 12, false);
  for (int m = 0; m < 2; ++m) {
    BatchPacker small(2, 12, false);
    for (int s = 0; s < 2; ++s) {
      small.add(sequence(5 * m + s, 12), {0});
      large.add(sequence(5 * m + s, 12), {0});
    }
    micro.push_back(small.finish());
  }
  StepBytes a = gradients_of({model, 2, 12}, micro, options);
  StepBytes b = gradients_of({model, 4, 12}, {large.finish()}, options);
  expect_equal_steps(a, b, 1e-5);  // float32 sums in another order
}

TEST(Training, AFullDiskKeepsTheOldCheckpointAndSaysSo) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = tiny_config(folder, "bf16");
  TrainHooks hooks{.on_step = [](const RunState& run, const StepResult&) {
    if (run.step == 19) inject_write_fault(60'000, ENOSPC);  // inside step 20's checkpoint
  }};
  try {
    train(config, hooks);
    FAIL() << "a full disk went unnoticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo) << error.message();
  }
  inject_write_fault(-1, 0);
  EXPECT_EQ(newest_sound_checkpoint(config.out), checkpoint_folder(config.out, 10));
  EXPECT_EQ(list_checkpoints(config.out).size(), 1u);
  EXPECT_EQ(train(config).run.step, 20);
}

TEST(Training, RejectsBeforeTheFirstStep) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  auto message = [&](auto change) {
    RunConfig config = tiny_config(folder, "fp32");
    config.out = folder.file("rejected");
    change(config);
    try {
      train(config);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("accepted");
  };
  EXPECT_NE(message([](RunConfig& c) { c.train_data = "/nonexistent/corpus"; }).find("/nonexistent/corpus"),
            std::string::npos);
  EXPECT_NE(message([](RunConfig& c) { c.train_data.clear(); }).find("octet data"), std::string::npos);
  EXPECT_NE(message([](RunConfig& c) { c.heads = 5; }).find("heads"), std::string::npos);
  EXPECT_NE(message([](RunConfig& c) { c.global_batch = 3; }).find("multiple"), std::string::npos);
  EXPECT_NE(message([](RunConfig& c) {
              c.architecture = "mpt", c.intermediate = 100;
            }).find("\"model.intermediate\": 100 is not supported (supported: 96 or 128"),
            std::string::npos);
  EXPECT_FALSE(path_exists(folder.file("rejected")));
  EXPECT_NE(message([](RunConfig& c) { c.vocab_size = 10; }).find("vocabulary"), std::string::npos);
  EXPECT_NE(message([](RunConfig& c) { c.disable = {"fuze"}; }).find("fuse"), std::string::npos);
  EXPECT_NE(message([](RunConfig& c) {
              c.profile_timeline = "trace.json";
              c.device = "cpu";
            }).find("this run is on the CPU"),
            std::string::npos);
}

// Library masks are used in every attention of a step, forward and backward, and nowhere else; deterministic runs use
// none.
TEST(Training, LibraryMasksAreThoseOfAttentionWithDropoutAlone) {
  TempFolder folder;
  RunConfig config = tiny_config(folder, "bf16");
  config.dropout = 0.1;
  const auto asked = [&](const std::string& masks, bool deterministic) {
    config.dropout_masks = masks, config.deterministic = deterministic;
    const Plan plan = compile_training(LanguageModel(resolve_model(config, 0), config),
                                       stepper_options(config, target_of(Device::kCpu)));
    int attentions = 0, marked = 0;
    for (const Graph& graph : plan.program.graphs()) {
      for (const Node& node : graph.nodes()) {
        const bool dropping = node.attrs.get_or<double>("dropout", 0) > 0;
        attentions += (node.op == Op::kAttention || node.op == Op::kAttentionGrad) && dropping;
        marked += node.attrs.get_or<bool>("library_mask", false);
      }
    }
    EXPECT_GT(attentions, 0);
    return marked == attentions ? "all" : marked == 0 ? "none" : "some";
  };
  EXPECT_STREQ(asked("library", false), "all");
  EXPECT_STREQ(asked("portable", false), "none");
  EXPECT_STREQ(asked("library", true), "none");
}

TEST(Training, ProductsThatFp8CannotTakeAreLogged) {
  set_log_level(LogLevel::kOff);
  TempFolder folder;
  RunConfig config = tiny_config(folder, "fp8-current");
  config.intermediate = 40;
  config.steps = 1;
  Target target = target_of(Device::kCpu);
  target.fp8_alignment = 16;
  train(config, {.target = target});
  const std::string log = read_file(config.out + "/log.jsonl");
  EXPECT_NE(log.find("6 of the GEMMs stay in bf16: layers.0.mlp.up/fprop and others: 32x40x32"), std::string::npos)
      << log;
  EXPECT_NE(log.find("4 of the GEMMs stay in bf16: layers.0.mlp.down/fprop and others: 32x32x40"), std::string::npos);
  EXPECT_EQ(log.find("attn"), std::string::npos) << log;
}

}  // namespace
}  // namespace octet
