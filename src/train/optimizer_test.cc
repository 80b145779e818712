// "apply" of each optimiser: moments and their names, parameter groups, and the update's place in FP8 programs.
#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "exec/batch.h"
#include "io/safetensors.h"
#include "ir/builder.h"
#include "ir/facts.h"
#include "passes/passes.h"
#include "train/language_model.h"
#include "train/schedule.h"
#include "train/stepper.h"
#include "weights/weights.h"

namespace octet {
namespace {

LanguageModel small_model() {
  ModelConfig c = model_family("gpt2");
  c.vocab_size = 40, c.max_positions = 16, c.hidden = 32, c.layers = 1, c.heads = 4;
  return {c, 2, 16};
}

StepperOptions small_options(const OptimizerConfig& optimizer, const Target& target, const std::string& recipe) {
  return {.optimizer = optimizer,
          .compile = {.target = target, .recipe = parse_recipe(recipe)},
          .interpret = target.device == Device::kCuda};
}

// The update of each parameter.
std::map<std::string, Node> updates(const Program& program) {
  std::map<std::string, Node> found;
  for (const Node& node : program.graph("apply").nodes())
    if (is_optimizer_update(node.op)) found[node.name] = node;
  return found;
}

Program program_of(const OptimizerConfig& optimizer) {
  return training_program(small_model(), small_options(optimizer, cpu_target(), "fp32"));
}

TEST(Optimizer, MomentsAreItsOwn) {
  struct Wanted {
    OptimizerConfig config;
    std::vector<std::string> moments;
  };
  for (const Wanted& wanted : {Wanted{{}, {"adam_m.", "adam_v."}}, Wanted{{.name = "lamb"}, {"lamb_m.", "lamb_v."}},
                               Wanted{{.name = "sgd"}, {"sgd_momentum."}}, Wanted{{.name = "sgd", .momentum = 0}, {}},
                               Wanted{{.name = "lars"}, {"lars_momentum."}}}) {
    const Program program = program_of(wanted.config);
    EXPECT_EQ(program.state_bytes({StateRole::kMoment}),
              static_cast<int64_t>(wanted.moments.size()) * program.state_bytes({StateRole::kMaster}));
    EXPECT_EQ(moment_count(wanted.config), wanted.moments.size());
    for (size_t i = 0; i < wanted.moments.size(); ++i) {
      EXPECT_EQ(moment_name(wanted.config, i, "embed.weight"), wanted.moments[i] + "embed.weight");
      EXPECT_NE(program.find_state(wanted.moments[i] + "embed.weight"), nullptr);
    }
  }
}

TEST(Optimizer, GroupsSetDecayAndLearningRateByName) {
  for (const char* name : {"adamw", "sgd", "lamb", "lars"}) {
    const Program program = program_of({.name = name,
                                        .weight_decay = 0.25,
                                        .lr_factors = {"layers.*.mlp.*=0.5", "layers.*=2", "*.bias=0"},
                                        .no_decay = {"embed.*", "layers.0.attn.o.weight"}});
    const Graph& apply = program.graph("apply");
    auto nodes = updates(program);
    const auto decay = [&](const std::string& param) {  // LAMB's is in the direction
      return nodes.at(nodes.contains(param + ".direction") ? param + ".direction" : param)
          .attrs.get<double>("weight_decay");
    };
    EXPECT_EQ(decay("embed.weight"), 0);
    EXPECT_EQ(decay("layers.0.mlp.up.weight"), 0.25);
    EXPECT_EQ(decay("layers.0.mlp.up.bias"), 0);
    const auto factor = [&](const std::string& param) {
      const Node& update = nodes.at(param);
      Node rate = apply.node(update.inputs[static_cast<size_t>(op_facts(update.op).first_scalar)]);
      if (rate.op == Op::kTrustRatio) rate = apply.node(rate.operand("lr"));
      return rate.op == Op::kScale ? rate.attrs.get<double>("value") : 1.0;
    };
    EXPECT_EQ(factor("embed.weight"), 1);
    EXPECT_EQ(factor("layers.0.mlp.up.weight"), 0.5);
    EXPECT_EQ(factor("layers.0.mlp.up.bias"), 0.5) << "the first match counts";
    EXPECT_EQ(factor("layers.0.attn.q.weight"), 2);
  }
}

TEST(Optimizer, MistakesNameTheSetting) {
  const auto error = [](const OptimizerConfig& config) {
    return error_of([&] { validate(config), program_of(config); });
  };
  EXPECT_NE(error({.name = "adam"}).find("optimizer.name is 'adam' (want adamw, sgd, lamb, lars)"), std::string::npos);
  for (const char* text : {"embed.weight", "=2", "embed.*=", "embed.*=x", "embed.*=-1", ""})
    EXPECT_NE(error({.lr_factors = {text}}).find("want PATTERN=FACTOR"), std::string::npos) << text;
  EXPECT_NE(error({.lr_factors = {"embd.*=2"}}).find("optimizer.lr_factors: no parameter matches 'embd.*'"),
            std::string::npos);
  EXPECT_NE(error({.no_decay = {"embd"}}).find("optimizer.no_decay: no parameter matches"), std::string::npos);
  EXPECT_NE(error({.name = "sgd", .momentum = 0, .nesterov = true}).find("optimizer.nesterov"), std::string::npos);
  EXPECT_NE(error({.no_trust = {"none"}}).find("optimizer.no_trust: adamw has no trust ratios"), std::string::npos);
  EXPECT_NE(error({.name = "lars", .no_trust = {"embd"}}).find("optimizer.no_trust: no parameter matches 'embd'"),
            std::string::npos);
  EXPECT_NE(error({.lr = 1, .min_lr = 2}).find("optimizer.min_lr 2 exceeds"), std::string::npos);
  EXPECT_NE(error({.min_lr = -0.5}).find("optimizer.min_lr -0.5: want 0 or more, or -1"), std::string::npos);
}

TEST(Optimizer, AMinLrThatNobodySetIsAtMostLr) {
  OptimizerConfig low{.lr = 2e-5, .warmup_steps = 0};
  validate(low);
  for (const int64_t step : {1, 5, 10, 11}) EXPECT_EQ(learning_rate(low, 10, step), 2e-5) << step;
  EXPECT_EQ(learning_rate({.warmup_steps = 0}, 10, 11), 6e-5);
  EXPECT_EQ(learning_rate({.min_lr = 0, .warmup_steps = 0}, 10, 11), 0);
  RunConfig config, read;  // the record of a run may be taken up with a lower lr
  settings_of(read).load_yaml_text(settings_of(config).to_yaml(), "record");
  read.optimizer.lr = 1e-5;
  validate(read.optimizer);
}

// Bias corrections count updates, dropout's draws count steps.
TEST(Optimizer, SkippedStepsAreNoUpdates) {
  Batch batch = token_batch(2, 16, /*targets=*/true);
  for (size_t t = 0; t < 32; ++t) batch.ints("ids")[t] = batch.ints("targets")[t] = static_cast<int32_t>(t);
  batch.target_count = 32;
  const auto embeddings = [&](int64_t step, int64_t skipped) {
    StepperOptions options = small_options({}, interpreter_target(), "fp32");
    options.interpret = true;
    Stepper stepper(small_model(), options);
    initialize_weights(stepper.executor(), 3);
    stepper.step({.micro_batches = {&batch, 1}, .lr = 0.01, .step = step, .skipped = skipped});
    std::vector<float> values(40 * 32);
    stepper.executor().read_state("embed.weight", std::as_writable_bytes(std::span(values)));
    return values;
  };
  EXPECT_EQ(embeddings(1, 0), embeddings(5, 4));
  EXPECT_NE(embeddings(1, 0), embeddings(5, 0));
}

// The amaxes of a step whose gradients are not finite leave the histories of delayed scaling, however finite they are.
TEST(Optimizer, SkippedStepsLeaveTheHistoriesOfScales) {
  StepperOptions options = small_options({}, interpreter_target(), "fp8-delayed");
  options.interpret = true;
  Stepper stepper(small_model(), options);
  initialize_weights(stepper.executor(), 3);
  const auto fill = [&](const std::string& state, size_t count, float value) {
    const std::vector<float> values(count, value);
    stepper.executor().write_state(state, std::as_bytes(std::span(values)));
  };
  const auto scale_after = [&](float gradient) {
    fill("grad.embed.weight", 40 * 32, gradient), fill("amax.layers.0.attn.q.x", 1, 1e30f);
    input_as<float>(stepper.executor(), "apply", "lr")[0] = 0;
    input_as<float>(stepper.executor(), "apply", "step")[0] = 1;
    stepper.executor().run("apply");
    float scale = 0;
    stepper.executor().read_state("scale.layers.0.attn.q.x", std::as_writable_bytes(std::span(&scale, 1)));
    return scale;
  };
  EXPECT_EQ(scale_after(INFINITY), 1.0f);
  EXPECT_LT(scale_after(0), 1e-20f);
}

TEST(Optimizer, GroupsAreKeptInTheRecordOfARun) {
  RunConfig config, read;
  settings_of(config).set_words({"optimizer.lr_factors=*.bias=0.5,embed.*=2", "optimizer.no_decay=*"});
  settings_of(read).load_yaml_text(settings_of(config).to_yaml(), "record");
  EXPECT_EQ(read.optimizer.lr_factors, (std::vector<std::string>{"*.bias=0.5", "embed.*=2"}));
  EXPECT_EQ(read.optimizer.no_decay, std::vector<std::string>{"*"});
}

// Whether the rate of a parameter takes the trust ratio is a matter of its own.
TEST(Optimizer, ExemptionFromTheTrustRatioIsApartFromThatFromDecay) {
  for (const char* name : {"lamb", "lars"}) {
    const auto with_ratio = [&](std::vector<std::string> no_decay, std::vector<std::string> no_trust) {
      const Program program =
          program_of({.name = name, .no_decay = std::move(no_decay), .no_trust = std::move(no_trust)});
      std::set<std::string> found;
      for (const Node& node : program.graph("apply").nodes())
        if (node.op == Op::kTrustRatio) found.insert(node.name.substr(0, node.name.size() - 6));
      return found;
    };
    const std::string embed = "embed.weight", bias = "layers.0.mlp.up.bias", up = "layers.0.mlp.up.weight";
    const auto usual = with_ratio({}, {});
    EXPECT_TRUE(usual.contains(embed) && usual.contains(up) && !usual.contains(bias));
    EXPECT_FALSE(with_ratio({"embed.*"}, {}).contains(embed));
    const auto every = with_ratio({"embed.*"}, {"none"});
    EXPECT_TRUE(every.contains(embed) && every.contains(up) && every.contains(bias));
    const auto some = with_ratio({}, {"*.up.weight", "embed.*"});
    EXPECT_TRUE(!some.contains(embed) && !some.contains(up) && some.contains(bias));
  }
}

// A sharded optimiser exchanges what it updates and sums of squares, never gradients or moments.
TEST(Optimizer, TrustRatiosGatherNothingThatIsSharded) {
  std::map<std::string, int64_t> gathered, reduced;  // bytes
  for (const char* name : {"sgd", "lamb", "lars"}) {
    StepperOptions options = small_options({.name = name}, cpu_target(), "fp32");
    options.compile.parallel.mesh = {{1, 2, 1, 1}};
    options.compile.parallel.level = ShardLevel::kOptimizer;
    const Plan plan = compile(training_program(small_model(), options), options.compile);
    for (const Node& node : plan.program.graph("apply").nodes())
      for (const TensorType& type : node.results) {
        if (node.op == Op::kAllGather) gathered[name] += type.bytes();
        if (node.op == Op::kAllReduce) reduced[name] += type.bytes();
      }
  }
  EXPECT_EQ(gathered["lamb"], gathered["sgd"]);
  EXPECT_EQ(gathered["lars"], gathered["sgd"]);
  EXPECT_GE(reduced["lamb"], reduced["sgd"] + 16) << "of each matrix that is cut two sums";
  EXPECT_EQ(reduced["lars"], reduced["lamb"]);
}

// Five steps of every optimiser's graph against those of the references, by the definition and on CPUs.
TEST(Optimizer, StepsOfTheMlperfVectors) {
  const std::string path = test_data_path("mlperf_vectors/ops/optimisers.safetensors");
  if (path.empty()) GTEST_SKIP() << missing_test_data("mlperf_vectors/ops/optimisers.safetensors");
  const TensorSource file(path);
  const auto values = [&](const std::string& name) { return floats_of(file.read(name)); };
  const std::map<std::string, OptimizerConfig> optimizers = {
      {"lamb", {.name = "lamb", .lr = 0.02, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.01, .clip = 0}},
      {"lars", {.name = "lars", .lr = 1.5, .eps = 0, .weight_decay = 5e-5, .clip = 0}},
      {"sgd", {.name = "sgd", .lr = 0.1, .weight_decay = 1e-4, .clip = 0}},
      {"nag", {.name = "sgd", .lr = 0.1, .nesterov = true, .weight_decay = 1e-4, .clip = 0}},
      {"adam", {.lr = 0.01, .beta2 = 0.999, .weight_decay = 0, .clip = 0}}};
  for (const auto& [name, config] : optimizers) {
    const Shape b_shape = config.name == "sgd" ? Shape{1, 7} : Shape{7};  // torch's has its decay
    const std::vector<std::pair<std::string, Shape>> shapes = {{"w", {5, 7}}, {"b", b_shape}, {"zero", {3, 4}}};
    for (const bool interpreted : {true, false}) {
      Graph params(GraphRole::kTrain);
      Builder builder(params);
      for (const auto& [param, shape] : shapes) builder.param(param, shape);
      Program program;
      program.add_graph(apply_graph(params, config, program));
      const auto executor = interpreted
                                ? make_interpreter(std::move(program))
                                : make_cpu_executor(compile(std::move(program),
                                                            {.target = cpu_target(), .recipe = parse_recipe("fp32")}));
      const auto write = [&](const std::string& state, const std::vector<float>& to) {
        executor->write_state(state, std::as_bytes(std::span(to)));
      };
      for (const auto& [param, shape] : shapes) write(param, values("p0." + param));
      for (int step = 0; step < 5; ++step) {
        for (const auto& [param, shape] : shapes) write("grad." + param, values(fmt::format("g{}.{}", step, param)));
        input_as<float>(*executor, "apply", "lr")[0] = static_cast<float>(config.lr);
        input_as<float>(*executor, "apply", "step")[0] = static_cast<float>(step + 1);
        executor->run("apply");
      }
      for (const auto& [param, shape] : shapes) {
        const std::vector<float> wanted = values(name + "." + param);
        std::vector<float> ours(wanted.size());
        executor->read_state(param, std::as_writable_bytes(std::span(ours)));
        for (size_t i = 0; i < ours.size(); ++i)
          EXPECT_NEAR(ours[i], wanted[i], 1e-5 * std::max(1.0F, std::abs(wanted[i])))
              << name << " " << param << " " << i;
      }
    }
  }
}

// A step with a factor is one at that multiple of the learning rate.
TEST(Optimizer, FactorsMultiplyTheLearningRate) {
  Batch batch = token_batch(2, 16, /*targets=*/true);
  for (size_t t = 0; t < 32; ++t) batch.ints("ids")[t] = static_cast<int32_t>(t), batch.ints("targets")[t] = 5;
  batch.target_count = 32;
  const auto embeddings = [&](const OptimizerConfig& config, double lr) {
    StepperOptions options = small_options(config, interpreter_target(), "fp32");
    options.interpret = true;
    Stepper stepper(small_model(), options);
    initialize_weights(stepper.executor(), 3);
    stepper.step({.micro_batches = {&batch, 1}, .lr = lr});
    std::vector<float> values(40 * 32);
    stepper.executor().read_state("embed.weight", std::as_writable_bytes(std::span(values)));
    return values;
  };
  for (const char* name : {"adamw", "sgd", "lamb", "lars"}) {
    const auto half = embeddings({.name = name, .lr_factors = {"embed.weight=0.5"}}, 0.25);
    EXPECT_EQ(half, embeddings({.name = name}, 0.125)) << name;
    EXPECT_NE(half, embeddings({.name = name}, 0.25)) << name;
  }
}

// Whatever the optimiser: under FP8 the compute copies are made in the groups of updates, which change no bit.
TEST(Optimizer, GroupedUpdatesLeaveEveryBitAsItWas) {
  Batch batch = token_batch(2, 16, /*targets=*/true);
  for (size_t t = 0; t < 32; ++t) batch.ints("ids")[t] = batch.ints("targets")[t] = static_cast<int32_t>(t);
  batch.target_count = 32;
  for (const char* name : {"adamw", "sgd", "lamb", "lars"}) {
    for (const char* recipe : {"bf16", "fp8-current", "fp8-delayed", "fp8-block"}) {
      SCOPED_TRACE(std::string(name) + " " + recipe);
      std::map<std::string, std::vector<std::byte>> states[2];
      for (const bool grouped : {false, true}) {
        StepperOptions options = small_options({.name = name}, h200_target(), recipe);
        if (!grouped) options.compile.disabled = {"group_updates"};
        Stepper stepper(small_model(), options);
        EXPECT_EQ(updates(stepper.plan().program).empty(), grouped);
        for (const Node& node : stepper.plan().program.graph("apply").nodes())
          EXPECT_FALSE(grouped &&
                       (node.op == Op::kTrustRatio || (node.op == Op::kSquareSum && !node.attr<bool>("stages"))));
        initialize_weights(stepper.executor(), 3);
        for (int64_t step = 1; step <= 2; ++step)
          stepper.step({.micro_batches = {&batch, 1}, .lr = 0.01, .step = step});
        for (const StateEntry& entry : stepper.plan().program.states()) {
          std::vector<std::byte>& bytes = states[grouped][entry.name];
          bytes.resize(static_cast<size_t>(entry.type.bytes()));
          stepper.executor().read_state(entry.name, bytes);
        }
      }
      EXPECT_EQ(states[0], states[1]);
      EXPECT_GT(states[0].size(), 0u);
    }
  }
}

}  // namespace
}  // namespace octet
