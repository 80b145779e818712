// Weights held in NF4: what is stored in 4 bits keeps its values, floats become what bitsandbytes makes of them.
#include "weights/fill_nf4.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "ir/nf4.h"
#include "weights/nf4_folder.h"
#include "weights/quantize_nf4.h"

namespace octet {
namespace {

std::vector<float> random_values(int64_t count) {
  Philox random(11);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(0.02 * random.normal());
  return values;
}

// A matrix as bitsandbytes stores it, with magnitudes in 8 bits or in float32.
struct Stored {
  Nf4Matrix matrix;
  NestedMagnitudes nested;
  FourBitCodes codes;
  std::vector<float> values;  // that reading it gives
  ParamView view;

  Stored(const std::vector<float>& floats, int64_t rows, bool twice, int64_t from_value = 0)
      : matrix(quantize_nf4(floats)), nested(quantize_magnitudes(matrix.magnitudes)) {
    codes = {.codes = matrix.codes.data(), .map = kNf4Values.data()};
    if (twice) {
      codes.nested_codes = nested.codes.data(), codes.nested_map = nested.table.data();
      codes.nested_absmax = nested.scales.data(), codes.nested_offset = nested.offset;
    } else {
      codes.absmax = matrix.magnitudes.data();
    }
    const int64_t cols = (std::ssize(floats) - from_value) / rows;
    values.resize(static_cast<size_t>(rows * cols));
    codes.read(from_value, rows * cols, values.data());
    view = view_of(DType::kF32, nullptr, rows, cols, "w");
    view.computed =
        std::make_shared<const RowFunction>([this, cols, from_value](int64_t first, int64_t count, float* to) {
          codes.read(from_value + first * cols, count * cols, to);
        });
    view.four_bit = std::make_shared<const std::function<FourBitRow(int64_t)>>([this, cols, from_value](int64_t row) {
      return FourBitRow{&codes, from_value + row * cols};
    });
  }
};

TEST(FillNf4, WhatIsStoredKeepsItsValues) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{300, 448}, {64, 4096}, {40, 36}, {7, 1000}}) {
    const std::vector<float> floats = random_values(rows * cols);
    const Stored twice(floats, rows, true), once(floats, rows, false);
    EXPECT_EQ(round_to_nf4(twice.view, kNf4Nested), twice.values) << rows;
    EXPECT_EQ(round_to_nf4(once.view, 1), once.values) << rows;
    EXPECT_EQ(round_to_nf4(twice.view, 1), twice.values) << rows;
    // Floats become the same codes.
    const ParamView plain = view_of(DType::kF32, floats.data(), rows, cols, "w");
    EXPECT_EQ(round_to_nf4(plain, kNf4Nested), twice.values) << rows;
    EXPECT_EQ(round_to_nf4(plain, 1), once.values) << rows;
  }
}

TEST(FillNf4, WhatHasNoPlaceIsRefused) {
  const std::vector<float> floats = random_values(65 * 64 + 8);
  const Stored shifted(floats, 65, true, 8), single(random_values(64 * 256), 64, false);
  EXPECT_NE(error_of([&] { round_to_nf4(shifted.view, kNf4Nested); }).find("its blocks begin elsewhere"),
            std::string::npos);
  EXPECT_NE(error_of([&] { round_to_nf4(single.view, kNf4Nested); }).find("its magnitudes are in float32"),
            std::string::npos);
  Stored other(random_values(64 * 64), 64, true);
  std::vector<float> map(kNf4Values.begin(), kNf4Values.end());
  map[3] = -0.4F;
  other.codes.map = map.data();
  EXPECT_NE(error_of([&] { round_to_nf4(other.view, kNf4Nested); }).find("its tables are not those of nf4"),
            std::string::npos);
}

TEST(FillNf4, AFolderOfBitsandbytesKeepsItsValues) {
  const std::string folder = test_data_path("adapt/nf4/llama_nf4");
  if (folder.empty()) GTEST_SKIP() << missing_test_data("adapt/nf4");
  EXPECT_EQ(nf4_group_of(folder), kNf4Nested);
  const auto source = open_weights(folder);
  int64_t held = 0;
  for (const auto& [param, shape] : param_shapes(source->config())) {
    const ParamView view = source->view(param, shape);
    if (view.four_bit == nullptr) continue;
    ++held;
    EXPECT_EQ(round_to_nf4(view, kNf4Nested), read_floats(view)) << param;
  }
  EXPECT_EQ(held, 7 * source->config().layers);
}

}  // namespace
}  // namespace octet
