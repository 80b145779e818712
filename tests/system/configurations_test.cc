// One training run under other configurations of the compiler: a pass or a step left out, no fusions, an odd multiple
// of the vocabulary, other recomputation. Every logical tensor and loss must come out as in the run with everything on:
// bit for bit where that is what the passes promise. Programs for the CPU run on the CPU executor, programs for the
// GPU, whose Target names every fusion and merges updates, on the interpreter.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "exec/logical_states.h"
#include "ir/text.h"
#include "train/batches.h"
#include "train/language_model.h"
#include "train/stepper.h"
#include "weights/weights.h"

namespace octet {
namespace {

constexpr int64_t kVocab = 64, kSequences = 2, kLength = 12;

ModelConfig tiny_model(const std::string& family, double dropout) {
  ModelConfig c = model_family(family);
  c.vocab_size = kVocab, c.max_positions = 32, c.hidden = 32, c.layers = 2, c.heads = 4, c.intermediate = 64;
  if (family == "llama") c.kv_heads = 2;
  c.dropout = dropout;
  return c;
}

struct Outcome {
  uint64_t program = 0;  // its fingerprint: what is compared must differ in it
  std::vector<double> losses;
  std::map<std::string, std::vector<std::byte>> tensors;  // logical ones, gradients of the last step too
};

Batch batch(int number) {
  BatchPacker packer(kSequences, kLength, false);
  for (int s = 0; s < kSequences; ++s) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i <= kLength; ++i)
      tokens.push_back(static_cast<int32_t>((7 * number + 11 * s + i * i) % kVocab));
    packer.add(tokens, {0});
  }
  return packer.finish();
}

// Steps of two micro-batches each, then an evaluation.
Outcome run(const std::string& family, const CompileOptions& compile, int steps = 2, double dropout = 0.1) {
  StepperOptions options{
      .optimizer = {.clip = 1.0}, .compile = compile, .interpret = compile.target.device == Device::kCuda};
  Stepper stepper(LanguageModel(tiny_model(family, dropout), kSequences, kLength), options);
  initialize_weights(stepper.executor(), 5);
  Outcome outcome{.program = fingerprint(stepper.plan().program)};
  for (int step = 0; step < steps; ++step) {
    const std::vector<Batch> micro = {batch(2 * step), batch(2 * step + 1)};
    outcome.losses.push_back(stepper.step({.micro_batches = micro, .lr = 1e-2, .step = step + 1, .seed = 3}).loss);
  }
  outcome.losses.push_back(stepper.evaluate(batch(1))[0] / static_cast<double>(batch(1).target_count));
  for (const LogicalState& tensor : logical_states(stepper.executor().program())) {
    std::vector<std::byte>& bytes = outcome.tensors[tensor.name];
    bytes.resize(static_cast<size_t>(tensor.type.bytes()));
    read_logical(stepper.executor(), tensor, bytes);
  }
  return outcome;
}

double relative_distance(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  double error = 0, size = 0;
  for (size_t i = 0; i + sizeof(float) <= a.size(); i += sizeof(float)) {
    float x = 0, y = 0;
    std::memcpy(&x, &a[i], sizeof x);
    std::memcpy(&y, &b[i], sizeof y);
    error += std::pow(static_cast<double>(x) - y, 2);
    size += std::pow(static_cast<double>(y), 2);
  }
  return std::sqrt(error / std::max(size, 1e-20));
}

struct Configuration {
  const char* name;
  void (*change)(CompileOptions&);
};

// Tolerance 0: the same bits. Otherwise compares losses and gradients: Adam's first step has full length even for a
// gradient that is noise.
void expect_equal(const Outcome& found, const Outcome& base, double tolerance) {
  EXPECT_NE(found.program, base.program) << "the same program twice: nothing was compared";
  ASSERT_EQ(found.losses.size(), base.losses.size());
  for (size_t i = 0; i < base.losses.size(); ++i)
    EXPECT_LE(std::abs(found.losses[i] - base.losses[i]), tolerance * base.losses[i]) << "loss " << i;
  ASSERT_EQ(found.tensors.size(), base.tensors.size());
  for (const auto& [name, bytes] : base.tensors) {
    ASSERT_EQ(found.tensors.at(name).size(), bytes.size()) << name;
    if (tolerance == 0) {
      EXPECT_TRUE(found.tensors.at(name) == bytes) << name;
    } else if (name.starts_with("grad.")) {
      EXPECT_LE(relative_distance(found.tensors.at(name), bytes), tolerance) << name;
    }
  }
}

