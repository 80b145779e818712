// A workload that is no language model, all of it in this file: an MLP learns a function of three numbers. It goes
// through the same plan, run, evaluation, checkpoints and resume as any other, on ranks too.
#include "train/workload.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "io/safetensors.h"
#include "ir/builder.h"
#include "train/diagnose.h"
#include "train/plan_report.h"
#include "train/trainer.h"

namespace octet {
namespace {

constexpr int64_t kRows = 8, kValidationRows = 19;  // of a micro-batch; two whole batches and one of three rows
constexpr double kVariance = 0.5;                   // of the function, about

class Regression : public TrainingWorkload {
 public:
  explicit Regression(const RunConfig& config, int64_t train_shapes = 1)
      : width_(config.hidden), seed_(static_cast<uint64_t>(config.seed)), train_shapes_(train_shapes) {}

  Graph loss(GraphRole role, int64_t shape) const override {
    const int64_t rows = rows_of(shape);
    Graph graph(role);
    Builder b(graph);
    Value x = b.input("x", {DType::kF32, {rows, 3}});
    for (const char* layer : {"in", "middle"}) x = b.tanh(b.linear(x, layer, width_, {.bias = true, .std = 0.5}));
    const Value difference = b.sub(b.linear(x, "out", 1), b.input("y", {DType::kF32, {rows, 1}}));
    b.output("loss", b.reduce(b.mul(difference, difference), "sum", "all"));
    if (role == GraphRole::kEval) b.output("largest", b.reduce(difference, "amax", "all"));
    return graph;
  }
  int64_t shapes(GraphRole role) const override { return role == GraphRole::kEval ? 2 : train_shapes_; }
  int64_t units() const override { return kRows; }
  std::string description() const override { return fmt::format("mlp of 3 layers, {} wide", width_); }
  std::unique_ptr<TrainingWorkload> with_settings(const RunConfig& config) const override {
    return std::make_unique<Regression>(config);
  }

  Batch batch(DataSplit split, int64_t index) const override {
    const bool training = split == DataSplit::kTraining;
    Batch batch{.shape = !training && (index + 1) * kRows > kValidationRows ? 1 : 0};
    const int64_t rows = batch.target_count = rows_of(batch.shape);
    const auto x = batch.add("x", {DType::kF32, {rows, 3}}).values<float>();
    const auto y = batch.add("y", {DType::kF32, {rows, 1}}).values<float>();
    for (int64_t r = 0; r < rows; ++r) {
      Philox random(training ? seed_ : ~seed_, static_cast<uint64_t>(index * kRows + r));
      float* at = &x[static_cast<size_t>(3 * r)];
      for (int i = 0; i < 3; ++i) at[i] = static_cast<float>(2 * random.uniform() - 1);
      y[static_cast<size_t>(r)] = std::tanh(at[0] + 2 * at[1]) + at[2] / 2;
    }
    return batch;
  }
  int64_t validation_batches() const override { return (kValidationRows + kRows - 1) / kRows; }
  DataRecord data() const override {
    return {.data = fmt::format("seed {}", seed_), .checksum = "0", .validation = "19 rows"};
  }
  std::vector<Metric> metrics() const override {
    return {{.name = "r2", .shown = [](double error) { return 1 - error / kVariance; }, .higher_is_better = true},
            {.name = "loss"},
            {.name = "largest_error", .output = "largest", .how = Metric::Join::kMax, .digits = 2}};
  }
  CountedUnit unit() const override { return {.one = "row", .brief = "rows"}; }

 private:
  static int64_t rows_of(int64_t shape) { return shape == 0 ? kRows : kValidationRows % kRows; }
  int64_t width_;
  uint64_t seed_;
  int64_t train_shapes_;
};

const WorkloadRow kRegression = {.optimizer = {.name = "sgd", .lr = 0.1, .warmup_steps = 0, .weight_decay = 0},
                                 .open = [](const RunConfig& config) -> std::unique_ptr<TrainingWorkload> {
                                   return std::make_unique<Regression>(config);
                                 }};

class WorkloadRun : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kWarning);
    config_.hidden = 16, config_.micro_batch = kRows, config_.global_batch = 4 * kRows;
    config_.recipe = "fp32", config_.steps = 40;
    config_.eval_interval = 5, config_.checkpoint_interval = 10, config_.checkpoint_keep = 1, config_.log_interval = 1;
    config_.out = folder_.file("run");
  }
  TrainResult train_it(TrainHooks hooks = {}) const {
    hooks.workload = &kRegression;
    return train(config_, hooks);
  }
  std::vector<nlohmann::json> log(const std::string& kind) const {
    std::vector<nlohmann::json> entries;
    const std::string text = read_file(config_.out + "/log.jsonl");
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
      end = text.find('\n', begin);
      nlohmann::json entry = parse_json(text.substr(begin, end - begin), "log");
      if (entry.at("kind") == kind) entries.push_back(std::move(entry));
    }
    return entries;
  }
  static std::map<std::string, std::string> tensors_of(const std::string& checkpoint) {
    std::map<std::string, std::string> files;
    for (const char* name : {"/model.safetensors", "/optimizer.safetensors"})
      files[name] = read_file(checkpoint + name);
    return files;
  }
  TempFolder folder_;
  RunConfig config_{.optimizer = kRegression.optimizer};
};

