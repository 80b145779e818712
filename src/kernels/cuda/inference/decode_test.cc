// Items that several blocks share: the last to arrive joins the pieces, to the same bits, and leaves the counts at 0.
#include <gtest/gtest.h>

#include "kernels/cpu/testing/conformance.h"
#include "kernels/cuda/testing/on_device.h"

namespace octet::cuda {
namespace {

TEST(Decode, JoinsToTheSameBitsAndClearsItsCounts) {
  std::string why;
  DeviceContext* context = test_context(&why);
  if (context == nullptr) GTEST_SKIP() << why;
  for (const cpu::Case& c : cpu::all_cases()) {
    if (c.op != Op::kPagedAttention || !(c.name.starts_with("long_") || c.name.starts_with("uneven_"))) continue;
    SCOPED_TRACE(c.name);
    const cpu::BuiltCase built = cpu::build_case(c, DType::kBF16);
    const auto first = run_node(*context, built.graph, built.node(), built.inputs);
    for (int run = 0; run < 20; ++run) {
      EXPECT_EQ(run_node(*context, built.graph, built.node(), built.inputs), first) << "run " << run;
    }
    std::vector<uint32_t> counts(DeviceContext::kCounters, 1);
    check_cuda(cudaMemcpy(counts.data(), context->counters(), counts.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost),
               "reading counters");
    EXPECT_EQ(counts, std::vector<uint32_t>(counts.size()));
  }
}

}  // namespace
}  // namespace octet::cuda