using Case = std::tuple<const char*, const char*>;  // family, recipe
class Configurations : public testing::TestWithParam<Case> {};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, Configurations,
                         testing::Combine(testing::Values("gpt2", "llama", "gptj"),
                                          testing::Values("fp32", "bf16", "fp8-current", "fp8-delayed", "fp8-block")),
                         case_name);

void compare(const CompileOptions& base, std::span<const Configuration> configurations, const std::string& family) {
  const Outcome expected = run(family, base);
  for (const Configuration& c : configurations) {
    SCOPED_TRACE(c.name);
    CompileOptions options = base;
    c.change(options);
    expect_equal(run(family, options), expected, 0);
  }
}

TEST_P(Configurations, OfTheCpuGiveTheSameRun) {
  const auto [family, recipe] = GetParam();
  CompileOptions base{.target = cpu_target(), .recipe = parse_recipe(recipe), .recompute = Recompute::kSelective};
  base.target.vocab_multiple = 3;
  constexpr Configuration kConfigurations[] = {
      {"no fusions", [](CompileOptions& o) { o.target.fusions = {}; }},
      {"no recomputation", [](CompileOptions& o) { o.recompute = Recompute::kNone; }},
      {"light recomputation", [](CompileOptions& o) { o.recompute = Recompute::kLight; }},
      {"full recomputation", [](CompileOptions& o) { o.recompute = Recompute::kFull; }},
      {"every pass but pack off",
       [](CompileOptions& o) {
         o.disabled = {"merge_common_nodes", "recompute", "fuse", "group_updates", "remove_dead_nodes"};
       }},
  };
  compare(base, kConfigurations, family);
}

TEST_P(Configurations, OfTheGpuGiveTheSameRun) {
  const auto [family, recipe] = GetParam();
  CompileOptions base{.target = h200_target(), .recipe = parse_recipe(recipe), .recompute = Recompute::kLight};
  base.target.vocab_multiple = 3;
  base.target.fp8_alignment = 8;
  base.disabled = {"merge_sums"};  // these change a rounding: ConfigurationsOfSums
  constexpr Configuration kConfigurations[] = {
      {"fuse_patterns off", [](CompileOptions& o) { o.disabled.insert("fuse_patterns"); }},
      {"group_updates off", [](CompileOptions& o) { o.disabled.insert("group_updates"); }},
      {"pack off", [](CompileOptions& o) { o.disabled.insert("pack"); }},
      {"full recomputation", [](CompileOptions& o) { o.recompute = Recompute::kFull; }},
      {"every pass off",
       [](CompileOptions& o) {
         o.disabled = {"merge_common_nodes", "recompute", "fuse", "pack", "group_updates", "remove_dead_nodes"};
       }},
  };
  compare(base, kConfigurations, family);
}

// One step in float32, where a sum is rounded elsewhere: a product that starts from a sum rounds once where two nodes
// round twice, and a product over a padded vocabulary may add in another order. (Families without biases of keys, whose
// gradients are nothing but rounding.)
TEST(ConfigurationsOfSums, AgreeAsFloat32SumsDo) {
  CompileOptions gpu{.target = h200_target(), .recipe = parse_recipe("fp32")},
      cpu{.target = cpu_target(), .recipe = parse_recipe("fp32")};
  cpu.target.vocab_multiple = 3;
  for (const char* family : {"llama", "gptj"}) {
    for (const auto& [base, step] :
         {std::pair(gpu, "fold_sums"), std::pair(gpu, "merge_sums"), std::pair(cpu, "pad_vocab")}) {
      SCOPED_TRACE(std::string(family) + " without " + step);
      CompileOptions options = base;
      options.disabled = {step};
      expect_equal(run(family, options, 1, 0), run(family, base, 1, 0), 1e-6);
    }
  }
}

}  // namespace
}  // namespace octet
