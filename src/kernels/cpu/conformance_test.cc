// Every kernel row against the reference, over the whole case list (conformance.h says how).
#include "kernels/cpu/testing/conformance.h"

#include <gtest/gtest.h>

namespace octet::cpu {
namespace {

class Conformance : public testing::TestWithParam<int> {};

TEST_P(Conformance, EveryRowAgreesWithTheReference) {
  const auto op = static_cast<Op>(GetParam());
  for (const Case& c : all_cases()) {
    if (c.op != op || c.large) continue;
    for (DType dtype : c.dtypes) {
      SCOPED_TRACE(case_name(c, dtype));
      const BuiltCase built = build_case(c, dtype);
      const std::vector<RefTensor> expected = evaluate_node(built.graph, built.node(), built.in(), true);
      for (const KernelEntry& row : kernel_entries(op)) {
        if (!row.bind(built.graph, built.node())) continue;
        const auto failures = check_row(row, built.graph, built.node(), built.inputs, expected, c.tolerance);
        for (const std::string& failure : failures) ADD_FAILURE() << failure;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, Conformance, testing::Range(0, static_cast<int>(all_ops().size())),
                         [](const auto& info) { return std::string(op_name(static_cast<Op>(info.param))); });

}  // namespace
}  // namespace octet::cpu
