// Every gradient rule against central differences: the case list's inputs, float64 throughout, loss = sum of result 0
// times fixed random weights.
#include <gtest/gtest.h>

#include <map>

#include "ir/builder.h"
#include "ir/facts.h"
#include "kernels/cpu/testing/cases.h"
#include "passes/passes.h"

namespace octet {
namespace {

using cpu::BuiltCase;
using cpu::Case;
using cpu::RefTensor;

constexpr double kStep = 1e-5;
// Truncation kStep^2 times third derivatives of order 1-100, cancellation 1e-16 / kStep times the loss's size.
constexpr double kTolerance = 2e-6;
constexpr int64_t kProbes = 40;  // elements per input

// The case's float inputs as params, so that differentiate() makes their gradients.
struct Differentiable {
  Graph graph;
  std::vector<int> params;  // which inputs
};

Differentiable make(const BuiltCase& built, const RefTensor& weights) {
  Differentiable result;
  Graph& graph = result.graph;
  Node node = built.node();
  for (size_t i = 0; i < built.inputs.size(); ++i) {
    if (!node.inputs[i].exists()) continue;
    const TensorType& type = built.inputs[i].type;
    const bool trainable = type.dtype == DType::kF32;
    if (trainable) result.params.push_back(static_cast<int>(i));
    node.inputs[i] = {
        graph.add({.op = trainable ? Op::kParam : Op::kInput, .results = {type}, .name = fmt::format("in{}", i)}), 0};
  }
  node.results.clear();
  node.name = "case";
  const Value y{graph.add(node), 0};
  Builder builder(graph);
  const Value weighted = builder.mul(y, builder.input("weights", weights.type));
  graph.outputs().push_back({"loss", builder.reduce(weighted, "sum", "all")});
  return result;
}

class GradientRules : public testing::TestWithParam<int> {};

TEST_P(GradientRules, AgreeWithFiniteDifferences) {
  const auto op = static_cast<Op>(GetParam());
  int checked = 0;
  for (const Case& c : cpu::all_cases()) {
    if (c.op != op || c.large || !c.gradient) continue;
    if (std::find(c.dtypes.begin(), c.dtypes.end(), DType::kF32) == c.dtypes.end()) continue;
    SCOPED_TRACE(cpu::case_name(c, DType::kF32));
    BuiltCase built = cpu::build_case(c, DType::kF32);
    RefTensor weights{built.node().results[0], {}};
    Philox random(99);
    for (int64_t i = 0; i < weights.type.shape.elements(); ++i) weights.values.push_back(random.normal());
    const Differentiable forward = make(built, weights);
    const Graph backward = differentiate(forward.graph);
    const RefTensor one{{DType::kF32, {1}}, {1.0}};
    const auto leaf = [&](const Node& node) -> const RefTensor& {
      if (node.name == "weights") return weights;
      if (node.name == "loss_scale") return one;
      return built.inputs[static_cast<size_t>(std::stoi(node.name.substr(2)))];
    };
    const auto loss = [&] { return cpu::evaluate(forward.graph, leaf, false).outputs[0].values[0]; };
    const auto gradients = cpu::evaluate(backward, leaf, false).outputs;
    for (int i : forward.params) {
      const std::string name = fmt::format("grad.in{}", i);
      const RefTensor* gradient = nullptr;
      for (size_t o = 0; o < backward.outputs().size(); ++o) {
        if (backward.outputs()[o].name == name) gradient = &gradients[o];
      }
      ASSERT_NE(gradient, nullptr) << name;
      auto& values = built.inputs[static_cast<size_t>(i)].values;
      ASSERT_EQ(gradient->values.size(), values.size()) << name;
      const auto stride = std::max<size_t>(1, values.size() / kProbes);
      for (size_t e = 0; e < values.size(); e += stride) {
        const double kept = values[e];
        values[e] = kept + kStep;
        const double above = loss();
        values[e] = kept - kStep;
        const double below = loss();
        values[e] = kept;
        const double expected = (above - below) / (2 * kStep);
        EXPECT_NEAR(gradient->values[e], expected, kTolerance * (1 + std::fabs(expected))) << name << " element " << e;
      }
      ++checked;
    }
  }
  EXPECT_GT(checked, 0) << "the case list has no smooth case";
}

// A log-sum-exp made of the same logits by another node: what reaches them through it is counted once.
TEST(GradientRules, CountAGivenLogSumExpOnce) {
  const TensorType logits{DType::kF32, {4, 7}};
  const auto loss_of = [&](bool given) {
    Graph graph("g");
    Builder b(graph);
    const Value x = b.param("x", logits.shape), targets = b.targets(4);
    Builder::Loss loss = b.cross_entropy(x, targets);
    if (given) loss = b.cross_entropy(x, targets, loss.lse);
    b.output("loss", b.reduce(b.mul(loss.per_token, b.input("weights", {DType::kF32, {4}})), "sum", "all"));
    return graph;
  };
  Philox random(5);
  const auto filled = [&](const TensorType& type) {
    RefTensor tensor{type, {}};
    for (int64_t i = 0; i < type.shape.elements(); ++i) tensor.values.push_back(random.normal());
    return tensor;
  };
  const std::map<std::string, RefTensor> leaves = {{"x", filled(logits)},
                                                   {"weights", filled({DType::kF32, {4}})},
                                                   {"targets", {{DType::kI32, {4}}, {2, -1, 0, 6}}},
                                                   {"loss_scale", {{DType::kF32, {1}}, {1.0}}}};
  const auto leaf = [&](const Node& node) -> const RefTensor& { return leaves.at(node.name); };
  const Graph own = differentiate(loss_of(false)), given = differentiate(loss_of(true));
  const auto expected = cpu::evaluate(own, leaf, false).outputs, actual = cpu::evaluate(given, leaf, false).outputs;
  ASSERT_EQ(actual.size(), expected.size());
  ASSERT_GE(actual.size(), 2u) << "the loss and the gradient of x";
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_EQ(actual[i].values, expected[i].values) << own.outputs()[i].name;
}

std::vector<int> ops_with_rules() {
  std::vector<int> ops;
  for (const OpInfo& info : all_ops()) {
    if (info.op == Op::kGroupRows) continue;  // counts of choices: nothing is smooth
    if (op_facts(info.op).gradient != nullptr) ops.push_back(static_cast<int>(info.op));
  }
  return ops;
}

INSTANTIATE_TEST_SUITE_P(Ops, GradientRules, testing::ValuesIn(ops_with_rules()),
                         [](const auto& info) { return std::string(op_name(static_cast<Op>(info.param))); });

}  // namespace
}  // namespace octet
