// Seconds of graphs as people are told them: by what nodes reach within steps, and by the links of machines.
#include "passes/node_clock.h"

#include <gtest/gtest.h>

#include "ir/builder.h"

namespace octet {
namespace {

Graph attention_and_product(int64_t tokens, int64_t heads, int64_t dim, DType dtype) {
  Graph graph("train");
  Builder b(graph);
  const Value x = b.input("x", {dtype, {tokens, heads * dim}});
  const Value segments = b.input("segments", {DType::kI32, {2}});
  b.emit(Op::kAttention, {x, x, x, segments},
         {{"heads", heads},
          {"kv_heads", heads},
          {"head_dim", dim},
          {"scale", 1.0},
          {"causal", true},
          {"equal_length", tokens}});
  b.matmul(x, b.input("w", {dtype, {4 * heads * dim, heads * dim}}), false, true);
  return graph;
}

double seconds_of_kind(const Graph& graph, WorkKind kind, const Target& target) {
  return graph_seconds(graph, target).kernels[static_cast<size_t>(kind)];
}

TEST(NodeClock, TargetsWithoutRatesOfStepsHaveTheTimesThatPassesChooseBy) {
  const Graph graph = attention_and_product(4096, 8, 128, DType::kBF16);
  Target target = h200_target();
  target.step = {};
  double all = 0;
  for (int32_t i = 0; i < graph.size(); ++i) all += seconds_of(graph, NodeId{i}, target).all();
  EXPECT_DOUBLE_EQ(graph_seconds(graph, target).all(), all);
  EXPECT_NE(graph_seconds(graph, h200_target()).all(), all);
}

TEST(NodeClock, AttentionIsSlowerWithShortSequencesAndNarrowHeads) {
  const Target target = h200_target();
  const auto rate = [&](int64_t tokens, int64_t heads, int64_t dim) {
    const Graph graph = attention_and_product(tokens, heads, dim, DType::kBF16);
    const double flops = 2.0 * static_cast<double>(heads * dim * tokens * tokens);  // causal
    return flops / seconds_of_kind(graph, WorkKind::kAttention, target);
  };
  EXPECT_GT(rate(8192, 32, 128), rate(2048, 32, 128));
  EXPECT_GT(rate(8192, 32, 128), rate(8192, 64, 64));
  EXPECT_LT(rate(8192, 32, 128), target.step.attention_forward);
}

// Drawing takes as long for a narrow head as for a wide one.
TEST(NodeClock, DropoutSlowsAttentionDown) {
  Target target = h200_target();
  target.step.byte_dropout_forward = 2 * target.step.dropout_forward;
  const auto seconds = [&](double dropout, int64_t bits, int64_t dim) {
    Graph graph;
    Builder b(graph);
    const Value x = b.input("x", {DType::kBF16, {4096, 16 * dim}});
    AttentionOptions options{.heads = 16, .kv_heads = 16, .head_dim = dim, .max_length = 512};
    options.dropout = dropout, options.dropout_bits = bits;
    b.output("y", b.attention(x, x, x, b.segments(8), options).out);
    return seconds_of_kind(graph, WorkKind::kAttention, target);
  };
  EXPECT_GT(seconds(0.1, 32, 128), 1.5 * seconds(0, 32, 128));
  EXPECT_NEAR(seconds(0.1, 32, 128), seconds(0.1, 32, 64), 2e-6);
  EXPECT_NEAR(seconds(0.1, 32, 128), 2 * seconds(0.1, 8, 128), 3e-6);
}

TEST(NodeClock, FasterDevicesTakeNoLonger) {
  const Graph graph = attention_and_product(4096, 16, 128, DType::kBF16);
  const double before = graph_seconds(graph, h200_target()).all();
  for (double StepRates::*rate :
       {&StepRates::bf16, &StepRates::fp8, &StepRates::fp8_block, &StepRates::attention_forward,
        &StepRates::attention_backward, &StepRates::bytes_per_second}) {
    Target faster = h200_target();
    faster.step.*rate *= 2;
    EXPECT_LE(graph_seconds(graph, faster).all(), before);
  }
}

TEST(NodeClock, GroupsThatLeaveAMachineUseItsAdapters) {
  const Target target = h200_target();  // machines of 8
  const Mesh mesh{{4, 2, 1, 8}};
  constexpr double kBytes = 1e9;
  const double near = target.link_latency + kBytes / target.link_bytes_per_second;
  const double far = target.node_link_latency + kBytes / target.node_link_bytes_per_second;
  EXPECT_DOUBLE_EQ(link_seconds(kBytes, {Axis::kTensor}, mesh, target), near);
  EXPECT_DOUBLE_EQ(link_seconds(kBytes, {Axis::kData}, mesh, target), far);
  EXPECT_DOUBLE_EQ(link_seconds(kBytes, {Axis::kPipeline}, mesh, target), far);
  EXPECT_DOUBLE_EQ(link_seconds(kBytes, {Axis::kData, Axis::kTensor}, {{1, 2, 1, 4}}, target), near);
  Target one = target;
  one.node_devices = 0;
  EXPECT_DOUBLE_EQ(link_seconds(kBytes, {Axis::kData}, mesh, one), near);
  EXPECT_EQ(link_seconds(kBytes, {Axis::kData}, mesh, Target()), 0);
}

}  // namespace
}  // namespace octet
