// Every fast kernel row, fusions included, on the nodes and values of whole training programs under every recipe: one
// step of a tiny model through the interpreter, and each node's rows against its results.
#include "exec/testing/program_parity.h"

#include <gtest/gtest.h>

namespace octet {
namespace {

using parity::Setting;

class ProgramParityOf : public testing::TestWithParam<Setting> {};

TEST_P(ProgramParityOf, EveryRowAgreesOnEveryNode) {
  std::map<std::string, int> checked;  // by row
  parity::visit_step(parity::compiled_plan(GetParam(), cpu_target()).program, [&](const parity::Visit& v) {
    SCOPED_TRACE(v.where);
    for (const cpu::KernelRow& row : cpu::kernel_rows(v.node.op)) {
      if (std::string(row.name) == "reference" || !row.accepts(v.graph, v.node)) continue;
      const auto failures = cpu::check_row(row, v.graph, v.node, v.inputs, v.results, v.tolerance, v.neighbours);
      for (const std::string& failure : failures) ADD_FAILURE() << failure;
      ++checked[row.name];
    }
    if (v.node.op != Op::kFusion) return;
    for (const std::string& failure : cpu::check_fusion(v.graph, v.node, v.inputs)) ADD_FAILURE() << failure;
  });
  for (const auto& [row, count] : checked) RecordProperty(row, count);
}

INSTANTIATE_TEST_SUITE_P(Recipes, ProgramParityOf, testing::ValuesIn(parity::settings()),
                         [](const auto& info) { return parity::setting_name(info.param); });

// A kind that no program here has is one that nothing makes, or that nothing tests.
TEST(ProgramParity, MeetsEveryFusionKind) {
  std::map<std::string, int> met;
  for (const std::string& kind : cpu::fusion_kinds()) met[kind] = 0;
  for (const Setting& setting : parity::settings()) {
    const Program program = parity::compiled_plan(setting, cpu_target()).program;
    for (const Graph& graph : program.graphs()) {
      for (const Node& node : graph.nodes()) {
        if (node.op == Op::kFusion) ++met.at(parity::kind_of(node));
      }
    }
  }
  for (const auto& [kind, count] : met) EXPECT_GT(count, 0) << kind;
}

}  // namespace
}  // namespace octet
