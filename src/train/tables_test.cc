// A workload of tables whose gradients are rows and of a running mean, as recommendation models have them, all of it in
// this file: runs, ranks, checkpoints and resumes; optimizer.sparse of a language model.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "exec/logical_states.h"
#include "io/safetensors.h"
#include "ir/builder.h"
#include "train/language_model.h"
#include "train/plan_report.h"
#include "train/trainer.h"

namespace octet {
namespace {

constexpr int64_t kRows = 8, kUsers = 1000, kItems = 30, kWidth = 4;  // rows: of a micro-batch

// How much a user likes an item: a product of their rows, and of a number about the day less its running mean.
class Recommendation : public TrainingWorkload {
 public:
  explicit Recommendation(const RunConfig& config) : seed_(static_cast<uint64_t>(config.seed)) {}

  Graph loss(GraphRole role, int64_t) const override {
    Graph graph(role);
    Builder b(graph);
    const auto lookup = [&](const std::string& name, int64_t rows) {
      return b.embedding(b.of_tokens(name, kRows),
                         b.param(name + ".table", {rows, kWidth}, {.std = 0.5, .rows = true}));
    };
    const Value x = b.input("day", {DType::kF32, {kRows, 1}}, {{"rows", "batch"}});
    const Value mean = b.statistic("day.mean", {1}, 0.1);
    if (role == GraphRole::kTrain) b.blend(mean, b.reduce(x, "sum", "rows"), b.constant(kRows));
    const Value both = b.mul(lookup("user", kUsers), lookup("item", kItems));
    const Value y = b.add(b.linear(both, "like", 1), b.linear(b.sub(x, mean), "of_day", 1, {.bias = true}));
    const Value difference = b.sub(y, b.input("y", {DType::kF32, {kRows, 1}}, {{"rows", "batch"}}));
    b.output("loss", b.reduce(b.mul(difference, difference), "sum", "all"));
    return graph;
  }
  int64_t units() const override { return kRows; }
  std::string description() const override { return "tables of users and items"; }
  std::unique_ptr<TrainingWorkload> with_settings(const RunConfig& config) const override {
    return std::make_unique<Recommendation>(config);
  }
  Batch batch(DataSplit split, int64_t index) const override {
    Batch batch{.target_count = kRows};
    Philox random(split == DataSplit::kTraining ? seed_ : ~seed_, static_cast<uint64_t>(index));
    const auto users = batch.add("user", {DType::kI32, {kRows}}).values<int32_t>();
    const auto items = batch.add("item", {DType::kI32, {kRows}}).values<int32_t>();
    const auto day = batch.add("day", {DType::kF32, {kRows, 1}}).values<float>();
    const auto y = batch.add("y", {DType::kF32, {kRows, 1}}).values<float>();
    for (size_t r = 0; r < kRows; ++r) {
      users[r] = static_cast<int32_t>(random.below(random.below(2) == 0 ? 5 : kUsers));  // some often
      items[r] = static_cast<int32_t>(random.below(kItems));
      day[r] = static_cast<float>(3 + random.normal());
      y[r] = (users[r] % 3 == items[r] % 3 ? 1.0F : -1.0F) + day[r] / 4;
    }
    return batch;
  }
  int64_t validation_batches() const override { return 2; }
  DataRecord data() const override { return {.data = "seeded", .checksum = "0", .validation = "two batches"}; }

 private:
  uint64_t seed_;
};

const WorkloadRow kRecommendation = {.optimizer = {.lr = 0.05, .warmup_steps = 0, .weight_decay = 0},
                                     .open = [](const RunConfig& config) -> std::unique_ptr<TrainingWorkload> {
                                       return std::make_unique<Recommendation>(config);
                                     }};

class Tables : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kWarning);
    config_.micro_batch = kRows, config_.global_batch = 4 * kRows, config_.recipe = "fp32", config_.steps = 30;
    config_.eval_interval = 0, config_.checkpoint_interval = 10, config_.out = folder_.file("run");
  }
  TrainResult train_it(TrainHooks hooks = {}) const {
    hooks.workload = &kRecommendation;
    return train(config_, hooks);
  }
  static std::map<std::string, std::string> files_of(const std::string& checkpoint) {
    std::map<std::string, std::string> files;
    for (const char* name : {"/model.safetensors", "/optimizer.safetensors", "/statistics.safetensors"})
      files[name] = read_file(checkpoint + name);
    return files;
  }
  static std::vector<float> values(const std::string& file, const std::string& name) {
    const TensorSource source(file);
    const std::span<const std::byte> bytes = source.read(name).bytes;
    std::vector<float> list(bytes.size() / sizeof(float));
    std::memcpy(list.data(), bytes.data(), bytes.size());
    return list;
  }
  TempFolder folder_;
  RunConfig config_{.optimizer = kRecommendation.optimizer};
};

