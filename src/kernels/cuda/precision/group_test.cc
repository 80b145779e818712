// Groups of scales and of amaxes on the device against their members, bit for bit.
#include "kernels/cuda/precision/group_cases.h"

#include <gtest/gtest.h>

#include "kernels/cuda/precision/scales.h"
#include "kernels/cuda/testing/on_device.h"

namespace octet::cuda {
namespace {

void expect_members(const cpu::Case& c, const char* row) {
  SCOPED_TRACE(cpu::case_name(c, DType::kF32));
  const cpu::BuiltCase built = cpu::build_case(c, DType::kF32);
  EXPECT_EQ(std::string(select_kernel(built.graph, built.node()).name), row);
  std::string why;
  DeviceContext* context = test_context(&why);
  if (context == nullptr) GTEST_SKIP() << why;
  // Whole tables have too many operands to try every one in the place of another.
  const auto run = [&](const Graph& graph, const Node& node, const std::vector<cpu::RefTensor>& inputs) {
    return run_node(*context, graph, node, inputs);
  };
  for (const std::string& failure : built.inputs.size() < 32
                                        ? fusion_failures(*context, built)
                                        : cpu::check_fusion(built.graph, built.node(), built.inputs, run))
    ADD_FAILURE() << failure;
}

TEST(ScaleGroups, EqualTheirMembers) {
  for (const char* algo : {"max", "most_recent"}) {
    for (int64_t length : {1, 16, 300})
      expect_members(update_scales_group_case(7, length, algo), "update_scales_group");
    expect_members(update_scales_group_case(kScaleEntries, 1024, algo), "update_scales_group");
    for (double finite : {0.0, 1.0})
      expect_members(update_scales_group_case(7, 16, algo, {finite}), "update_scales_group");
  }
}

TEST(ScaleGroups, MaximaEqualTheirMembers) {
  for (int count : {1, 7, kMaximumEntries}) expect_members(maximum_group_case(count), "maximum_group");
}

}  // namespace
}  // namespace octet::cuda
