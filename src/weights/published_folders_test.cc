// Folders of testdata, made by GPTQModel, compressed-tensors and transformers (tests/models/make_packed_cases.py): zero
// points of GPTQ's second layout, sorted columns, mixtures in 4 bits, dense layers among experts.
#include <gtest/gtest.h>

#include "base/testing/test_data.h"
#include "eval/testing/folder_logits.h"
#include "ir/text.h"
#include "weights/packed_folder.h"

namespace octet {
namespace {

std::string testdata(const std::string& name) { return source_dir() + "/src/weights/testdata/" + name; }

TEST(PublishedFolders, EqualTheirDequantizedWeights) {
  for (const char* name : {"gptq_v2_act_order", "gptq_v2_8bit", "gptq_qwen3_moe", "ct_qwen2_moe", "dense_layers"}) {
    const std::string folder = testdata(name);
    const std::vector<float> expected = expected_logits(folder);
    EXPECT_LT(largest_difference(logits(folder, "fp32", cpu_target()), expected), 2e-4) << name;
    EXPECT_LT(largest_difference(interpreted(folder, "fp32"), expected), 2e-4) << name;
  }
}

TEST(PublishedFolders, RunTheirOwnCodes) {
  for (const char* name : {"gptq_v2_act_order", "gptq_v2_8bit", "gptq_qwen3_moe", "ct_qwen2_moe"}) {
    const std::string folder = testdata(name);
    EXPECT_EQ(open_weights(folder)->recipe()->name, "w4i8") << name;
    const std::vector<float> expected = expected_logits(folder), cpu = logits(folder, "", cpu_target());
    EXPECT_LT(distance(cpu, expected), 0.1) << name << ": x has codes, and few of them a row";
    EXPECT_LT(distance(cpu, interpreted(folder, "w4i8")), 1e-3) << name;
    EXPECT_LT(distance(interpreted(folder, "w4a16"), expected), 0.05) << name;
    EXPECT_EQ(cpu, logits(folder, "", cpu_target(), 3)) << name << ": few rows are many rows";
  }
}

IntegerWeights weights_of(const std::string& folder, const std::string& gemm) {
  const Recipe recipe = *open_weights(folder)->recipe();
  const GemmPrecision decision = recipe.decide(gemm, GemmRole::kFprop);
  EXPECT_TRUE(decision.codes) << gemm;
  return decision.weights;
}

TEST(PublishedFolders, ZeroPointsAndSortedColumnsAreFound) {
  const IntegerWeights act_order = weights_of(testdata("gptq_v2_act_order"), "layers.1.mlp.down");
  EXPECT_TRUE(act_order.zero_points);
  EXPECT_TRUE(act_order.sorted_columns);
  const IntegerWeights symmetric = weights_of(testdata("gptq_v2_8bit"), "layers.0.attn.q");
  EXPECT_FALSE(symmetric.zero_points);
  EXPECT_FALSE(symmetric.sorted_columns);
  EXPECT_EQ(symmetric.format, DType::kI8);
  EXPECT_TRUE(weights_of(testdata("ct_qwen2_moe"), "layers.0.mlp.experts.gate").zero_points);
  const Recipe mixture = *open_weights(testdata("gptq_qwen3_moe"))->recipe();
  EXPECT_TRUE(mixture.decide("layers.0.attn.q", GemmRole::kFprop).codes);
  EXPECT_FALSE(mixture.decide("layers.0.mlp.experts.up", GemmRole::kFprop).codes) << "each expert has its own order";
}

TEST(PublishedFolders, ExpertsRunInCodes) {
  const auto weights = open_weights(testdata("ct_qwen2_moe"));
  const auto experts = [&](const Target& target, const char* recipe) {
    Graph graph("logits");
    Builder builder(graph);
    builder.output("logits",
                   build_logits(builder, weights->config(), {.tokens = 16, .max_segments = 1, .max_length = 16}));
    Program program;
    program.add_graph(std::move(graph));
    const Plan plan =
        compile(std::move(program), {.target = target, .recipe = serving_recipe(*weights, target, recipe)});
    std::vector<std::string> found;
    for (const Node& node : plan.program.graph("logits").nodes()) {
      if (node.op != Op::kScaledGroupedMatmul && node.op != Op::kGroupedMatmul) continue;
      const bool scaled = node.op == Op::kScaledGroupedMatmul;
      const Value w = node.inputs[scaled ? 2 : 1];
      found.push_back(std::string(dtype_name(plan.program.graph("logits").dtype(w))) +
                      (scaled ? " " + node.attr<std::string>("order") : ""));
    }
    return found;
  };
  EXPECT_EQ(experts(cpu_target(), "w4i8"), std::vector<std::string>(3, "i4 rows16"));
  EXPECT_EQ(experts(interpreter_target(), "w4i8"), std::vector<std::string>(3, "i4 "));
  EXPECT_EQ(experts(h200_target(), "w4a8"),
            std::vector<std::string>(2, "i4 "));  // gate and up as one; no order: narrow
  EXPECT_EQ(experts(h200_target(), "w8a8"), std::vector<std::string>(2, "i8 "));
}

TEST(PublishedFolders, CodesWithoutKernelsRunAsBf16) {
  const std::string eight = testdata("gptq_v2_8bit"), four = testdata("gptq_v2_act_order");
  EXPECT_EQ(serving_recipe(*open_weights(four), h200_target(), "").name, "w4a8");
  EXPECT_EQ(serving_recipe(*open_weights(eight), cpu_target(), "").name, "w4i8");
  const auto weights = open_weights(eight);
  const Recipe recipe = serving_recipe(*weights, h200_target(), "");
  EXPECT_EQ(recipe.name, "bf16");
  EXPECT_TRUE(recipe.decisions.empty());
  Graph graph("logits");
  Builder builder(graph);
  builder.output("logits",
                 build_logits(builder, weights->config(), {.tokens = 16, .max_segments = 1, .max_length = 16}));
  Program program;
  program.add_graph(std::move(graph));
  const Plan plan = compile(std::move(program), {.target = h200_target(), .recipe = recipe});
  for (const StateEntry& entry : plan.program.states()) EXPECT_NE(entry.type.dtype, DType::kI8) << entry.name;
  // The same weights where they can run: a CPU without products of codes.
  Target cpu = cpu_target();
  cpu.integer_products.clear();
  EXPECT_EQ(logits(eight, "", cpu), logits(eight, "bf16", cpu_target()));
  EXPECT_LT(distance(logits(eight, "", cpu), expected_logits(eight)), 0.03);
}

TEST(PublishedFolders, DenseLayersAmongExperts) {
  const ModelConfig config = open_weights(testdata("dense_layers"))->config();
  EXPECT_EQ(config.layers, 4);
  std::vector<int64_t> dense = config.dense_layers;
  std::ranges::sort(dense);
  EXPECT_EQ(dense, (std::vector<int64_t>{0, 2, 3}));
}

}  // namespace
}  // namespace octet
