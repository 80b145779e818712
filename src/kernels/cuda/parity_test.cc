// Every CUDA kernel row against the reference, over the whole case list; fusions against their members, bit for bit.
#include "kernels/cpu/parity.h"

#include <gtest/gtest.h>

#include "kernels/cuda/on_device.h"

namespace octet::cuda {
namespace {

class CudaParity : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::string why;
    context_ = test_context(&why);
    if (context_ == nullptr) GTEST_SKIP() << why;
  }
  DeviceContext* context_ = nullptr;
};

TEST_P(CudaParity, EveryRowAgreesWithTheReference) {
  const auto op = static_cast<Op>(GetParam());
  for (const cpu::Case& c : cpu::all_cases()) {
    if (c.op != op || c.large) continue;
    for (DType dtype : c.dtypes) {
      SCOPED_TRACE(cpu::case_name(c, dtype));
      const cpu::BuiltCase built = cpu::build_case(c, dtype);
      const auto expected = cpu::evaluate_node(built.graph, built.node(), built.in(), true);
      for (const KernelRow& row : kernel_rows(op)) {
        if (!row.accepts(built.graph, built.node())) continue;
        const auto kernel = on_device(*context_, row, built.graph, built.node());
        for (const std::string& failure :
             cpu::check_kernel(row.name, kernel, built.graph, built.node(), built.inputs, expected, c.tolerance))
          ADD_FAILURE() << failure;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, CudaParity, testing::Range(0, static_cast<int>(all_ops().size())),
                         [](const auto& info) { return std::string(op_name(static_cast<Op>(info.param))); });

}  // namespace
}  // namespace octet::cuda
