// Every fast kernel row, fusions included, on the nodes and values of whole training programs under every recipe: one
// step of a tiny model through the interpreter, and each node's rows against its results.
#include "exec/testing/program_conformance.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ir/text.h"
#include "passes/fuse_patterns.h"

namespace octet {
namespace {

using conformance::Setting;

class ProgramConformanceOf : public testing::TestWithParam<Setting> {};

TEST_P(ProgramConformanceOf, EveryRowAgreesOnEveryNode) {
  std::map<std::string, int> checked;  // by row
  conformance::visit_step(
      conformance::compiled_plan(GetParam(), cpu_target()).program, [&](const conformance::Visit& v) {
        SCOPED_TRACE(v.where);
        for (const cpu::KernelEntry& row : cpu::kernel_entries(v.node.op)) {
          if (std::string(row.name) == "reference" || !row.bind(v.graph, v.node)) continue;
          const auto failures = cpu::check_row(row, v.graph, v.node, v.inputs, v.results, v.tolerance, v.neighbours);
          for (const std::string& failure : failures) ADD_FAILURE() << failure;
          ++checked[row.name];
        }
        if (v.node.op != Op::kFusion) return;
        EXPECT_STREQ(cpu::select_kernel(v.graph, v.node).name, "fusion_rows");
        for (const std::string& failure : cpu::check_fusion(v.graph, v.node, v.inputs)) ADD_FAILURE() << failure;
      });
  for (const auto& [row, count] : checked) RecordProperty(row, count);
}

INSTANTIATE_TEST_SUITE_P(Recipes, ProgramConformanceOf, testing::ValuesIn(conformance::settings()),
                         [](const auto& info) { return conformance::setting_name(info.param); });

// A part that no program here has is one that nothing makes, or that nothing tests.
TEST(ProgramConformance, MeetsEveryPartOfEveryProducer) {
  const Target target = cpu_target();
  std::array<uint32_t, kProducers> met = {};
  for (const Setting& setting : conformance::settings()) {
    const Program program = conformance::compiled_plan(setting, target).program;
    for (const Graph& graph : program.graphs()) {
      for (const Node& node : graph.nodes()) {
        if (node.op == Op::kFusion)
          met[static_cast<size_t>(fusion_producer(*node.body).value())] |= fusion_parts(*node.body);
      }
    }
  }
  for (Producer squared : {Producer::kActivation, Producer::kActivationGrad})  // those of SquaredActivations below
    met[static_cast<size_t>(squared)] |= static_cast<uint32_t>(FusionPart::kCore);
  for (int p = 0; p < kProducers; ++p)
    EXPECT_EQ(met[static_cast<size_t>(p)], target.fusions[static_cast<size_t>(p)])
        << producer_name(static_cast<Producer>(p));
}

// The square of an activation is a composition: mul(relu(x), relu(x)), and what autodiff makes of it.
TEST(ProgramConformance, SquaredActivationsFuseForwardAndBackward) {
  Graph graph = parse_graph(R"(graph @train stage precise
  %0 = input : bf16[6,32] @x
  %1 = input : bf16[6,32] @dy
  %2 = state : f32[1] @scale
  %3 = relu %0 @relu
  %4 = mul %3, %3 @square
  %5 = quantize %4, %2 {format="e4m3", scaling="tensor"} @codes
  %6 = mul %1, %3 @product phase backward
  %7 = add %6, %6 @sum phase backward
  %8 = relu_grad %0, %7 @grad phase backward
  %9 = reduce %8 {axis="rows", reduction="sum"} @bias_grad phase backward
  output @codes %5
  output @scale_inv %5.1
  output @dx %8
  output @bias_grad %9
end
)");
  ASSERT_TRUE(fuse_graph(graph, cpu_target()));
  std::vector<std::string> labels;
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::kFusion) continue;
    labels.push_back(fusion_label(node));
    EXPECT_TRUE(read_chain(*node.body).value().squared);
    EXPECT_STREQ(cpu::select_kernel(graph, node).name, "fusion_rows");
    std::vector<cpu::RefTensor> inputs;
    for (Value input : node.inputs) {
      cpu::RefTensor tensor{graph.type(input), {}};
      for (int64_t i = 0; i < tensor.type.shape.elements(); ++i)
        tensor.values.push_back(round_to(tensor.type.dtype, std::sin(1.7 * static_cast<double>(i + 1))));
      inputs.push_back(std::move(tensor));
    }
    for (const std::string& failure : cpu::check_fusion(graph, node, inputs)) ADD_FAILURE() << failure;
  }
  EXPECT_EQ(labels, (std::vector<std::string>{"relu+mul+quantize", "mul+add+relu_grad+sum"}));
}

}  // namespace
}  // namespace octet
