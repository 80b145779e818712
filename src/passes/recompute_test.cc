
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "exec/testing/tiny_program.h"
#include "ir/facts.h"
#include "ir/rewrite.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/passes.h"
#include "passes/plan_memory.h"

namespace octet {
namespace {

struct Case {
  const char* architecture;
  const char* recipe;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.architecture << " " << c.recipe; }

Program prepared(const Case& c, const Target& target = {}) {
  Program program = tiny::training_program(c.architecture);
  CompileOptions options{.target = target, .recipe = parse_recipe(c.recipe)};
  precision(program, options);
  for (Graph& graph : program.graphs()) merge_common_nodes(graph);
  return program;
}

int64_t saved_bytes(const Graph& graph) {
  int64_t bytes = 0;
  for (const SavedValue& value : saved_for_backward(graph)) bytes += value.bytes;
  return bytes;
}

class RecomputeModels : public testing::TestWithParam<Case> {};

// Losses, weights and every other state after three steps are the same bits.
TEST_P(RecomputeModels, ChangesNothingButMemory) {
  Program program = prepared(GetParam());
  auto reference = make_interpreter(program);
  tiny::initialize(*reference);
  std::vector<double> losses = tiny::train(*reference, 2);
  for (Recompute kind : {Recompute::kSelective, Recompute::kFull}) {
    Program remade = program;
    ASSERT_TRUE(recompute(remade, {.recompute = kind}));
    verify(remade);
    auto executor = make_interpreter(remade);
    tiny::initialize(*executor);
    EXPECT_EQ(tiny::train(*executor, 2), losses);
    for (const StateEntry& entry : program.states()) {
      EXPECT_EQ(tiny::state(*executor, entry.name), tiny::state(*reference, entry.name)) << entry.name;
    }
    // What is no longer listed is no longer held: the plan's saved bytes fall by the predicted amount.
    Plan before = plan_memory(program, interpreter_target()), after = plan_memory(remade, interpreter_target());
    check_plan(after);
    int64_t predicted = saved_bytes(program.graph("train")) - saved_bytes(remade.graph("train"));
    int64_t measured = before.graphs.at("train").saved_bytes - after.graphs.at("train").saved_bytes;
    EXPECT_GT(predicted, 0);
    EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(predicted), 64.0 * 40);  // alignment of small pieces
  }
}

TEST_P(RecomputeModels, SelectiveClonesOnlyCheapNodes) {
  Program program = prepared(GetParam());
  int64_t before = saved_bytes(program.graph("train"));
  ASSERT_TRUE(recompute(program, {.recompute = Recompute::kSelective}));
  const Graph& graph = program.graph("train");
  int clones = 0;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const Node& node = graph.node(NodeId{i});
    if (node.phase != Phase::kRecompute) continue;
    ++clones;
    EXPECT_TRUE(op_facts(node.op).cheap_to_recompute) << describe(graph, NodeId{i});
    // Clones stand right before their first reader: another clone or a backward node.
    const Node& next = graph.node(NodeId{i + 1});
    EXPECT_TRUE(next.phase == Phase::kRecompute || next.phase == Phase::kBackward) << describe(graph, NodeId{i});
  }
  EXPECT_GT(clones, 0);
  EXPECT_LT(saved_bytes(graph), before);
}

TEST_P(RecomputeModels, FullKeepsOnlyWhatEntersLayers) {
  Program program = prepared(GetParam());
  ASSERT_TRUE(recompute(program, {.recompute = Recompute::kFull}));
  const Graph& graph = program.graph("train");
  auto uses = graph.count_uses();
  for (const SavedValue& value : saved_for_backward(graph)) {
    if (value.layer < 0 || value.type.shape.elements() <= 1) continue;
    EXPECT_EQ(value.op, "add") << value.name << ": only the residual stream leaves a layer";
  }
}

