// The state table and graphs of a program by name.
#include "ir/program.h"

#include <gtest/gtest.h>

#include "base/testing/test_error.h"
#include "ir/builder.h"

namespace octet {
namespace {

TEST(Program, AStateIsAddedOnceAndKeepsItsType) {
  Program program;
  program.add_state({.name = "a", .type = {DType::kF32, {4}}, .role = StateRole::kMoment});
  EXPECT_EQ(program.add_state({.name = "a", .type = {DType::kF32, {4}}}).role, StateRole::kMoment);
  EXPECT_EQ(error_of([&] {
              program.add_state({.name = "a", .type = {DType::kBF16, {4}}});
            }),
            "state a is f32[4] and is now declared as bf16[4]");
  EXPECT_EQ(program.state_bytes({StateRole::kMoment}), 16);
  EXPECT_EQ(program.find_state("b"), nullptr);
}

TEST(Program, GraphsAreReplacedByNameAndMissedByName) {
  Program program;
  program.name = "p";
  program.add_graph(Graph(GraphRole::kTrain));
  Graph other(GraphRole::kTrain);
  Builder(other).input("x", {DType::kF32, {1}});
  program.add_graph(std::move(other));
  program.add_graph(Graph("validation", GraphRole::kEval));
  EXPECT_EQ(program.find_graph(GraphRole::kEval), program.find_graph("validation"));
  EXPECT_EQ(program.find_graph(GraphRole::kApply), nullptr);
  EXPECT_EQ(program.graphs().size(), 2u);
  EXPECT_EQ(program.graph("train").size(), 1);
  EXPECT_EQ(error_of([&] { program.graph("apply"); }), "program p has no graph 'apply'; it has: train, validation");
}

TEST(Program, StatesAreFoundByWhatTheyAre) {
  Program program;
  const TensorType type{DType::kF32, {2}};
  program.add_state({.type = type, .role = StateRole::kMoment, .param = "w", .index = 1});
  program.add_state({.type = type, .role = StateRole::kCodes, .param = "w", .index = kBlockCodes + kTransposedCodes});
  program.add_state({.type = type, .role = StateRole::kCacheScaleInv, .param = "attn", .index = kValues});
  EXPECT_EQ(program.find_state("w", StateRole::kMoment, 1)->name, "moment1.w");
  EXPECT_EQ(program.find_state("w", StateRole::kMoment, 0), nullptr);
  EXPECT_EQ(program.find_state("w", StateRole::kCodes, 3)->name, "w.block_codes_t");
  EXPECT_EQ(program.find_state("attn", StateRole::kCacheScaleInv, kValues)->name, "kv.attn.v_scale_inv");
  EXPECT_EQ(error_of([&] {
              program.add_state({.name = "other", .type = type, .role = StateRole::kMoment, .param = "w", .index = 1});
            }),
            "states moment1.w and other are both moment 1 of w");
}

// Inference loads codes (a graph may read the master too), training makes them again; merged ones lie by their rows.
TEST(Program, LogicalStatesAreWhatIsLoadedAndSaved) {
  Program program;
  program.add_state({.name = "w", .type = {DType::kF32, {4, 8}}});
  program.add_state({.type = {DType::kE4M3, {4, 8}}, .role = StateRole::kCodes, .param = "w"});
  program.add_state({.type = {DType::kE4M3, {6, 8}},
                     .role = StateRole::kCodes,
                     .param = "q+k",
                     .placements = {place_rows("q", {4, 8}), place_rows("k", {2, 8}, 4)}});
  program.add_state({.name = "ids", .type = {DType::kI32, {4, 1}}, .role = StateRole::kBuffer});
  std::vector<std::string> names;
  for (const LogicalState& tensor : logical_states(program)) names.push_back(tensor.name + " in " + tensor.state);
  EXPECT_EQ(names,
            (std::vector<std::string>{"w in w", "w.codes in w.codes", "q.codes in q+k.codes", "k.codes in q+k.codes"}));
  const LogicalState k = find_logical_state(program, "k", StateRole::kCodes);
  EXPECT_EQ(k.type, (TensorType{DType::kE4M3, {2, 8}}));
  EXPECT_EQ(PlacementRuns(k.at, DType::kI8).at(0).state, 32);
  EXPECT_THROW(find_logical_state(program, "v", StateRole::kCodes), Error);
  program.add_state({.type = {DType::kF32, {4, 8}}, .role = StateRole::kGradient, .param = "w"});
  EXPECT_THROW(find_logical_state(program, "w", StateRole::kCodes), Error);
}

TEST(Program, CollectStateKeepsWhatIsDeclared) {
  Program program;
  Graph graph("main");
  Builder b(graph);
  Value w = b.param("w", {2});
  b.update("m", b.add(w, b.state("m", {DType::kF32, {2}})));
  b.update("made.here", w);
  program.add_graph(std::move(graph));
  program.add_state({.name = "m", .type = {DType::kF32, {2}}, .role = StateRole::kMoment});
  collect_state(program);
  collect_state(program);
  EXPECT_EQ(program.states().size(), 3u);
  EXPECT_EQ(program.find_state("m")->role, StateRole::kMoment);
  EXPECT_EQ(program.find_state("w")->param, "w");
  EXPECT_EQ(program.find_state("made.here")->role, StateRole::kBuffer);
}

}  // namespace
}  // namespace octet
