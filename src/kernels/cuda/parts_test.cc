// Rows for nodes that see a part of the whole (ir/localize.h): found without a GPU, since they are chosen by types,
// shapes and attributes. conformance_test.cc runs each of them.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "ir/localize.h"
#include "kernels/cpu/testing/cases.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/kernel.h"

namespace octet::cuda {
namespace {

TEST(CudaParts, EveryCaseOfAPartHasARow) {
  int parts = 0;
  for (const cpu::Case& c : cpu::all_cases()) {
    for (DType dtype : c.dtypes) {
      const cpu::BuiltCase built = cpu::build_case(c, dtype, false);
      if (!is_localized(built.node())) continue;
      ++parts;
      EXPECT_NO_THROW(select_kernel(built.graph, built.node())) << cpu::case_name(c, dtype);
    }
  }
  EXPECT_GT(parts, 0);
}

// What an entry takes follows from the node alone: without a device it binds as well, says what scratch it needs, and
// does not run what it could not make.
TEST(CudaEntries, BindWithoutADevice) {
  int scratch = 0;
  for (const cpu::Case& c : cpu::all_cases()) {
    for (DType dtype : c.dtypes) {
      const cpu::BuiltCase built = cpu::build_case(c, dtype, false);
      const SelectedKernel selected = find_kernel(facts_alone(), built.graph, built.node());
      EXPECT_EQ(selected.entry != nullptr, bool(selected.kernel)) << cpu::case_name(c, dtype);
      scratch += selected.kernel.workspace > 0;
    }
  }
  EXPECT_GT(scratch, 0);
  EXPECT_FALSE(facts_alone().has_device());
  EXPECT_THROW(without_device()({}), Error);
}

// cuDNN's masks go by the heads it sees, and it knows no biases: it takes neither of a part, but the rest.
TEST(CudaParts, CudnnTakesHeadsOfAPartWithoutDropoutOnly) {
  const KernelEntry& cudnn = kernel_entries(Op::kAttention).front();
  ASSERT_STREQ(cudnn.name, "attention_cudnn");
  std::set<bool> seen;
  for (const cpu::Case& c : cpu::all_cases()) {
    if (c.op != Op::kAttention || !c.attrs.has("first_head")) continue;
    cpu::Case masked = c;
    masked.attrs.set("library_mask", true);
    const cpu::BuiltCase built = cpu::build_case(masked, DType::kBF16, false);
    const bool plain = c.attrs.get<double>("dropout") == 0 && !c.attrs.has("alibi");
    EXPECT_EQ(cudnn.takes(built.graph, built.node()), plain) << c.name;
    seen.insert(plain);
  }
  EXPECT_EQ(seen.size(), 2u);
}

}  // namespace
}  // namespace octet::cuda
