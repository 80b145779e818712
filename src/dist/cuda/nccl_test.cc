// Finding NCCL: what is said where it cannot be used. What it carries is tested on GPUs,
// tests/cuda/collectives_test.cc.
#include "dist/cuda/nccl.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace octet {
namespace {

std::string refusal(const std::vector<std::string>& paths) {
  try {
    return "found version " + nccl_version(paths);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    return error.message();
  }
}

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (refusal({"/nowhere/libnccl.so.2"}).find("built without") != std::string::npos)
      GTEST_SKIP() << "this build has no header of NCCL";
  }
};

TEST(NcclBuilds, WithOrWithoutItsHeaderSayTheWayOut) {
  const std::string message = refusal({"/nowhere/libnccl.so.2"});
  EXPECT_TRUE(message.find("scripts/setup.sh cuda") != std::string::npos ||
              message.find("the Python package nvidia-nccl-cu13") != std::string::npos)
      << message;
}

TEST_F(Nccl, APlaceWithoutItIsNamed) {
  EXPECT_NE(refusal({"/nowhere/libnccl.so.2"}).find("looked for as /nowhere/libnccl.so.2, and not found"),
            std::string::npos);
}

TEST_F(Nccl, AnotherLibraryIsRefused) {
  const std::string message = refusal({"/nowhere/libnccl.so.2", "libm.so.6"});
  EXPECT_NE(message.find("libm.so.6 is not a whole NCCL"), std::string::npos) << message;
}

}  // namespace
}  // namespace octet
