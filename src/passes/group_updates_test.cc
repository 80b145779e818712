
#include <gtest/gtest.h>

#include <map>

#include "exec/executor.h"
#include "exec/testing/tiny_program.h"
#include "ir/verify.h"
#include "passes/passes.h"

namespace octet {
namespace {

Target grouping_target() {
  Target target = interpreter_target();
  target.allow(Producer::kUpdate, {FusionPart::kOptimizer, FusionPart::kUpdateScales, FusionPart::kMaximum});
  return target;
}

Program grouped(const std::string& recipe, const TargetLimits& limits = {}) {
  Program program = tiny::training_program("llama");
  CompileOptions options{.target = grouping_target(), .recipe = parse_recipe(recipe)};
  options.target.limits = limits;
  precision(program, options);
  for (Graph& graph : program.graphs()) graph.set_stage(Stage::kPacked);
  EXPECT_TRUE(group_updates(program, options));
  verify(program);
  return program;
}

std::map<std::string, int> ops_of(const Graph& graph) {
  std::map<std::string, int> ops;
  for (const Node& node : graph.nodes()) {
    ++ops[op_name(node.op)];
    if (node.op != Op::kFusion) continue;
    for (const Node& member : node.body->nodes()) ++ops[std::string("member ") + op_name(member.op)];
  }
  return ops;
}

TEST(GroupUpdates, TakesEveryParameterWithWhatReadsIt) {
  for (const char* recipe : {"bf16", "fp8-current", "fp8-block"}) {
    SCOPED_TRACE(recipe);
    const Program program = grouped(recipe);
    auto ops = ops_of(*program.find_graph("apply"));
    int params = 0;
    for (const StateEntry& entry : program.states()) params += entry.role == StateRole::kMaster;
    EXPECT_EQ(ops["adamw"], 0);
    EXPECT_EQ(ops["fusion"], (params + 31) / 32);
    EXPECT_EQ(ops["member adamw"], params);
    EXPECT_EQ(ops["cast"] + ops["reduce"], 0);
    EXPECT_GT(ops["member cast"] + ops["member reduce"] + ops["quantize"], 0);
  }
}

TEST(GroupUpdates, AreAsLargeAsTheTargetSays) {
  const Program program = grouped("bf16", {.update_params = 3});
  auto ops = ops_of(*program.find_graph("apply"));
  EXPECT_EQ(ops["fusion"], (ops["member adamw"] + ops["adamw"] + 2) / 3 - ops["adamw"]);
  EXPECT_GT(ops["fusion"], 2);
}

TEST(GroupUpdates, TakesTheScalesAndAmaxesOfDelayedScaling) {
  const Program program = grouped("fp8-delayed");
  int tensors = 0;
  for (const StateEntry& entry : program.states()) tensors += entry.name.starts_with("amax_history.");
  ASSERT_GT(tensors, 2);
  auto apply = ops_of(*program.find_graph("apply")), accumulate = ops_of(*program.find_graph("accumulate"));
  EXPECT_EQ(apply["update_scales"], 0);
  EXPECT_EQ(apply["member update_scales"], tensors);
  EXPECT_EQ(accumulate["maximum"], 0);
  EXPECT_EQ(accumulate["member maximum"], tensors);
  EXPECT_EQ(ops_of(*program.find_graph("train"))["member maximum"], 0);
}

// A maximum that something reads stays where it is.
TEST(GroupUpdates, LeavesMaximaThatAreRead) {
  Graph graph("main");
  Builder b(graph);
  const TensorType one{DType::kF32, {1}};
  const Value x = b.input("x", one);
  const Value read = b.maximum(b.state("a", one), x);
  b.update("a", read);
  b.update("b", b.maximum(b.state("b", one), b.add(read, x)));
  b.update("c", b.maximum(b.state("c", one), x));
  graph.set_stage(Stage::kPacked);
  Program program;
  program.add_graph(std::move(graph));
  collect_state(program);
  EXPECT_TRUE(group_updates(program, {.target = grouping_target()}));
  verify(program);
  auto ops = ops_of(*program.find_graph("main"));
  EXPECT_EQ(ops["maximum"], 1);
  EXPECT_EQ(ops["member maximum"], 2);
}

TEST(GroupUpdates, LeavesEveryBitAsItWas) {
  for (const char* recipe : {"fp32", "bf16", "fp8-current", "fp8-delayed"}) {
    SCOPED_TRACE(recipe);
    Program apart = tiny::training_program("llama");
    precision(apart, {.target = grouping_target(), .recipe = parse_recipe(recipe)});
    auto one = make_interpreter(std::move(apart)), other = make_interpreter(grouped(recipe));
    tiny::initialize(*one), tiny::initialize(*other);
    EXPECT_EQ(tiny::train(*one, 2), tiny::train(*other, 2));
    for (const StateEntry& entry : one->program().states())
      EXPECT_EQ(tiny::state(*one, entry.name), tiny::state(*other, entry.name)) << entry.name;
  }
}

// Parameters and moments are refreshed where they stand: the plan needs no room for second ones.
TEST(GroupUpdates, WorksInPlace) {
  int64_t arena[2] = {};
  for (bool group : {false, true}) {
    CompileOptions options{.target = grouping_target(), .recipe = parse_recipe("fp8-current")};
    if (!group) options.disabled = {"group_updates"};
    arena[group] = compile(tiny::training_program("llama"), options).graphs.at("apply").arena_bytes;
  }
  EXPECT_LE(arena[true], arena[false] + 64 * 256);
}

// Histories, scales and amaxes are written where their states lie: nothing is copied there afterwards.
TEST(GroupUpdates, WritesStatesOfDelayedScalingWhereTheyLie) {
  const Plan plan =
      compile(tiny::training_program("llama"), {.target = grouping_target(), .recipe = parse_recipe("fp8-delayed")});
  int written = 0;
  for (const char* name : {"train", "accumulate", "apply"}) {
    const Graph& graph = plan.program.graph(name);
    for (const NamedValue& update : graph.updates()) {
      if (!update.name.starts_with("amax") && !update.name.starts_with("scale.")) continue;
      const BufferRef& buffer =
          plan.graphs.at(name)
              .buffers[static_cast<size_t>(index(update.value.node))][static_cast<size_t>(update.value.result)];
      EXPECT_EQ(buffer.kind, BufferRef::Kind::kState) << name << ": " << update.name;
      if (buffer.kind == BufferRef::Kind::kState) {
        EXPECT_EQ(plan.program.states()[static_cast<size_t>(buffer.index)].name, update.name) << name;
      }
      ++written;
    }
  }
  EXPECT_GT(written, 40);
}

}  // namespace
}  // namespace octet
