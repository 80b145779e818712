#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "exec/testing/tiny_program.h"
#include "ir/text.h"
#include "passes/pass.h"
#include "passes/text_passes.h"

namespace octet {
namespace {

Program undifferentiated() {
  Program done = tiny::training_program("gpt2"), program;
  for (const StateEntry& entry : done.states()) program.add_state(entry);
  program.add_graph(tiny::loss_graph("train", "gpt2", true));
  program.add_graph(tiny::loss_graph("eval", "gpt2", false));
  program.add_graph(done.graph("apply"));
  return program;
}

TEST(Pipeline, ReportsEveryPassAndReachesTheLastStage) {
  std::vector<PassReport> reports;
  Plan plan = compile(undifferentiated(), {.target = cpu_target(), .recipe = parse_recipe("fp8-current")}, &reports);
  std::vector<std::string> ran;
  for (const PassReport& report : reports) ran.push_back(report.name);
  for (const char* name : {"build", "autodiff", "precision", "recompute", "fuse", "plan_memory"}) {
    EXPECT_NE(std::find(ran.begin(), ran.end(), name), ran.end()) << name;
  }
  for (const Graph& graph : plan.program.graphs()) EXPECT_EQ(graph.stage(), Stage::kPacked);
  EXPECT_GT(plan.graphs.at("train").saved_bytes, 0);
  EXPECT_EQ(plan.graphs.at("eval").saved_bytes, 0);
}

TEST(Pipeline, UnknownNamesGetTheNearest) {
  try {
    compile(undifferentiated(), {.disabled = {"recomptue"}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("nearest: recompute"), std::string::npos) << error.message();
  }
  try {
    compile(undifferentiated(), {.disabled = {"merge_sum"}});  // a step
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("nearest: merge_sums"), std::string::npos) << error.message();
  }
  EXPECT_THROW(find_pass("autodif"), Error);
  EXPECT_THROW(parse_recompute("sometimes", {}), Error);
  EXPECT_EQ(parse_recompute("full", {}), Recompute::kFull);
  EXPECT_EQ(parse_recompute("auto", cpu_target()), Recompute::kNone);
  EXPECT_EQ(parse_recompute("auto", h200_target()), Recompute::kLight);
}

TEST(Pipeline, DisabledPassesDoNotRun) {
  Plan plan = compile(undifferentiated(), {.recipe = parse_recipe("bf16"), .disabled = {"autodiff"}});
  EXPECT_EQ(plan.program.find_graph("accumulate"), nullptr);
  for (const Node& node : plan.program.graph("train").nodes()) EXPECT_EQ(node.phase, Phase::kForward);
}

TEST(Pipeline, DumpsParseBack) {
  std::string folder = testing::TempDir() + "octet_pipeline_dump";
  remove_path(folder);
  compile(undifferentiated(), {.recipe = parse_recipe("bf16"), .dump_dir = folder});
  std::vector<std::string> files = list_folder(folder);
  ASSERT_GE(files.size(), 3u);
  EXPECT_EQ(files[0], "00_build.txt");
  for (const std::string& file : files) {
    std::string text = read_file(folder + "/" + file);
    EXPECT_EQ(print(parse_program(text, file)), text) << file;
  }
  remove_path(folder);
}

// What a pass says of itself is compared with what it did, and a program that was not changed is verified too.
TEST(Pipeline, APassThatLiesIsNamed) {
  const auto message = [](const Pass& pass, bool verify) {
    Program program = undifferentiated();
    try {
      run_pass(pass, program, {.verify = verify});
      return std::string("accepted");
    } catch (const Error& error) {
      return error.message();
    }
  };
  const Pass silent{"silent",
                    [](Program&program, const CompileOptions&) {
                      program.graph("train").mutable_node(NodeId{0}).layer = 7;
                      return false;
                    }},
      boasting{"boasting", [](Program&, const CompileOptions&) { return true; }},
      breaking{"breaking",
               [](Program&program, const CompileOptions&) {
                 program.states().front().type = {DType::kI32, {1}};
                 return true;
               }},
      stage{"stage", [](Program&, const CompileOptions&) { return false; }, Stage::kPacked};
  EXPECT_EQ(message(silent, true).find("pass silent: it says that it changed nothing"), 0u) << message(silent, true);
  EXPECT_EQ(message(boasting, true).find("pass boasting: it says that it changed something"), 0u);
  EXPECT_EQ(message(breaking, true).find("pass breaking: "), 0u);
  EXPECT_EQ(message(stage, true), "accepted") << "stages rise whatever a pass finds to do";
  EXPECT_EQ(message(boasting, false), "accepted");
  // Verified though it says, rightly, that it changed nothing.
  Program program = undifferentiated();
  program.states().front().type = {DType::kI32, {1}};
  EXPECT_THROW(run_pass(stage, program, {}), Error);
}

// Recomputation that adds as many nodes as it takes away has changed the program. Under recipe auto products switch
// one by one: where the first of a linear's is in bf16 and its weight gradient in blocks, only backward reads the
// codes.
TEST(Pipeline, RecomputedCodesOfBackwardAloneLeaveForward) {
  CompileOptions options{.target = h200_target(), .recipe = parse_recipe("bf16"), .recompute = Recompute::kLight};
  options.recipe.power_of_two = true;
  options.recipe.gradient_format = DType::kE4M3;
  options.recipe.decisions["layers.0.attn.o/wgrad"] = {.codes = true, .scaling = Scaling::kBlock};
  const Plan plan = compile(undifferentiated(), options);
  int made = 0, again = 0;
  for (const Node& node : plan.program.graph("train").nodes()) {
    const bool quantizes =
        node.op == Op::kQuantize || (node.body != nullptr && tiny::count(*node.body, Op::kQuantize) > 0);
    made += quantizes && node.phase == Phase::kForward;
    again += quantizes && node.phase == Phase::kRecompute;
  }
  EXPECT_EQ(made, 0);
  EXPECT_EQ(again, 1);
}

// octet-opt with the names of all passes does what compile does.
TEST(Pipeline, PassesOnTextMakeTheSameProgram) {
  CompileOptions options{
      .target = cpu_target(), .recipe = parse_recipe("fp8-current"), .recompute = Recompute::kSelective};
  std::vector<std::string> names;
  for (const Pass& pass : pipeline_passes()) names.push_back(pass.name);
  std::string once = run_passes(print(undifferentiated()), "t", names, options);
  EXPECT_EQ(once, print(compile(undifferentiated(), options).program));
}

TEST(Pipeline, AnErrorNamesThePass) {
  Program program;
  Graph graph(GraphRole::kTrain);
  Builder b(graph);
  b.output("loss", b.param("w", {2, 2}));  // not a scalar
  program.add_graph(std::move(graph));
  try {
    compile(std::move(program), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message().find("pass autodiff: "), 0u) << error.message();
  }
}

}  // namespace
}  // namespace octet