TEST_F(Tables, LearnAndResumeWithTheSameBits) {
  std::vector<double> losses;
  const TrainResult straight =
      train_it({.on_step = [&](const RunState&, const StepResult& step) { losses.push_back(step.loss); }});
  EXPECT_LT(losses.back(), 0.85 * losses.front());
  const std::vector<float> mean = values(straight.checkpoint + "/statistics.safetensors", "day.mean");
  EXPECT_NEAR(mean[0], 3 * (1 - std::pow(0.9, 30)), 0.2);
  const std::vector<float> moments = values(straight.checkpoint + "/optimizer.safetensors", "adam_v.user.table");
  EXPECT_LT(std::ranges::count_if(moments, [](float v) { return v != 0; }),
            4 * 30 * kRows * kWidth / 2 + 5 * kWidth + 200)
      << "more rows than were looked up";

  config_.out = folder_.file("interrupted");
  struct Stop {};
  EXPECT_THROW(train_it({.on_step =
                             [](const RunState& run, const StepResult&) {
                               if (run.step == 23) throw Stop{};
                             }}),
               Stop);
  EXPECT_EQ(files_of(train_it().checkpoint), files_of(straight.checkpoint));

  // Another run begins with these weights and their statistics.
  config_.out = folder_.file("another"), config_.steps = 1, config_.optimizer.lr = config_.optimizer.min_lr = 0;
  config_.model_from = straight.checkpoint;
  const std::string other = train_it().checkpoint + "/statistics.safetensors";
  EXPECT_NEAR(values(other, "day.mean")[0], mean[0], 0.1);
  EXPECT_NE(values(other, "day.mean")[0], mean[0]);
}

TEST_F(Tables, RanksLearnWhatOneDoes) {
  std::map<std::string, std::vector<float>> weights[2];
  for (const int64_t ranks : {1, 2}) {
    config_.data_ranks = ranks, config_.out = folder_.file(fmt::format("ranks_{}", ranks));
    config_.shard = ranks == 1 ? "none" : "parameters";
    const std::string checkpoint = train_it().checkpoint;
    for (const char* name : {"user.table", "item.table", "like.weight"})
      weights[ranks - 1][name] = values(checkpoint + "/model.safetensors", name);
    weights[ranks - 1]["day.mean"] = values(checkpoint + "/statistics.safetensors", "day.mean");
  }
  for (const auto& [name, one] : weights[0])
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(weights[1][name][i], one[i], 2e-4) << name << " " << i;
}

TEST_F(Tables, PlansKeepRowsInPlaceOfADenseGradient) {
  const Recommendation workload(config_);
  const PlanReport report = plan_training(workload, config_, cpu_target());
  const int64_t rows = 4 * kRows;  // that a step can look up, of the users; items are fewer
  EXPECT_EQ(report.gradient_bytes, 4 * (rows * (kWidth + 1) + kItems * (kWidth + 1) + kWidth + 1 + 1 + 1 + 1 + 1));
  EXPECT_EQ(report.trained_parameters, (kUsers + kItems) * kWidth + kWidth + 1 + 1);
}

TEST_F(Tables, AreNotForTrustRatiosOrStages) {
  const auto error = [&] {
    return error_of([&] { compile_training(Recommendation(config_), stepper_options(config_, cpu_target())); });
  };
  for (const char* name : {"lamb", "lars"}) {
    config_.optimizer.name = name;
    EXPECT_NE(error().find("set optimizer.name=adamw or sgd"), std::string::npos) << name << error();
  }
  config_.optimizer.name = "adamw", config_.pipeline = 2;
  EXPECT_NE(error().find("set parallel.pipeline=1"), std::string::npos) << error();
}

