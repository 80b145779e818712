// quantize on the device where the case list is too small: more tiles than a device holds blocks, scales around every
// edge of their formula. Equal to the reference, byte for byte.
#include <gtest/gtest.h>

#include <bit>

#include "kernels/cpu/testing/conformance.h"
#include "kernels/cuda/testing/on_device.h"

namespace octet::cuda {
namespace {

class QuantizeTiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    context_ = test_context(&why);
    if (context_ == nullptr) GTEST_SKIP() << why;
  }
  void expect_reference(const cpu::CaseInput& x, const std::string& format, const std::string& scaling,
                        int64_t margin) {
    const bool tensor = scaling == "tensor";
    cpu::Case c{.op = Op::kQuantize, .name = scaling + "_" + format, .inputs = {x}};
    c.attrs = {{"format", format}, {"scaling", scaling}, {"pow2", !tensor}, {"margin", margin}};
    if (tensor) c.inputs.push_back(cpu::given(DType::kF32, {1}, {37.25}));
    for (DType dtype : c.dtypes) {
      SCOPED_TRACE(cpu::case_name(c, dtype));
      const cpu::BuiltCase built = cpu::build_case(c, dtype);
      const auto expected = cpu::evaluate_node(built.graph, built.node(), built.in(), true);
      const KernelEntry& row = select_kernel(built.graph, built.node());
      for (const std::string& failure :
           cpu::check_kernel(row.name, on_device(*context_, row, built.graph, built.node()), built.graph, built.node(),
                             built.inputs, expected, cpu::exact()))
        ADD_FAILURE() << failure;
    }
  }
  DeviceContext* context_ = nullptr;
};

// More tiles than a device of 132 multiprocessors holds blocks: a row of tiles, a column of them, the last one cut; and
// a matrix with cut tiles on both sides.
TEST_F(QuantizeTiles, ManyTiles) {
  for (const char* scaling : {"tensor", "1x128", "128x128", "row"}) {
    expect_reference(cpu::x({32, 76816}), "e4m3", scaling, 0);
  }
  for (const char* scaling : {"tensor", "1x128"}) {
    expect_reference(cpu::x({76816, 32}), "e4m3", scaling, 0);
    expect_reference(cpu::x({1168, 2064}), "e4m3", scaling, 0);
  }
}

// A row of blocks for each amax: powers of two and their neighbours from the smallest to the largest bf16, and around
// 1.75 times one, where the scale changes; the rest of a block steps through the values below, of both signs.
TEST_F(QuantizeTiles, EveryAmax) {
  constexpr int64_t kBlocks = 16, kBlock = 128;
  std::vector<uint32_t> amaxes;
  for (uint32_t exponent : {0u, 1u, 2u, 60u, 119u, 126u, 127u, 128u, 134u, 135u, 136u, 143u, 190u, 252u, 253u, 254u}) {
    for (uint32_t mantissa : {0u, 1u, 0x5fu, 0x60u, 0x61u, 0x7fu}) amaxes.push_back(exponent << 7 | mantissa);
  }
  const auto rows = static_cast<int64_t>(amaxes.size());  // 96
  const cpu::CaseInput x{
      .dtype = {}, .shape = {rows, kBlocks * kBlock}, .fill = [=](Philox& random, std::vector<double>& values) {
        for (size_t i = 0; i < values.size(); ++i) {
          const uint32_t amax = amaxes[i / (kBlocks * kBlock)];
          // Mostly within the 20 binades below the amax: what is smaller has code 0.
          const uint32_t below = static_cast<uint32_t>(random.below(20 << 7));
          uint32_t bits = i % kBlock == 77 ? amax : amax - std::min(amax, below);
          if (random.below(2) == 0) bits |= 0x8000u;
          values[i] = std::bit_cast<float>(bits << 16);
        }
      }};
  for (const char* format : {"e4m3", "e5m2"}) {
    for (int64_t margin : {0, 1, 6, 7}) expect_reference(x, format, "1x128", margin);
  }
}

}  // namespace
}  // namespace octet::cuda
