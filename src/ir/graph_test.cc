// The graph and its builder: types, leaves, messages.
#include "ir/graph.h"

#include <gtest/gtest.h>

#include "base/testing/test_error.h"
#include "ir/builder.h"
#include "ir/facts.h"

namespace octet {
namespace {

TensorType floats(Shape shape) { return {DType::kF32, std::move(shape)}; }

TEST(Graph, BuildsALinearWithNamesLayersAndTypes) {
  Graph graph;
  Builder b(graph);
  Value x = b.input("x", floats({4, 8}));
  auto layer = b.layer(3);
  auto scope = b.scope("mlp");
  Value y = b.linear(x, "up", 16, {.bias = true});
  EXPECT_EQ(graph.shape(y), (Shape{4, 16}));
  EXPECT_EQ(graph.node(y).name, "layers.3.mlp.up.add_bias");
  EXPECT_EQ(graph.node(y).layer, 3);
  const Node& product = graph.node(graph.node(y).inputs[0]);
  EXPECT_EQ(product.attr<std::string>("gemm"), "layers.3.mlp.up");
  EXPECT_EQ(product.attr<std::string>("role"), "fprop");
  EXPECT_TRUE(graph.find_leaf(Op::kParam, "layers.3.mlp.up.weight").exists());
  EXPECT_EQ(graph.shape(graph.find_leaf("layers.3.mlp.up.bias")), (Shape{16}));
}

TEST(Graph, SameLeafIsOneValueAndAnotherTypeIsRefused) {
  Graph graph;
  Builder b(graph);
  EXPECT_EQ(b.token_ids(4), b.token_ids(4));
  EXPECT_EQ(error_of([&] { b.token_ids(5); }), "input ids was i32[4] and is now asked for as i32[5]");
}

TEST(Graph, ShapeErrorsPrintBothValuesAndTheNode) {
  Graph graph;
  Builder b(graph);
  auto scope = b.scope("layer3");
  Value a = b.input("a", floats({4, 64})), w = b.input("w", floats({48, 16}));
  EXPECT_EQ(error_of([&] {
              b.emit(Op::kMatmul, {a, w}, {}, "up");
            }),
            "matmul: inner dims differ: 64 vs 48, of [4,64] and [48,16] in node layer3.up");
}

TEST(Graph, DropoutKeysDiffer) {
  Graph graph;
  Builder b(graph);
  Value x = b.input("x", floats({4, 8}));
  Value first = b.dropout(x, 0.1), second = b.dropout(x, 0.1);
  EXPECT_EQ(b.dropout(x, 0), x);
  int64_t key = graph.node(second).attr<int64_t>("key");
  EXPECT_NE(graph.node(first).attr<int64_t>("key"), key);
  Builder later(graph);
  EXPECT_GT(graph.node(later.dropout(x, 0.1)).attr<int64_t>("key"), key);
}

TEST(Graph, AbsentOptionalInputsAtTheEndAreDropped) {
  Graph graph;
  Builder b(graph);
  Value x = b.input("x", floats({4, 8}));
  EXPECT_EQ(graph.node(b.matmul(x, x, false, true)).inputs.size(), 2u);
}

TEST(Facts, EveryOpHasAShapeRuleAGradientOrAReasonACostAndAMeaning) {
  for (const OpInfo& info : all_ops()) {
    const OpFacts& facts = op_facts(info.op);
    EXPECT_NE(facts.infer, nullptr) << info.name;
    EXPECT_NE(facts.cost, nullptr) << info.name;
    EXPECT_NE(std::string(facts.meaning), "") << info.name;
    EXPECT_NE(facts.gradient == nullptr, facts.no_gradient == nullptr) << info.name;
    EXPECT_FALSE(facts.precision.empty()) << info.name;
    EXPECT_EQ(find_op(info.name), info.op);
    for (int input : facts.in_place) EXPECT_TRUE(info.max_inputs < 0 || input < info.max_inputs) << info.name;
  }
}

}  // namespace
}  // namespace octet