TEST_F(WorkloadRun, LearnsAndKeepsTheBestByItsOwnMetric) {
  const TrainResult result = train_it();
  const auto steps = log("step"), evaluations = log("eval");
  ASSERT_EQ(steps.size(), 40u);
  EXPECT_EQ(steps.back().at("rows"), 40 * 4 * kRows);
  EXPECT_GT(steps.back().at("rows_per_second"), 0);
  EXPECT_FALSE(steps.back().contains("tokens"));
  EXPECT_LT(result.last_loss, 0.5 * steps.front().at("loss").get<double>());
  double best = -INFINITY;
  int64_t best_step = 0;
  for (const nlohmann::json& entry : evaluations) {
    EXPECT_EQ(entry.at("rows"), kValidationRows);
    EXPECT_DOUBLE_EQ(entry.at("r2"), 1 - entry.at("loss").get<double>() / kVariance);
    EXPECT_GE(std::pow(entry.at("largest_error").get<double>(), 2), entry.at("loss"));
    if (entry.at("r2") > best && entry.at("step") > 0) best = entry.at("r2"), best_step = entry.at("step");
  }
  EXPECT_NE(result.run.settings.find("name: sgd"), std::string::npos) << "not the defaults of its row";
  EXPECT_EQ(result.metric.name, "r2");
  EXPECT_EQ(result.run.best_metric, best);
  EXPECT_EQ(result.run.best_step, best_step);
  EXPECT_GT(best_step, 5) << "the smallest r2, not the largest";
  EXPECT_TRUE(path_exists(checkpoint_folder(config_.out, best_step)));
  std::string events;
  for (const std::string& name : list_folder(config_.out + "/events"))
    events += read_file(config_.out + "/events/" + name);
  for (const char* tag : {"train/rows_per_second", "eval/r2", "eval/largest_error"})
    EXPECT_NE(events.find(tag), std::string::npos) << tag;
}

TEST_F(WorkloadRun, ResumesWithTheSameBits) {
  const TrainResult straight = train_it();
  const TensorSource weights(straight.checkpoint + "/model.safetensors");
  EXPECT_EQ(*weights.find_type("middle.weight"), (TensorType{DType::kF32, {16, 16}}));
  EXPECT_FALSE(path_exists(straight.checkpoint + "/config.json"));
  config_.out = folder_.file("interrupted");
  struct Stop {};
  EXPECT_THROW(train_it({.on_step =
                             [](const RunState& run, const StepResult&) {
                               if (run.step == 33) throw Stop{};
                             }}),
               Stop);
  int64_t first = 0;
  const TrainResult resumed = train_it({.on_step = [&](const RunState& run, const StepResult&) {
    if (first == 0) first = run.step;
  }});
  EXPECT_EQ(first, 31);
  EXPECT_EQ(tensors_of(resumed.checkpoint), tensors_of(straight.checkpoint));
  EXPECT_EQ(resumed.run.best_metric, straight.run.best_metric);

  config_.hidden = 8;
  EXPECT_NE(error_of([&] { train_it(); }).find("in.weight is f32[16,3], this run's model wants [8,3]"),
            std::string::npos)
      << error_of([&] { train_it(); });
  config_.hidden = 16, config_.seed = 5;
  EXPECT_NE(error_of([&] { train_it(); }).find("was trained on \"seed 1337\", this run has \"seed 5\""),
            std::string::npos);
  // Another run begins with these weights, whatever their type.
  config_.out = folder_.file("another"), config_.steps = 1, config_.optimizer.lr = config_.optimizer.min_lr = 0;
  config_.model_from = straight.checkpoint, config_.checkpoint_content = "weights";
  EXPECT_EQ(read_file(train_it().checkpoint + "/model.safetensors"),
            read_file(straight.checkpoint + "/model.safetensors"));
}

TEST_F(WorkloadRun, DataRanksLearnWhatOneRankDoes) {
  std::vector<double> losses[2];
  for (const int64_t ranks : {1, 2}) {
    config_.data_ranks = ranks, config_.out = folder_.file(fmt::format("ranks_{}", ranks));
    train_it({.on_step = [&](const RunState&, const StepResult& step) { losses[ranks - 1].push_back(step.loss); }});
    losses[ranks - 1].push_back(log("eval").back().at("largest_error"));
  }
  ASSERT_EQ(losses[1].size(), losses[0].size());
  for (size_t i = 0; i < losses[0].size(); ++i) EXPECT_NEAR(losses[1][i], losses[0][i], 1e-5) << i;  // float32 sums
}

TEST_F(WorkloadRun, IsPlannedAndDiagnosed) {
  const Regression workload(config_);
  const Target target = cpu_target();
  const PlanReport report = plan_training(workload, config_, target);
  EXPECT_EQ(report.parameters, 16 * 3 + 16 + 16 * 16 + 16 + 16);
  const std::string text = to_text(report, target);
  for (const char* part : {"mlp of 3 layers, 16 wide: 352 parameters", "one micro-batch of 8 rows", "recomputed a row"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  EXPECT_EQ(parse_json(to_json(report), "plan").at("rows"), kRows);

  const StepperOptions options = stepper_options(config_, target);
  Stepper stepper(workload, options);
  initialize_weights(stepper.executor(), 3);
  const Batch batch = workload.batch(DataSplit::kTraining, 0);
  EXPECT_EQ(first_non_finite_value(workload, options, stepper.executor(), batch), "");
  const std::vector<float> huge(16, INFINITY);
  stepper.executor().write_state("middle.bias", std::as_bytes(std::span(huge)));
  stepper.executor().write_state("out.weight", std::as_bytes(std::span(huge)));
  EXPECT_EQ(first_non_finite_value(workload, options, stepper.executor(), batch), "middle.add_bias (add)");

  config_.pipeline = 2;
  EXPECT_NE(error_of([&] { compile_training(workload, stepper_options(config_, target)); }).find("parallel.pipeline=1"),
            std::string::npos);
  config_.pipeline = 1;
  EXPECT_NE(error_of([&] { compile_training(Regression(config_, 2), options); }).find("2 shapes in training"),
            std::string::npos);
}

}  // namespace
}  // namespace octet