INSTANTIATE_TEST_SUITE_P(All, RecomputeModels,
                         testing::Values(Case{"gpt2", "fp32"}, Case{"llama", "bf16"}, Case{"gpt2", "fp8-current"},
                                         Case{"llama", "fp8-delayed"}, Case{"llama", "fp8-block"}),
                         [](const auto& info) {
                           std::string name = std::string(info.param.architecture) + "_" + info.param.recipe;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class LightRecompute : public testing::TestWithParam<Case> {};

// The same bits; of what is kept only codes and activations go, and what is made again fuses with its reader.
TEST_P(LightRecompute, DropsCodesAndChangesNoBits) {
  const Target target = h200_target();
  const Program program = prepared(GetParam(), target);
  Program light = program;
  ASSERT_TRUE(recompute(light, {.target = target, .recompute = Recompute::kLight}));
  verify(light);
  auto reference = make_interpreter(program), executor = make_interpreter(light);
  tiny::initialize(*reference);
  tiny::initialize(*executor);
  EXPECT_EQ(tiny::train(*executor, 2), tiny::train(*reference, 2));
  for (const StateEntry& entry : program.states())
    EXPECT_EQ(tiny::state(*executor, entry.name), tiny::state(*reference, entry.name)) << entry.name;

  std::multiset<std::string> kept_before, kept_after;
  for (const SavedValue& value : saved_for_backward(program.graph("train"))) kept_before.insert(value.name + value.op);
  for (const SavedValue& value : saved_for_backward(light.graph("train"))) {
    if (value.type.shape.elements() > 1) kept_after.insert(value.name + value.op);
    EXPECT_FALSE(value.name.ends_with("mlp.down.x") && value.type.shape.elements() > 1) << value.name;
    EXPECT_FALSE(value.name.ends_with("attn.o.x") && value.type.shape.elements() > 1) << value.name;
    EXPECT_NE(value.op, "silu") << value.name;
  }
  EXPECT_TRUE(std::includes(kept_before.begin(), kept_before.end(), kept_after.begin(), kept_after.end()));
  EXPECT_LT(saved_bytes(light.graph("train")), saved_bytes(program.graph("train")));

  fuse(light, {.target = target});
  for (const Node& node : light.graph("train").nodes()) {
    const bool alone = node.phase == Phase::kRecompute && node.op != Op::kFusion && node.op != Op::kQuantize;
    EXPECT_FALSE(alone) << op_name(node.op) << " " << node.name;
    EXPECT_NE(node.op, Op::kGelu) << node.name;
    EXPECT_NE(node.op, Op::kSilu) << node.name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, LightRecompute,
                         testing::Values(Case{"gpt2", "fp8-current"}, Case{"gpt2", "fp8-delayed"},
                                         Case{"gpt2", "fp8-block"}, Case{"llama", "bf16"}, Case{"llama", "fp8-current"},
                                         Case{"llama", "fp8-delayed"}, Case{"llama", "fp8-block"}),
                         [](const auto& info) {
                           std::string name = std::string(info.param.architecture) + "_" + info.param.recipe;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Forward stores no activation that current scaling alone reads: its amax and its codes are two fusions of one input.
TEST(Recompute, ActivationsAreNotStoredForCurrentScaling) {
  for (const char* architecture : {"gpt2", "llama"}) {
    const Target target = h200_target();
    Plan plan = compile(tiny::training_program(architecture),
                        {.target = target, .recipe = parse_recipe("fp8-current"), .recompute = Recompute::kLight});
    int amaxes = 0;
    for (const Node& node : plan.program.graph("train").nodes()) {
      const auto chain = node.op == Op::kFusion ? read_chain(*node.body) : std::nullopt;
      if (!chain || chain->core == nullptr || !is_activation(chain->core->op) || chain->sinks[0].amax == nullptr)
        continue;
      ++amaxes;
      for (const NamedValue& output : node.body->outputs())
        EXPECT_TRUE(output.name == "bias.0" || output.name == "amax.0");
    }
    EXPECT_EQ(amaxes, 2) << architecture;
  }
}

TEST(Recompute, LightLeavesBf16WithoutGatesAlone) {
  Program program = prepared({"gpt2", "bf16"}, h200_target());
  EXPECT_FALSE(recompute(program, {.target = h200_target(), .recompute = Recompute::kLight}));
}

TEST(Recompute, AmaxIsReadFromForwardOnly) {
  Program program = prepared({"gpt2", "fp8-delayed"});
  ASSERT_TRUE(recompute(program, {.recompute = Recompute::kFull}));
  for (const Graph& graph : program.graphs()) {
    auto uses = graph.count_uses();
    for (int32_t i = 0; i < graph.size(); ++i) {
      const Node& node = graph.node(NodeId{i});
      if (node.op == Op::kQuantize && node.phase == Phase::kRecompute) {
        EXPECT_EQ(uses[static_cast<size_t>(i)][4], 0) << describe(graph, NodeId{i});
      }
      EXPECT_FALSE(node.phase == Phase::kRecompute && node.op == Op::kComputeScale) << describe(graph, NodeId{i});
    }
  }
}

TEST(Recompute, NothingToDo) {
  Program program = tiny::training_program("gpt2");
  EXPECT_FALSE(recompute(program, {.recompute = Recompute::kNone}));
  Graph forward = tiny::loss_graph("eval", "gpt2", false);
  program = {};
  program.add_graph(forward);
  EXPECT_FALSE(recompute(program, {.recompute = Recompute::kFull}));
  EXPECT_EQ(print(program.graph("eval")), print(forward));
}

}  // namespace
}  // namespace octet
