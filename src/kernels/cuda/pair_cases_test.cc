// Fusions of two members on the device: equal to their members run one by one on the device, bit for bit, each result
// alone too, and in the place of operands wherever the plan may put them.
#include "kernels/cuda/pair_cases.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/cpu/testing/conformance.h"
#include "kernels/cuda/testing/on_device.h"

namespace octet::cuda {
namespace {

class PairFusions : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    context_ = test_context(&why);
    if (context_ == nullptr) GTEST_SKIP() << why;
  }
  void expect_equal_to_members(const cpu::Case& c, const char* kernel_name) {
    for (DType dtype : c.dtypes) {
      SCOPED_TRACE(cpu::case_name(c, dtype));
      const cpu::BuiltCase built = cpu::build_case(c, dtype);
      ASSERT_EQ(std::string(select_kernel(built.graph, built.node()).name), kernel_name);
      for (const std::string& failure : fusion_failures(*context_, built)) ADD_FAILURE() << failure;
    }
  }
  DeviceContext* context_ = nullptr;
};

// Heads whose pairs fill 16-byte accesses and not, turned whole and in part, more pairs than a block's threads hold.
TEST_F(PairFusions, RopeAmax) {
  for (bool interleaved : {false, true}) {
    for (const RopeAmax& f :
         {RopeAmax{5, 3, 128, 128}, RopeAmax{33, 40, 128, 64}, RopeAmax{7, 2, 12, 6}, RopeAmax{1, 1, 256, 256}}) {
      RopeAmax fusion = f;
      fusion.interleaved = interleaved;
      expect_equal_to_members(rope_amax_case(fusion), "rope_amax");
      fusion.results = {"amax.0"};
      expect_equal_to_members(rope_amax_case(fusion), "rope_amax");
      fusion.results = {"rope.0"};
      expect_equal_to_members(rope_amax_case(fusion), "rope_amax");
    }
  }
}

// Tiles, edge tiles, the stream without a transpose; amaxes of which no scale can be made give 1.
TEST_F(PairFusions, ScaleQuantize) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const char* format : {"e4m3", "e5m2"}) {
    for (const auto& [rows, cols] : {std::pair{1, 16}, {128, 128}, {144, 272}, {33, 75}, {300, 136}}) {
      ScaleQuantize fusion{.rows = rows, .cols = cols, .format = format};
      for (const double amax : {3.5, 0.0, 1e-40, 3e38, kInfinity}) {
        fusion.amax = amax;
        expect_equal_to_members(scale_quantize_case(fusion), "scale_quantize_tiles");
      }
      fusion = {.rows = rows, .cols = cols, .amax = 2.9, .margin = 2, .pow2 = true, .format = format};
      expect_equal_to_members(scale_quantize_case(fusion), "scale_quantize_tiles");
      fusion.results = {"quantize.0", "quantize.1"};
      expect_equal_to_members(scale_quantize_case(fusion), "scale_quantize_tiles");
      fusion.results = {"quantize.2", "quantize.3"};
      expect_equal_to_members(scale_quantize_case(fusion), "scale_quantize_tiles");
      fusion.results = {"scale.0"};
      expect_equal_to_members(scale_quantize_case(fusion), "scale_quantize_tiles");
    }
  }
}

}  // namespace
}  // namespace octet::cuda
