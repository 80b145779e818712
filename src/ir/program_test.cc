// The state table and graphs of a program by name.
#include "ir/program.h"

#include <gtest/gtest.h>

#include "base/testing/test_error.h"
#include "ir/builder.h"

namespace octet {
namespace {

TEST(Program, AStateIsAddedOnceAndKeepsItsType) {
  Program program;
  program.add_state({.name = "a", .type = {DType::kF32, {4}}, .kind = StateKind::kMoment});
  EXPECT_EQ(program.add_state({.name = "a", .type = {DType::kF32, {4}}}).kind, StateKind::kMoment);
  EXPECT_EQ(error_of([&] {
              program.add_state({.name = "a", .type = {DType::kBF16, {4}}});
            }),
            "state a is f32[4] and is now declared as bf16[4]");
  EXPECT_EQ(program.state_bytes(StateKind::kMoment), 16);
  EXPECT_EQ(program.find_state("b"), nullptr);
}

TEST(Program, GraphsAreReplacedByNameAndMissedByName) {
  Program program;
  program.name = "p";
  program.add_graph(Graph("train"));
  Graph other("train");
  Builder(other).input("x", {DType::kF32, {1}});
  program.add_graph(std::move(other));
  program.add_graph(Graph("eval"));
  EXPECT_EQ(program.graphs().size(), 2u);
  EXPECT_EQ(program.graph("train").size(), 1);
  EXPECT_EQ(error_of([&] { program.graph("apply"); }), "program p has no graph 'apply'; it has: train, eval");
}

TEST(Program, CollectStateKeepsWhatIsDeclared) {
  Program program;
  Graph graph("main");
  Builder b(graph);
  Value w = b.param("w", {2});
  b.update("m", b.add(w, b.state("m", {DType::kF32, {2}})));
  b.update("made.here", w);
  program.add_graph(std::move(graph));
  program.add_state({.name = "m", .type = {DType::kF32, {2}}, .kind = StateKind::kMoment});
  collect_state(program);
  collect_state(program);
  EXPECT_EQ(program.states().size(), 3u);
  EXPECT_EQ(program.find_state("m")->kind, StateKind::kMoment);
  EXPECT_EQ(program.find_state("w")->param, "w");
  EXPECT_EQ(program.find_state("made.here")->kind, StateKind::kScale);
}

}  // namespace
}  // namespace octet
