// Which devices of a host are used: told from what they are, without a GPU.
#include "kernels/cuda/context.h"

#include <gtest/gtest.h>

namespace octet::cuda {
namespace {

const DeviceFacts kHopper{"NVIDIA H200", 9, 0}, kAda{"NVIDIA L40S", 8, 9}, kBlackwell{"NVIDIA B200", 10, 0};

TEST(Devices, HostsWithOtherCardsUseThoseTheKernelsRunOn) {
  const auto usable = [](const std::vector<DeviceFacts>& devices) { return devices_with_kernels(devices); };
  EXPECT_EQ(usable({kHopper, kHopper}), (std::vector<int>{0, 1}));
  EXPECT_EQ(usable({kAda, kHopper, kBlackwell, kHopper}), (std::vector<int>{1, 3}));
  EXPECT_TRUE(usable({}).empty());
}

TEST(Devices, WhereNoneWillDoEachIsNamed) {
  std::string why;
  EXPECT_TRUE(devices_with_kernels(std::vector<DeviceFacts>{kAda, kBlackwell}, &why).empty());
  EXPECT_EQ(why,
            "the kernels need compute capability 9.0 (H100, H200); device 0 is NVIDIA L40S with 8.9, device 1 is "
            "NVIDIA B200 with 10.0");
}

}  // namespace
}  // namespace octet::cuda
