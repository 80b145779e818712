#include "passes/plan_memory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "exec/executor.h"
#include "exec/testing/tiny_program.h"
#include "ir/builder.h"
#include "ir/text.h"
#include "passes/passes.h"
#include "passes/storage.h"

namespace octet {
namespace {

using Kind = BufferRef::Kind;

const BufferRef& ref(const Plan& plan, const std::string& graph, Value value) {
  return plan.graphs.at(graph).buffers[static_cast<size_t>(index(value.node))][static_cast<size_t>(value.result)];
}

Program one_graph(Graph graph) {
  Program program;
  program.add_graph(std::move(graph));
  collect_state(program);
  return program;
}

TEST(PlanMemory, ElementwiseChainRunsInOneBuffer) {
  Graph graph("main");
  Builder b(graph);
  Value a = b.silu(b.input("x", {DType::kF32, {4, 16}}));
  Value c = b.relu(a);
  Value d = b.reshape(b.scale(c, 2), {64});
  b.output("y", d);
  Plan plan = plan_memory(one_graph(graph), interpreter_target());
  check_plan(plan);
  EXPECT_EQ(plan.graphs.at("main").arena_bytes, 256);
  EXPECT_EQ(ref(plan, "main", a).offset, ref(plan, "main", d).offset);
}

// sum = a + b; y = norm(sum): the sum may stand where a stood, and y where b stood.
TEST(PlanMemory, AFusionRunsInPlace) {
  const auto plan_of = [](bool reads_a_again) {
    Graph graph = parse_graph(fmt::format(R"(graph @main stage fused
  %x = input : f32[4,16] @x
  %w = state : f32[16] @w
  %a = silu %x
  %b = relu %x
  %f = fusion %a, %b, %w body
    graph @add_norm stage fused
      %0 = input : f32[4,16] @add.0
      %1 = input : f32[4,16] @add.1
      %2 = input : f32[16] @norm.1
      %3 = add %0, %1 @add
      %4 = rms_norm %3, %2 {{eps=1e-05}} @norm
      %5 = mul %4, {} @last
      output @add.0 %3
      output @last.0 %5
    end
  output @sum %f
  output @y %f.1
end
)",
                                          reads_a_again ? "%0" : "%4"));
    Plan plan = plan_memory(one_graph(std::move(graph)), cpu_target());
    check_plan(plan);
    return plan;
  };
  const auto offsets = [](const Plan& plan) {
    std::vector<int64_t> found;
    const Graph& graph = plan.program.graph("main");
    for (const NamedValue& output : graph.outputs()) found.push_back(ref(plan, "main", output.value).offset);
    for (Value input : graph.node(graph.outputs()[0].value).inputs) found.push_back(ref(plan, "main", input).offset);
    found.pop_back();  // the weight's
    return found;
  };
  // The offsets of sum, y, a, b.
  const std::vector<int64_t> apart = offsets(plan_of(false)), read_again = offsets(plan_of(true));
  EXPECT_EQ(apart[0], apart[2]);
  EXPECT_EQ(apart[1], apart[3]);
  EXPECT_EQ(plan_of(false).graphs.at("main").arena_bytes, 512);
  // The last product reads a after the sum was written: only y may stand there.
  EXPECT_EQ(read_again[0], read_again[3]);
  EXPECT_EQ(read_again[1], read_again[2]);
}

TEST(PlanMemory, AnInputStillReadIsNotOverwritten) {
  Graph graph("main");
  Builder b(graph);
  Value a = b.silu(b.input("x", {DType::kF32, {4, 16}}));
  Value c = b.relu(a);
  b.output("y", b.add(a, c));
  Plan plan = plan_memory(one_graph(graph), interpreter_target());
  check_plan(plan);
  EXPECT_NE(ref(plan, "main", a).offset, ref(plan, "main", c).offset);
  EXPECT_EQ(plan.graphs.at("main").arena_bytes, 512);
}

TEST(PlanMemory, ABroadcastOperandOfAsManyBytesIsNotOverwritten) {
  Graph graph("main");
  Builder b(graph);
  Value row = b.silu(b.input("row", {DType::kF32, {8}}));
  Value sum = b.add(b.input("x", {DType::kBF16, {2, 8}}), row);  // 32 bytes, as row
  b.output("y", b.relu(sum));
  Plan plan = plan_memory(one_graph(graph), interpreter_target());
  check_plan(plan);
  EXPECT_NE(ref(plan, "main", row).offset, ref(plan, "main", sum).offset);
}

TEST(PlanMemory, UpdatesAreMadeInTheState) {
  Graph graph("main");
  Builder b(graph);
  Value s = b.state("s", {DType::kF32, {8, 8}});
  Value x = b.input("x", {DType::kF32, {8, 8}});
  Value sum = b.add(s, x);
  b.update("s", sum);
  b.output("y", b.scale(sum, 2));
  Plan plan = plan_memory(one_graph(graph), interpreter_target());
  check_plan(plan);
  EXPECT_EQ(ref(plan, "main", sum).kind, Kind::kState);
}

TEST(PlanMemory, AnUpdateWaitsForReadersOfTheOldContents) {
  Graph graph("main");
  Builder b(graph);
  Value s = b.state("s", {DType::kF32, {8, 8}});
  Value sum = b.add(s, b.input("x", {DType::kF32, {8, 8}}));
  b.update("s", sum);
  b.output("y", b.mul(sum, s));  // reads the old contents after the new ones were made
  Plan plan = plan_memory(one_graph(graph), interpreter_target());
  check_plan(plan);
  EXPECT_EQ(ref(plan, "main", sum).kind, Kind::kArena);
}

TEST(PlanMemory, AnOutputOfOverwrittenContentsIsRefused) {
  Graph graph("main");
  Builder b(graph);
  Value s = b.state("s", {DType::kF32, {8, 8}});
  b.update("s", b.scale(s, 0.5));
  b.output("old", s);
  EXPECT_THROW(plan_memory(one_graph(graph), interpreter_target()), Error);
}

Graph cache_graph(bool read_old) {
  Graph graph("main");
  Builder b(graph);
  Value cache = b.state("kv", {DType::kF32, {16, 8}});
  Value rows = b.input("rows", {DType::kF32, {4, 8}}), slots = b.input("slots", {DType::kI32, {4}});
  Value once{b.emit(Op::kScatterRows, {cache, rows, slots}), 0};
  Value twice{b.emit(Op::kScatterRows, {once, b.scale(rows, 2), slots}), 0};
  b.output("y", b.reduce(read_old ? cache : twice, "sum", "rows"));
  b.update("kv", twice);
  return graph;
}

TEST(PlanMemory, CachesAreAppendedInPlace) {
  Plan plan = plan_memory(one_graph(cache_graph(false)), interpreter_target());
  check_plan(plan);
  const Graph& graph = plan.program.graph("main");
  for (int32_t i = 0; i < graph.size(); ++i) {
    if (graph.node(NodeId{i}).op != Op::kScatterRows) continue;
    EXPECT_EQ(ref(plan, "main", {NodeId{i}, 0}).kind, Kind::kState);
  }
  // The old cache read after the append: there is no second cache to keep it in.
  EXPECT_THROW(plan_memory(one_graph(cache_graph(true)), interpreter_target()), Error);
}

TEST(PlanMemory, StatesUpdatedFromEachOther) {
  Graph graph("main");
  Builder b(graph);
  TensorType type{DType::kF32, {16}};
  Value newest = b.state("newest", type), older = b.state("older", type);
  b.update("oldest", b.scale(older, 1));
  b.update("older", newest);
  b.update("newest", b.scale(newest, 0.5));
  Program program = one_graph(std::move(graph));
  program.add_state({.name = "oldest", .type = type});
  for (StateEntry& entry : program.states()) entry.initial = 8;
  Plan plan = plan_memory(program, cpu_target());
  check_plan(plan);
  auto executor = make_cpu_executor(plan);
  for (int run = 0; run < 3; ++run) executor->run("main");
  auto value = [&](const std::string& name) {
    std::vector<std::byte> bytes = tiny::state(*executor, name);
    return load_element(DType::kF32, bytes.data(), 3);
  };
  EXPECT_EQ(value("newest"), 1);
  EXPECT_EQ(value("older"), 2);
  EXPECT_EQ(value("oldest"), 4);
}

TEST(PlanMemory, TheCheckerSeesADamagedPlan) {
  Graph graph("main");
  Builder b(graph);
  Value a = b.silu(b.input("x", {DType::kF32, {4, 16}}));
  Value c = b.relu(a);
  b.output("y", b.add(a, c));
  Plan plan = plan_memory(one_graph(graph), interpreter_target());
  plan.graphs.at("main").buffers[static_cast<size_t>(index(c.node))][0] = ref(plan, "main", a);
  EXPECT_THROW(check_plan(plan), Error);
}

TEST(PlanMemory, TrainingStatesNeedNoCopies) {
  for (const char* architecture : {"gpt2", "llama"}) {
    Program program = tiny::training_program(architecture);
    Plan plan = plan_memory(program, interpreter_target());
    check_plan(plan);
    for (const Graph& graph : plan.program.graphs()) {
      for (const NamedValue& update : graph.updates()) {
        EXPECT_EQ(ref(plan, graph.name(), update.value).kind, Kind::kState)
            << graph.name() << " copies " << update.name << " from " << describe(graph, update.value.node);
      }
      const GraphPlan& graph_plan = plan.graphs.at(graph.name());
      EXPECT_LE(static_cast<double>(graph_plan.arena_bytes), 1.02 * static_cast<double>(graph_plan.live_bytes))
          << architecture << " " << graph.name();
    }
    int64_t saved = 0;
    for (const SavedValue& value : saved_for_backward(program.graph("train"))) saved += (value.bytes + 63) / 64 * 64;
    EXPECT_EQ(plan.graphs.at("train").saved_bytes, saved) << architecture;
  }
}

// A random program over [R, C] floats: elementwise ops, products, norms, views, states read and updated at random.
Program random_program(std::mt19937& random) {
  Graph graph("main");
  Builder b(graph);
  auto pick = [&](size_t n) { return static_cast<size_t>(random()) % n; };
  const int64_t size = 4 + 4 * static_cast<int64_t>(pick(4));
  TensorType type{DType::kF32, {size, size}};
  std::vector<Value> values = {b.input("x", type), b.input("z", type)};
  std::vector<std::string> states;
  for (size_t i = 0; i < 1 + pick(3); ++i) {
    states.push_back("s" + std::to_string(i));
    if (pick(4) > 0) values.push_back(b.state(states.back(), type));
  }
  Value weight = b.param("w", {size});
  size_t nodes = 5 + pick(60);
  for (size_t i = 0; i < nodes; ++i) {
    // Mostly recent values, sometimes old ones.
    auto any = [&] {
      return pick(3) > 0 ? values[values.size() - 1 - pick(std::min<size_t>(4, values.size()))]
                         : values[pick(values.size())];
    };
    switch (pick(9)) {
      case 0: values.push_back(b.add(any(), any())); break;
      case 1: values.push_back(b.mul(b.scale(any(), 0.25), any())); break;
      case 2: values.push_back(b.silu(any())); break;
      case 3: values.push_back(b.gelu(any(), true)); break;
      case 4: values.push_back(b.scale(b.matmul(any(), any(), pick(2) == 0, pick(2) == 0, any()), 0.1)); break;
      case 5: values.push_back(b.rms_norm(any(), weight, 1e-3).y); break;
      case 6: values.push_back(b.reshape(b.reshape(any(), {size * size}), {size, size})); break;
      case 7: values.push_back(b.transpose(any())); break;
      default: values.push_back(b.add(b.mul(any(), weight), any())); break;
    }
  }
  for (const std::string& state : states) {
    Value value = values[pick(values.size())];
    if (pick(4) > 0) b.update(state, graph.node(value).op == Op::kInput ? b.scale(value, 0.5) : value);
  }
  for (size_t i = 0; i < 3; ++i) {
    Value value = values[values.size() - 1 - pick(values.size() / 2)];
    Value shown = value;
    while (graph.node(shown).op == Op::kReshape) shown = graph.node(shown).inputs[0];
    b.output("y" + std::to_string(i), graph.node(shown).op == Op::kState ? b.scale(value, 1) : value);
  }
  Program program = one_graph(std::move(graph));
  for (const std::string& state : states) program.add_state({.name = state, .type = type, .initial = 0.5});
  for (StateEntry& entry : program.states()) entry.initial = 0.5;
  return program;
}

// Planned and unplanned runs agree; three runs each, so that the arena is full of the last run's leftovers.
TEST(PlanMemory, RandomProgramsComputeWhatTheInterpreterComputes) {
  constexpr uint32_t kSeed = 20;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  double worst_ratio = 1;
  for (int round = 0; round < 120; ++round) {
    Program program = random_program(random);
    Plan plan = plan_memory(program, cpu_target());
    check_plan(plan);
    const GraphPlan& graph_plan = plan.graphs.at("main");
    if (graph_plan.live_bytes > 0) {
      worst_ratio = std::max(worst_ratio,
                             static_cast<double>(graph_plan.arena_bytes) / static_cast<double>(graph_plan.live_bytes));
    }
    auto planned = make_cpu_executor(plan);
    auto defined = make_interpreter(program);
    for (int run = 0; run < 3; ++run) {
      for (const char* name : {"x", "z"}) {
        auto a = input_as<float>(*planned, "main", name), c = input_as<float>(*defined, "main", name);
        for (size_t i = 0; i < a.size(); ++i) a[i] = c[i] = static_cast<float>(random() % 2001) / 1000 - 1;
      }
      planned->run("main");
      defined->run("main");
      for (const NamedValue& output : program.graph("main").outputs()) {
        auto got = output_as<float>(*planned, "main", output.name);
        auto want = output_as<float>(*defined, "main", output.name);
        ASSERT_EQ(got.size(), want.size());
        double scale = 1e-3;
        for (float value : want) scale = std::max(scale, static_cast<double>(std::abs(value)));
        for (size_t i = 0; i < got.size(); ++i) {
          // Rounding of up to 60 float32 ops in another order; a value overwritten too early is off by its own size.
          ASSERT_NEAR(got[i], want[i], 2e-3 * scale) << "round " << round << " run " << run << " " << output.name;
        }
      }
    }
  }
  EXPECT_LT(worst_ratio, 1.4);  // tiny graphs of equal pieces
}

}  // namespace
}  // namespace octet
