#include "passes/fuse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "ir/facts.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/fuse_patterns.h"
#include "passes/precision.h"
#include "passes/tiny_program.h"

namespace octet {
namespace {

Target with_fusions(std::vector<std::string> kinds) {
  Target target = interpreter_target();
  target.fusions = std::move(kinds);
  return target;
}

Target with_all_fusions() {
  std::vector<std::string> kinds;
  for (const FusionPattern& pattern : fusion_patterns()) kinds.push_back(pattern.kind);
  return with_fusions(kinds);
}

std::map<std::string, int> kinds_of(const Graph& graph) {
  std::map<std::string, int> kinds;
  for (const Node& node : graph.nodes()) {
    if (node.op == Op::kFusion) ++kinds[node.attrs.get<std::string>("kind")];
  }
  return kinds;
}

Program precise(const std::string& architecture, const std::string& recipe) {
  Program program = tiny::training_program(architecture);
  precision(program, {.target = interpreter_target(), .recipe = parse_recipe(recipe)});
  return program;
}

// Losses of some steps and the weights after them.
struct Trace {
  std::vector<double> losses;
  std::vector<std::vector<std::byte>> weights;
  bool operator==(const Trace&) const = default;
};
Trace trace(Program program) {
  verify(program);
  auto executor = make_interpreter(std::move(program));
  tiny::initialize(*executor);
  Trace result{.losses = tiny::train(*executor, 2)};
  for (const StateEntry& entry : executor->program().states()) {
    if (entry.kind == StateKind::kParam) result.weights.push_back(tiny::state(*executor, entry.name));
  }
  return result;
}

using Case = std::pair<const char*, const char*>;
class FuseOfRecipe : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Recipes, FuseOfRecipe,
                         ::testing::Values(Case{"gpt2", "fp32"}, Case{"gpt2", "bf16"}, Case{"gpt2", "fp8-current"},
                                           Case{"gpt2", "fp8-delayed"}, Case{"llama", "bf16"},
                                           Case{"llama", "fp8-current"}, Case{"llama", "fp8-delayed"},
                                           Case{"llama", "fp8-block"}, Case{"gemma", "fp8-delayed"},
                                           Case{"opt", "fp8-delayed"}));

TEST_P(FuseOfRecipe, FusedEqualsUnfusedBitForBit) {
  auto [architecture, recipe] = GetParam();
  Program unfused = precise(architecture, recipe), fused = unfused;
  EXPECT_TRUE(fuse(fused, {.target = with_all_fusions()}));
  EXPECT_EQ(trace(fused), trace(unfused));
}

TEST(Fuse, MakesOnlyWhatTheTargetNames) {
  Program program = precise("llama", "fp8-delayed");
  EXPECT_FALSE(fuse(program, {.target = interpreter_target()}));
  fuse(program, {.target = with_fusions({"swiglu"})});
  EXPECT_EQ(kinds_of(program.graph("train")), (std::map<std::string, int>{{"swiglu", 2}}));
}

TEST(Fuse, CountsPerRecipe) {
  using Kinds = std::map<std::string, int>;
  auto kinds = [](const char* architecture, const char* recipe, const char* graph) {
    Program program = precise(architecture, recipe);
    fuse(program, {.target = with_all_fusions()});
    return kinds_of(program.graph(graph));
  };
  // Two layers: norm1 of layer 0 has no add before it; the last norm feeds the head, which is not quantized.
  EXPECT_EQ(kinds("llama", "fp8-delayed", "eval"),
            (Kinds{{"norm_quantize", 1}, {"add_norm_quantize", 3}, {"swiglu_quantize", 2}, {"add_norm", 1}}));
  EXPECT_EQ(kinds("llama", "fp8-block", "eval"),
            (Kinds{{"norm_quantize", 1}, {"add_norm_quantize", 3}, {"swiglu_quantize", 2}, {"add_norm", 1}}));
  EXPECT_EQ(kinds("llama", "fp8-current", "eval"),
            (Kinds{{"norm_amax", 1}, {"add_norm_amax", 3}, {"swiglu_amax", 2}, {"add_norm", 1}}));
  // The embedding sum of gpt2 is an add before norm1 of layer 0; the bias of up goes to its gelu, the other five of a
  // layer to their products.
  EXPECT_EQ(kinds("gpt2", "bf16", "eval"), (Kinds{{"add_norm", 5}, {"bias_gelu", 2}, {"matmul_bias", 10}}));
  EXPECT_EQ(kinds("gpt2", "fp8-delayed", "eval"),
            (Kinds{{"add_norm_quantize", 4}, {"bias_gelu_quantize", 2}, {"add_norm", 1}, {"matmul_bias", 10}}));
  EXPECT_EQ(kinds("gpt2", "bf16", "train").at("gelu_grad_bias"), 2);
  EXPECT_EQ(kinds("llama", "bf16", "train").at("swiglu_grad"), 2);
  EXPECT_EQ(kinds("llama", "fp8-current", "train").at("swiglu_grad_amax"), 2);
  EXPECT_EQ(kinds("llama", "fp8-block", "train").at("swiglu_grad_quantize"), 2);
  EXPECT_EQ(kinds("gpt2", "fp8-current", "train").at("gelu_grad_bias_amax"), 2);
  EXPECT_EQ(kinds("gpt2", "fp8-delayed", "train").at("gelu_grad_bias_quantize"), 2);
  EXPECT_EQ(kinds("gpt2", "fp8-delayed", "train").at("bias_grad_quantize"), 10);  // q, k, v, o, down
  EXPECT_EQ(kinds("gemma", "fp8-delayed", "eval").at("geglu_quantize"), 2);
  EXPECT_EQ(kinds("opt", "fp8-block", "eval").at("relu_quantize"), 2);
  // The gradient of the residual stream is the dy of the linear before, but for the embedding's.
  EXPECT_EQ(kinds("gpt2", "fp8-current", "train").at("norm_grad_add_bias_amax"), 3);
  EXPECT_EQ(kinds("gpt2", "bf16", "train").at("norm_grad_add_bias"), 3);
  EXPECT_EQ(kinds("llama", "fp8-current", "train").at("norm_grad_add_amax"), 3);
}

TEST(Fuse, ResultsNobodyReadsAreDropped) {
  Program program = precise("gpt2", "bf16");
  fuse(program, {.target = with_fusions({"bias_gelu"})});
  auto outputs = [&](const char* graph) {
    for (const Node& node : program.graph(graph).nodes()) {
      if (node.op != Op::kFusion) continue;
      std::vector<std::string> names;
      for (const NamedValue& output : node.body->outputs()) names.push_back(output.name);
      return names;
    }
    return std::vector<std::string>{};
  };
  EXPECT_EQ(outputs("eval"), (std::vector<std::string>{"gelu.0"}));
  EXPECT_EQ(outputs("train"), (std::vector<std::string>{"bias.0", "gelu.0"}));  // backward reads the sum
}

// A scale made from the norm's own result stands between norm and quantize.
TEST(Fuse, QuantizeWithItsOwnScaleStaysApart) {
  Program program = precise("llama", "fp8-current");
  fuse(program, {.target = with_fusions({"norm_quantize", "swiglu_quantize", "add_norm_quantize"})});
  EXPECT_TRUE(kinds_of(program.graph("train")).empty());
}

TEST(Fuse, SumsMergeIntoProducts) {
  Program program = precise("llama", "bf16"), merged = program;
  int adds = tiny::count(program.graph("eval"), Op::kAdd);
  fuse(merged, {.target = with_fusions({"matmul_residual"})});
  verify(merged);
  EXPECT_EQ(tiny::count(merged.graph("eval"), Op::kAdd), adds - 4);  // two residuals a layer
  Trace plain = trace(program), fused = trace(merged);
  // One bf16 rounding less per residual: 2^-9 relative of a value of order 1, on losses of about 3.7.
  for (size_t i = 0; i < plain.losses.size(); ++i) EXPECT_NEAR(fused.losses[i], plain.losses[i], 0.02);
}

TEST(Fuse, TextInTextOut) {
  Graph graph = parse_graph(R"(graph @eval stage fused
  %0 = input : bf16[4,8] @x
  %1 = input : bf16[4,8] @residual
  %2 = state : f32[8] @weight
  %3 = add %1, %0 @sum layer 2
  %4 = rms_norm %3, %2 {eps=1e-05} @norm layer 2
  %5 = state : f32[1] @scale.x
  %6 = quantize %4, %5 {format="e4m3", scaling="tensor"} @norm.x layer 2
  output @sum %3
  output @codes %6
  output @scale_inv %6.1
end
)");
  EXPECT_TRUE(fuse_graph(graph, with_fusions({"add_norm_quantize"})));
  verify(graph);
  EXPECT_EQ(print(graph), R"(graph @eval stage fused
  %0 = input : bf16[4,8] @x
  %1 = input : bf16[4,8] @residual
  %2 = state : f32[8] @weight
  %3 = state : f32[1] @scale.x
  %4 = fusion %1, %0, %2, %3 {kind="add_norm_quantize"} : bf16[4,8], e4m3[4,8], f32[1] @sum layer 2 body
    graph @add_norm_quantize stage fused
      %0 = input : bf16[4,8] @add.0
      %1 = input : bf16[4,8] @add.1
      %2 = input : f32[8] @norm.1
      %3 = input : f32[1] @quantize.1
      %4 = add %0, %1 : bf16[4,8] @add layer 2
      %5 = rms_norm %4, %2 {eps=1e-05} : bf16[4,8], f32[4] @norm layer 2
      %6 = quantize %5, %3 {format="e4m3", scaling="tensor"} : e4m3[4,8], f32[1], e4m3[8,4], f32[1], f32[1] @quantize layer 2
      output @add.0 %4
      output @quantize.0 %6
      output @quantize.1 %6.1
    end
  output @sum %4
  output @codes %4.1
  output @scale_inv %4.2
end
)");
}

// A reader between the members feeds one of them: fusing would need its own result.
TEST(Fuse, KeepsACycleApart) {
  Graph graph = parse_graph(R"(graph @eval stage precise
  %0 = input : f32[4,8] @x
  %1 = silu %0 @silu
  %2 = scale %1 {value=2.0} @between
  %3 = mul %1, %2 @mul
  output @y %3
end
)");
  EXPECT_FALSE(fuse_graph(graph, with_fusions({"swiglu"})));
}

TEST(Fuse, EveryRowHasAKindOfItsOwn) {
  std::map<std::string, int> seen;
  for (const FusionPattern& pattern : fusion_patterns()) EXPECT_EQ(++seen[pattern.kind], 1) << pattern.kind;
}

}  // namespace
}  // namespace octet
