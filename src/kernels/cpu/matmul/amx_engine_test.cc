// Float32 products by parts of bf16: the parts are the whole of an operand.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/matmul/gemm.h"

namespace octet::cpu {
namespace {

std::vector<float> product(const std::vector<float>& a, bool trans_a, const std::vector<float>& b, bool trans_b,
                           int64_t m, int64_t n, int64_t k) {
  std::vector<float> out(static_cast<size_t>(m * n));
  std::vector<std::byte> workspace(static_cast<size_t>(workspace_bytes()));
  const MatrixView left{.data = a.data(), .rows = trans_a ? k : m, .cols = trans_a ? m : k, .transposed = trans_a};
  const MatrixView right{.data = b.data(), .rows = trans_b ? n : k, .cols = trans_b ? k : n, .transposed = trans_b};
  gemm(*amx_float_engine(), left, right, {.data = out.data()}, workspace);
  return out;
}

// Float32 values with all bits of the mantissa, from 2^-60 to 2^60.
std::vector<float> any_floats(int64_t count) {
  Philox random(7);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = std::ldexp(static_cast<float>(random.normal()), static_cast<int>(random.below(121)) - 60);
  }
  return values;
}

// Each operand in turn selects rows or columns of the other. K of 2500 is more than is packed at once.
TEST(AmxFloatEngine, ProductsWithOneAreExact) {
  if (amx_float_engine() == nullptr) GTEST_SKIP() << "no AMX";
  constexpr int64_t kRows = 133, kCols = 70;
  for (int64_t k : {40, 200, 2500}) {
    const auto chosen = [&](int64_t i) { return (37 * i + 11) % k; };
    for (bool trans_a : {false, true}) {
      for (bool trans_b : {false, true}) {
        SCOPED_TRACE(testing::Message() << "K " << k << (trans_a ? ", a transposed" : "")
                                        << (trans_b ? ", b transposed" : ""));
        std::vector<float> a = any_floats(kRows * k), b(static_cast<size_t>(k * kCols));
        const auto at_a = [&](int64_t i, int64_t l) {
          return static_cast<size_t>(trans_a ? l * kRows + i : i * k + l);
        };
        const auto at_b = [&](int64_t l, int64_t j) {
          return static_cast<size_t>(trans_b ? j * k + l : l * kCols + j);
        };
        for (int64_t j = 0; j < kCols; ++j) b[at_b(chosen(j), j)] = 1;
        std::vector<float> out = product(a, trans_a, b, trans_b, kRows, kCols, k);
        for (int64_t i = 0; i < kRows * kCols; ++i) {
          ASSERT_EQ(out[static_cast<size_t>(i)], a[at_a(i / kCols, chosen(i % kCols))]) << i;
        }
        std::fill(a.begin(), a.end(), 0.0f);
        b = any_floats(k * kCols);
        for (int64_t i = 0; i < kRows; ++i) a[at_a(i, chosen(i))] = 1;
        out = product(a, trans_a, b, trans_b, kRows, kCols, k);
        for (int64_t i = 0; i < kRows * kCols; ++i) {
          ASSERT_EQ(out[static_cast<size_t>(i)], b[at_b(chosen(i / kCols), i % kCols)]) << i;
        }
      }
    }
  }
}

TEST(AmxFloatEngine, NonFiniteOperandsAreSeen) {
  if (amx_float_engine() == nullptr) GTEST_SKIP() << "no AMX";
  const float other_nan = std::bit_cast<float>(0x7fffffffu);  // whose upper half, rounded, is 0
  for (float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), other_nan}) {
    std::vector<float> a(128 * 64, 1.0f), b(64 * 32, 1.0f);
    a[64 + 5] = value;
    const std::vector<float> out = product(a, false, b, false, 128, 32, 64);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(std::isfinite(out[i]), i / 32 != 1) << i;
  }
}

}  // namespace
}  // namespace octet::cpu
