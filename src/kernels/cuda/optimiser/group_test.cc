// Groups of updates on the device against their members, bit for bit: updates alone on the device, casts and amaxes by
// the CPU.
#include <gtest/gtest.h>

#include "ir/facts.h"
#include "kernels/cpu/testing/conformance.h"
#include "kernels/cuda/optimiser/group_cases.h"
#include "kernels/cuda/testing/on_device.h"

namespace octet::cuda {
namespace {

class UpdateGroup : public testing::TestWithParam<const char*> {};

TEST_P(UpdateGroup, EqualsItsMembers) {
  std::string why;
  DeviceContext* context = test_context(&why);
  if (context == nullptr) GTEST_SKIP() << why;
  // Vector tails, several chunks, one element, more chunks than blocks; a whole table of small ones.
  const std::vector<Shape> mixed = {{3, 5}, {1}, {130, 257}, {64, 1024}, {4096}, {7}, {1700, 1701}};
  for (const std::vector<Shape>& shapes : {mixed, std::vector<Shape>(32, Shape{37, 5})}) {
    for (double finite : {1.0, 0.0}) {
      const cpu::Case c = update_group_case(*find_op(GetParam()), shapes, finite);
      for (DType dtype : c.dtypes) {
        SCOPED_TRACE(cpu::case_name(c, dtype));
        const cpu::BuiltCase built = cpu::build_case(c, dtype);
        EXPECT_EQ(std::string(select_kernel(built.graph, built.node()).name), "update_group");
        const auto run = [&](const Graph& graph, const Node& node, const std::vector<cpu::RefTensor>& inputs) {
          if (node.op != Op::kFusion && !is_optimizer_update(node.op)) return cpu::run_node(graph, node, inputs);
          return run_node(*context, graph, node, inputs);
        };
        for (const std::string& failure : cpu::check_fusion(built.graph, built.node(), built.inputs, run)) {
          ADD_FAILURE() << failure;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimisers, UpdateGroup, testing::Values("adamw", "sgd", "adam_direction"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace octet::cuda
