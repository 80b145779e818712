#include "passes/passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "exec/executor.h"
#include "exec/testing/tiny_program.h"
#include "ir/verify.h"
#include "model/model.h"

namespace octet {
namespace {

std::vector<double> read_f32(Executor& executor, const std::string& state) {
  std::vector<std::byte> bytes = tiny::state(executor, state);
  std::vector<double> values(bytes.size() / 4);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = load_element(DType::kF32, bytes.data(), static_cast<int64_t>(i));
  }
  return values;
}

Program model_program(const std::string& architecture, double dropout) {
  ModelConfig config = tiny::model(architecture);
  config.dropout = dropout;
  Program program;
  Graph graph(GraphRole::kTrain);
  Builder builder(graph);
  build_loss(builder, config,
             {.tokens = tiny::kTokens, .max_segments = 2, .max_length = tiny::kLength, .training = true});
  program.add_graph(std::move(graph));
  return program;
}

double loss_of(Executor& executor, const std::string& graph) {
  tiny::feed(executor, graph, 0);
  input_as<float>(executor, graph, "loss_scale")[0] = 0.5f;
  if (executor.program().graph(graph).find_leaf(Op::kInput, "rng").exists()) {
    auto rng = input_as<int64_t>(executor, graph, "rng");
    rng[0] = 3, rng[1] = 5, rng[2] = 1;
  }
  executor.run(graph);
  return output_as<float>(executor, graph, "loss")[0];
}

class AutodiffModels : public testing::TestWithParam<std::pair<const char*, double>> {};

// Central differences along one random direction through all parameters at once, one per parameter name too.
TEST_P(AutodiffModels, GradientsMatchFiniteDifferences) {
  auto [architecture, dropout] = GetParam();
  Program program = model_program(architecture, dropout);
  ASSERT_TRUE(autodiff(program, {}));
  verify(program);
  auto executor = make_interpreter(program, InterpretMode::kFloat64);
  tiny::initialize(*executor);
  loss_of(*executor, "train");
  Philox random(11, 1);
  int checked = 0;
  for (const StateEntry& entry : program.states()) {
    if (entry.role != StateRole::kMaster) continue;
    // Few elements per parameter keep this fast: perturb along a sparse direction.
    std::vector<double> values = read_f32(*executor, entry.name), gradient = read_f32(*executor, "grad." + entry.name);
    ASSERT_EQ(values.size(), gradient.size());
    if (entry.name.find("layers.1") != std::string::npos && entry.name.find("q.") == std::string::npos) continue;
    std::vector<double> direction(values.size());
    for (double& d : direction) d = random.normal() / std::sqrt(static_cast<double>(values.size()));
    double predicted = 0;
    for (size_t i = 0; i < values.size(); ++i) predicted += gradient[i] * direction[i];
    auto loss_at = [&](double step) {
      std::vector<float> moved(values.size());
      for (size_t i = 0; i < values.size(); ++i) moved[i] = static_cast<float>(values[i] + step * direction[i]);
      tiny::write_state(*executor, entry.name, moved);
      return 0.5 * loss_of(*executor, "train");  // dL/dloss is the loss_scale
    };
    constexpr double kStep = 0.02;
    double measured =
        (8 * (loss_at(kStep) - loss_at(-kStep)) - (loss_at(2 * kStep) - loss_at(-2 * kStep))) / (12 * kStep);
    loss_at(0);
    // The loss output is float32 around 60 and the stencil divides its rounding by 0.02: 1e-3 absolute; the stencil's
    // own error is O(step^4).
    EXPECT_NEAR(predicted, measured, 1e-3 + 2e-3 * std::abs(measured)) << entry.name;
    ++checked;
  }
  EXPECT_GT(checked, 8);
}

INSTANTIATE_TEST_SUITE_P(Families, AutodiffModels,
                         testing::Values(std::pair{"gpt2", 0.0}, std::pair{"gpt2", 0.2}, std::pair{"llama", 0.0}),
                         [](const auto& info) {
                           return std::string(info.param.first) + (info.param.second > 0 ? "_dropout" : "");
                         });

TEST(Autodiff, AccumulateAddsInsideTheProducts) {
  Program program = model_program("gpt2", 0);
  autodiff(program, {});
  // Every weight gradient reads its state: through the third operand of its product where it has one.
  const Graph& graph = program.graph("accumulate");
  for (const NamedValue& update : graph.updates()) {
    Value state = graph.find_leaf(Op::kState, update.name);
    ASSERT_TRUE(state.exists()) << update.name;
    const Node& node = graph.node(update.value);
    if (graph.shape(update.value).rank() < 2) continue;
    ASSERT_TRUE(node.op == Op::kMatmul || node.op == Op::kEmbeddingGrad) << update.name << ": " << op_name(node.op);
    ASSERT_EQ(node.inputs.size(), 3u) << update.name;
  }
  // The tied table: the head's product feeds the embedding's sum.
  Value table = {};
  for (const NamedValue& update : graph.updates()) {
    if (update.name == "grad.embed.weight") table = update.value;
  }
  const Node& gathered = graph.node(table);
  ASSERT_EQ(gathered.op, Op::kEmbeddingGrad);
  const Node& head = graph.node(gathered.inputs[2]);
  ASSERT_EQ(head.op, Op::kMatmul);
  EXPECT_EQ(head.inputs[2], graph.find_leaf(Op::kState, "grad.embed.weight"));
}

TEST(Autodiff, TwoMicroBatchesAddUp) {
  Program program = model_program("llama", 0);
  autodiff(program, {});
  auto executor = make_interpreter(program);
  tiny::initialize(*executor);
  loss_of(*executor, "train");
  std::map<std::string, std::vector<double>> once;
  for (const StateEntry& entry : program.states()) {
    if (entry.role == StateRole::kGradient) once[entry.name] = read_f32(*executor, entry.name);
  }
  loss_of(*executor, "accumulate");
  for (const auto& [name, values] : once) {
    std::vector<double> twice = read_f32(*executor, name);
    double scale = 0;
    for (double value : values) scale = std::max(scale, std::abs(value));
    EXPECT_GT(scale, 0) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      // Sums of float32 products in another order: a few ulp of the largest.
      ASSERT_NEAR(twice[i], 2 * values[i], 4e-6 * scale) << name << "[" << i << "]";
    }
  }
}

