// Rewriting, removal of dead nodes, merging of equal ones.
#include "ir/rewrite.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/testing/random_graph.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace octet {
namespace {

int count(const Graph& graph, Op op) {
  int found = 0;
  for (const Node& node : graph.nodes()) found += node.op == op ? 1 : 0;
  return found;
}

Graph copy_all(const Graph& graph) {
  Rewriter rewriter(graph);
  for (int32_t i = 0; i < graph.size(); ++i) rewriter.copy(NodeId{i});
  return rewriter.finish();
}

TEST(Rewrite, CopyingAllNodesIsTheSameGraphWithoutItsDeadNodes) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Graph graph = testing::random_graph(seed, 30);
    Graph copied = copy_all(graph);
    remove_dead_nodes(graph);
    verify(copied);
    EXPECT_EQ(print(copied), print(graph));
  }
}

TEST(Rewrite, ReplacesAValueForLaterUses) {
  Graph graph("g");
  Builder b(graph);
  Value x = b.input("x", {DType::kF32, {4, 8}});
  b.output("y", b.silu(b.relu(x)));
  Rewriter rewriter(graph);
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    if (node.op == Op::kRelu) {
      rewriter.set({NodeId{i}, 0}, rewriter.builder().gelu(rewriter.map(node.inputs[0]), true));
    } else {
      rewriter.copy(NodeId{i});
    }
  }
  Graph result = rewriter.finish();
  verify(result);
  EXPECT_EQ(count(result, Op::kRelu), 0);
  EXPECT_EQ(result.node(result.node(result.output("y")).inputs[0]).op, Op::kGelu);
}

TEST(Rewrite, UnmappedInputsAndLeavesOfAnotherTypeAreInternalErrors) {
  Graph graph("g");
  Builder b(graph);
  b.output("y", b.relu(b.input("x", {DType::kF32, {4}})));
  Rewriter rewriter(graph);
  EXPECT_THROW(rewriter.copy(NodeId{1}), Error);
  rewriter.builder().input("x", {DType::kBF16, {4}});
  EXPECT_THROW(rewriter.copy(NodeId{0}), Error);
}

TEST(Rewrite, OutputsMadeAgainReplaceTheOldOnes) {
  Graph graph("g");
  Builder b(graph);
  Value x = b.input("x", {DType::kF32, {4}});
  b.output("y", b.relu(x));
  b.output("z", b.silu(x));
  Rewriter rewriter(graph);
  for (int32_t i = 0; i < graph.size(); ++i) rewriter.copy(NodeId{i});
  rewriter.builder().output("y", rewriter.map(x));
  Graph result = rewriter.finish();
  EXPECT_EQ(result.outputs().size(), 2u);
  EXPECT_EQ(result.node(result.output("y")).op, Op::kInput);
  EXPECT_EQ(count(result, Op::kRelu), 0);
}

TEST(DeadNodes, AreDroppedInputsStay) {
  Graph graph("g");
  Builder b(graph);
  Value x = b.input("x", {DType::kF32, {4}});
  b.input("unused", {DType::kF32, {4}});
  b.param("unread", {4});
  b.relu(b.silu(x));
  b.output("y", b.relu(x));
  EXPECT_TRUE(remove_dead_nodes(graph));
  EXPECT_FALSE(remove_dead_nodes(graph));
  verify(graph);
  EXPECT_EQ(graph.size(), 3);
  EXPECT_TRUE(graph.find_leaf("unused").exists());
  EXPECT_FALSE(graph.find_leaf("unread").exists());
}

TEST(CommonNodes, EqualComputationsBecomeOne) {
  Graph graph("g");
  Builder b(graph);
  Value x = b.input("x", {DType::kF32, {4}});
  b.output("y", b.add(b.relu(x), b.relu(x)));
  EXPECT_TRUE(merge_common_nodes(graph));
  EXPECT_FALSE(merge_common_nodes(graph));
  verify(graph);
  EXPECT_EQ(count(graph, Op::kRelu), 1);
}

TEST(CommonNodes, DropoutsWithTheirOwnKeysStayApart) {
  Graph graph("g");
  Builder b(graph);
  Value x = b.input("x", {DType::kF32, {4}});
  b.output("y", b.add(b.dropout(x, 0.5), b.dropout(x, 0.5)));
  EXPECT_FALSE(merge_common_nodes(graph));
  EXPECT_EQ(count(graph, Op::kDropout), 2);
}

TEST(CommonNodes, ARecomputedNodeStaysApartFromTheSavedOne) {
  Graph graph("g");
  Builder b(graph);
  Value x = b.input("x", {DType::kF32, {4}});
  Value saved = b.relu(x);
  b.set_phase(Phase::kRecompute);
  b.output("y", b.add(saved, b.relu(x)));
  EXPECT_FALSE(merge_common_nodes(graph));
}

TEST(CommonNodes, AttributesAndConstantsTypesCount) {
  Graph graph("g");
  Builder b(graph);
  Value x = b.input("x", {DType::kF32, {1}});
  Value a = b.add(b.scale(x, 1), b.scale(x, 2));
  b.output("y", b.add(a, b.add(b.constant(1, {1}), b.cast(b.constant(1, {1}, DType::kBF16), DType::kF32))));
  EXPECT_FALSE(merge_common_nodes(graph));
}

TEST(CommonNodes, RandomGraphsStayLegalAndSettle) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Graph graph = testing::random_graph(seed, 60);
    merge_common_nodes(graph);
    verify(graph);
    EXPECT_FALSE(merge_common_nodes(graph));
  }
}

}  // namespace
}  // namespace octet
