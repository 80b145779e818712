// Compiled training programs on the cpu executor against the interpreter, with the arena filled with NaN before every
// run: whatever is read before it is written, or overwritten too early, shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "exec/testing/tiny_program.h"
#include "passes/plan_memory.h"

namespace octet {
namespace {

// A graph "poison" whose one value is the whole arena.
Plan with_poison(Plan plan) {
  Graph graph("poison");
  Builder b(graph);
  int64_t elements = (plan.arena_bytes - plan.workspace_bytes) / 4;
  b.output("nan", b.constant(std::numeric_limits<double>::quiet_NaN(), {elements}));
  graph.set_stage(Stage::kPacked);
  plan.program.add_graph(std::move(graph));
  Plan poisoned = plan_memory(plan.program, plan.target);
  EXPECT_EQ(poisoned.arena_bytes, plan.arena_bytes);
  check_plan(poisoned);
  return poisoned;
}

std::vector<double> train(Executor& executor, bool poison) {
  std::vector<double> losses;
  auto run = [&](const std::string& graph, int batch) {
    if (poison) executor.run("poison");
    return tiny::loss(executor, graph, batch);
  };
  for (int step = 0; step < 3; ++step) {
    losses.push_back(run("train", 2 * step));
    losses.push_back(run("accumulate", 2 * step + 1));
    input_as<float>(executor, "apply", "lr")[0] = 0.01f;
    input_as<float>(executor, "apply", "step")[0] = static_cast<float>(step + 1);
    if (poison) executor.run("poison");
    executor.run("apply");
  }
  losses.push_back(run("eval", 1));
  return losses;
}

// Large updates are computed in their state: no copy after the last node.
void expect_no_large_copies(const Plan& plan) {
  for (const Graph& graph : plan.program.graphs()) {
    const GraphPlan& graph_plan = plan.graphs.at(graph.name());
    for (const NamedValue& update : graph.updates()) {
      Value value = update.value;
      const BufferRef& ref =
          graph_plan.buffers[static_cast<size_t>(index(value.node))][static_cast<size_t>(value.result)];
      if (graph.shape(value).elements() <= 1) continue;
      EXPECT_EQ(ref.kind, BufferRef::Kind::kState)
          << graph.name() << " copies " << update.name << " from " << describe(graph, value.node);
    }
    EXPECT_LE(static_cast<double>(graph_plan.arena_bytes), 1.02 * static_cast<double>(graph_plan.live_bytes))
        << graph.name();
  }
}

struct Case {
  const char* architecture;
  const char* recipe;
  Recompute recompute;
  double tolerance;  // of a loss near 3.7: float32 sums in another order; bf16 and FP8 roundings that fall differently
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.architecture << " " << c.recipe << ", recompute ";
  PrintTo(c.recompute, out);
}

class PlannedTraining : public testing::TestWithParam<Case> {};

TEST_P(PlannedTraining, AgreesWithTheInterpreter) {
  const Case& c = GetParam();
  Program program = tiny::training_program(c.architecture);
  CompileOptions options{.target = cpu_target(), .recipe = parse_recipe(c.recipe), .recompute = c.recompute};
  Plan plan = compile(program, options);
  expect_no_large_copies(plan);
  auto planned = make_cpu_executor(with_poison(std::move(plan)));
  options.target = interpreter_target();
  options.recompute = Recompute::kNone;
  auto defined = make_interpreter(compile(program, options).program);
  tiny::initialize(*planned);
  tiny::initialize(*defined);
  std::vector<double> got = train(*planned, true), want = train(*defined, false);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], c.tolerance) << "run " << i;
  EXPECT_LT(got.back(), got.front());
}

INSTANTIATE_TEST_SUITE_P(All, PlannedTraining,
                         testing::Values(Case{"gpt2", "fp32", Recompute::kNone, 1e-4},
                                         Case{"llama", "fp32", Recompute::kSelective, 1e-4},
                                         Case{"gpt2", "bf16", Recompute::kFull, 0.02},
                                         Case{"llama", "bf16", Recompute::kSelective, 0.02},
                                         Case{"gpt2", "fp8-current", Recompute::kSelective, 0.05},
                                         Case{"gpt2", "fp8-delayed", Recompute::kLight, 0.05},
                                         Case{"llama", "fp8-current", Recompute::kLight, 0.05},
                                         Case{"llama", "fp8-delayed", Recompute::kSelective, 0.05},
                                         Case{"llama", "fp8-block", Recompute::kFull, 0.05}),
                         [](const auto& info) {
                           std::string name = std::string(info.param.architecture) + "_" + info.param.recipe;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + std::to_string(static_cast<int>(info.param.recompute));
                         });

}  // namespace
}  // namespace octet