TEST(Autodiff, NodesCarryLayerAndPhase) {
  Program program = model_program("gpt2", 0);
  autodiff(program, {});
  const Graph& graph = program.graph("train");
  int backward = 0, layered = 0;
  for (const Node& node : graph.nodes()) {
    if (node.phase != Phase::kBackward) continue;
    ++backward;
    layered += node.layer >= 0;
    EXPECT_FALSE(node.name.empty());
  }
  EXPECT_GT(layered, backward / 2);
  EXPECT_EQ(graph.stage(), Stage::kGradient);
}

TEST(Autodiff, UnreachedParameterGetsZeros) {
  Program program;
  Graph graph(GraphRole::kTrain);
  Builder b(graph);
  Value unused = b.param("unused", {3});
  Value used = b.param("used", {2, 3});
  b.output("loss", b.reduce(used, "sum", "all"));
  b.output("other", unused);
  program.add_graph(std::move(graph));
  autodiff(program, {});
  verify(program);
  auto executor = make_interpreter(program);
  input_as<float>(*executor, "train", "loss_scale")[0] = 2;
  executor->run("train");
  EXPECT_EQ(read_f32(*executor, "grad.unused"), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(read_f32(*executor, "grad.used"), (std::vector<double>{2, 2, 2, 2, 2, 2}));
}

TEST(Autodiff, TakesTheGraphOfRoleTrainWhateverItsName) {
  Program program;
  for (auto [name, role] : {std::pair{"first", GraphRole::kTrain}, {"train", GraphRole::kNone}}) {
    Graph graph(name, role);
    Builder b(graph);
    b.output("loss", b.reduce(b.param("w", {2, 3}), "sum", "all"));
    program.add_graph(std::move(graph));
  }
  autodiff(program, {});
  ASSERT_EQ(program.graphs().size(), 3u);
  EXPECT_EQ(program.graph("first").updates().size(), 2u) << "of the gradient and the loss";
  EXPECT_TRUE(program.graph("train").updates().empty());
  EXPECT_EQ(program.find_graph(GraphRole::kAccumulate)->name(), "accumulate");
}

TEST(Autodiff, RefusesALossThatIsNoScalarAndOpsWithoutGradient) {
  Graph graph(GraphRole::kTrain);
  Builder b(graph);
  b.output("loss", b.param("w", {2, 2}));
  EXPECT_THROW(differentiate(graph), Error);
  Graph largest(GraphRole::kTrain);
  Builder c(largest);
  c.output("loss", c.reduce(c.param("w", {2, 2}), "amax", "all"));
  try {
    differentiate(largest);
    FAIL() << "amax has no gradient";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.message();
  }
}

}  // namespace
}  // namespace octet