// optimizer.sparse: of a model whose head has a table of its own.
class SparseEmbeddings : public testing::Test {
 protected:
  static LanguageModel model(const char* family) {
    ModelConfig c = model_family(family);
    c.vocab_size = 60, c.max_positions = 8, c.hidden = 32, c.layers = 2, c.heads = 4, c.intermediate = 64;
    if (family == std::string("llama")) c.kv_heads = 2;
    return {c, 2, 8};
  }
  static StepperOptions options(const std::string& recipe, std::vector<std::string> sparse, int32_t micro_batches = 2) {
    return {.optimizer = {.lr = 0.01, .min_lr = 0, .sparse = std::move(sparse)},
            .compile = {
                .target = cpu_target(), .parallel = {.micro_batches = micro_batches}, .recipe = parse_recipe(recipe)}};
  }
  static Batch batch(int number) {
    Batch made = token_batch(2, 8, /*targets=*/true);
    for (size_t t = 0; t < 16; ++t) {
      made.ints("ids")[t] = static_cast<int32_t>(number * 7 + static_cast<int>(t) % 5);
      made.ints("targets")[t] = static_cast<int32_t>((number * 7 + static_cast<int>(t)) % 60);
    }
    made.target_count = 16;
    return made;
  }
  static std::vector<float> state(Executor& executor, const std::string& name) {
    std::vector<float> list(static_cast<size_t>(executor.program().find_state(name)->type.shape.elements()));
    executor.read_state(name, std::as_writable_bytes(std::span(list)));
    return list;
  }
};

TEST_F(SparseEmbeddings, RowsThatNoTokenHasStay) {
  for (const char* recipe : {"fp32", "bf16", "fp8-current"}) {
    Stepper stepper(model("llama"), options(recipe, {"embed.*"})), dense(model("llama"), options(recipe, {}));
    EXPECT_EQ(stepper.plan().program.find_state("embed.weight", StateRole::kCompute), nullptr) << recipe;
    for (Stepper* each : {&stepper, &dense}) initialize_weights(each->executor(), 3);
    const std::vector<float> before = state(stepper.executor(), "embed.weight");
    const std::vector<Batch> batches = {batch(0), batch(1)};
    const StepWork work{.micro_batches = batches, .lr = 0.01};
    const StepResult lazy = stepper.step(work), all = dense.step(work);
    EXPECT_EQ(lazy.loss, all.loss) << recipe;
    EXPECT_NEAR(lazy.grad_norm, all.grad_norm, 1e-6 * all.grad_norm) << recipe;
    std::set<int64_t> rows;
    for (const Batch& each : batches)
      for (const int32_t id : each.ints("ids")) rows.insert(id);
    const std::vector<float> after = state(stepper.executor(), "embed.weight");
    const std::vector<float> wanted = state(dense.executor(), "embed.weight");
    for (size_t i = 0; i < after.size(); ++i) {
      const bool changes = rows.contains(static_cast<int64_t>(i) / 32);
      if (changes) {  // the first step is that of the dense gradient
        EXPECT_NEAR(after[i], wanted[i], 1e-6) << recipe << " " << i;
      } else {
        EXPECT_EQ(after[i], before[i]) << recipe << " " << i;
      }
    }
  }
}

TEST_F(SparseEmbeddings, AreRefusedWhereTheyCannotBe) {
  const auto error = [&](const char* family, std::vector<std::string> sparse) {
    return error_of([&] { compile_training(model(family), options("fp32", std::move(sparse))); });
  };
  EXPECT_NE(error("gpt2", {"embed.*"}).find("the output head shares"), std::string::npos) << error("gpt2", {"embed.*"});
  EXPECT_NE(error("llama", {"embde.*"}).find("no parameter that is trained matches 'embde.*'"), std::string::npos);
  EXPECT_NE(error("llama", {"*norm*"}).find("which is no table"), std::string::npos) << error("llama", {"*norm*"});
  StepperOptions stages = options("fp32", {"embed.*"});
  stages.compile.parallel.mesh = {{2, 1, 1, 1}};
  EXPECT_NE(error_of([&] { compile_training(model("llama"), stages); }).find("embed.weight has a gradient of rows"),
            std::string::npos);
  StepperOptions gpu = options("bf16", {"embed.*"});
  gpu.compile.target = h200_target();
  EXPECT_NE(error_of([&] { compile_training(model("llama"), gpu); }).find("set train.device=cpu"), std::string::npos);
  EXPECT_NE(error("llama", {"layers.0.attn.q.weight"}).find("only lookups read"), std::string::npos)
      << error("llama", {"layers.0.attn.q.weight"});
}

}  // namespace
}  // namespace octet
