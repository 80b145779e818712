#include "weights/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

// A tensor of distinct values and the plain way to a parameter's values: whole, converted, transposed, then its rows.
struct Stored {
  CheckpointTensor tensor;
  TensorType type;
  std::vector<std::byte> bytes = {};

  TensorView view() const { return {type, bytes}; }
  std::vector<float> parameter(size_t i) const {
    const int64_t count = type.shape.elements();
    std::vector<float> all(static_cast<size_t>(count));
    convert(type.dtype, bytes.data(), DType::kF32, all.data(), count);
    if (tensor.transposed) {
      const std::vector<float> from = all;
      const int64_t rows = type.shape[0], cols = type.shape[1];
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c)
          all[static_cast<size_t>(c * rows + r)] = from[static_cast<size_t>(r * cols + c)];
    }
    std::vector<float> values;
    for_each_piece(tensor, count, i, [&](int64_t at, int64_t, int64_t elements) {
      values.insert(values.end(), all.begin() + at, all.begin() + at + elements);
    });
    return values;
  }
};

Stored stored(DType dtype, Shape shape, CheckpointTensor tensor) {
  Stored result{.tensor = std::move(tensor), .type = {dtype, std::move(shape)}};
  result.bytes.resize(static_cast<size_t>(result.type.bytes()));
  Philox random(3, 1);
  for (int64_t i = 0; i < result.type.shape.elements(); ++i)
    store_element(dtype, result.bytes.data(), i, random.normal());
  return result;
}

// Sizes with tiles and blocks cut at their ends; the groups of GPT-NeoX (three heads), GPT-2's columns, one of both.
std::vector<Stored> layouts(DType dtype) {
  const std::vector<std::string> qkv = {"q", "k", "v"};
  return {stored(dtype, {150, 70}, {.name = "plain", .params = {"p"}}),
          stored(dtype, {333}, {.name = "vector", .params = {"p"}}),
          stored(dtype, {70, 150}, {.name = "turned", .transposed = true, .params = {"p"}}),
          stored(dtype, {150, 40}, {.name = "stacked", .params = qkv, .rows = {100, 25, 25}}),
          stored(dtype, {3 * 40, 300}, {.name = "grouped", .params = qkv, .groups = 3, .rows = {20, 10, 10}}),
          stored(dtype, {3 * 40}, {.name = "bias", .params = qkv, .groups = 3, .rows = {20, 10, 10}}),
          stored(dtype, {257, 450}, {.name = "c_attn", .transposed = true, .params = qkv, .rows = {150, 150, 150}}),
          stored(dtype, {65, 3 * 70},
                 {.name = "both", .transposed = true, .params = qkv, .groups = 3, .rows = {50, 10, 10}})};
}

TEST(ParamView, EveryLayoutReadsWhatAWholeCopyHolds) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3}) {
    for (const Stored& tensor : layouts(dtype)) {
      for (size_t i = 0; i < tensor.tensor.params.size(); ++i) {
        const ParamView view = view_of(tensor.tensor, i, tensor.view(), tensor.tensor.name);
        const std::vector<float> wanted = tensor.parameter(i);
        ASSERT_EQ(view.elements(), std::ssize(wanted)) << tensor.tensor.name;
        EXPECT_EQ(read_floats(view), wanted) << tensor.tensor.name << " " << i << " " << dtype_name(dtype);
        // Any rows, as any type: one conversion of the stored values, wherever the rows begin.
        const int64_t first = view.rows / 3, count = view.rows / 2;
        std::vector<uint16_t> part(static_cast<size_t>(count * view.cols)), rounded(wanted.size());
        read_rows(view, first, count, DType::kBF16, part.data());
        convert(DType::kF32, wanted.data(), DType::kBF16, rounded.data(), std::ssize(wanted));
        if (dtype != DType::kF64) {  // which is rounded once
          EXPECT_TRUE(std::equal(part.begin(), part.end(), rounded.begin() + first * view.cols)) << tensor.tensor.name;
        }
        float most = 0;
        for (const float value : wanted) most = std::max(most, std::abs(value));
        EXPECT_EQ(largest_magnitude(view), most) << tensor.tensor.name;
      }
    }
  }
}

TEST(ParamView, CodesAreReadAsTheyAreOrByTheirScales) {
  const Stored tensor = stored(DType::kE4M3, {70, 150}, {.name = "w", .transposed = true, .params = {"p"}});
  ParamView view = view_of(tensor.tensor, 0, tensor.view(), "w");
  view.layout = ScaleLayout::kRow;
  for (int64_t row = 0; row < view.rows; ++row) view.scale_inv.push_back(1.0f + static_cast<float>(row));
  std::vector<float> wanted = tensor.parameter(0);
  std::vector<std::byte> codes(wanted.size()), read(wanted.size());
  convert(DType::kF32, wanted.data(), DType::kE4M3, codes.data(), std::ssize(wanted));
  read_all(view, DType::kE4M3, read.data());
  EXPECT_EQ(read, codes);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] *= view.scale_inv[i / static_cast<size_t>(view.cols)];
  EXPECT_EQ(read_floats(view), wanted);
}

TEST(ParamView, ValuesThatAreNotFiniteAreNamedByTheirPlaceInTheParameter) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    for (Stored& tensor : layouts(dtype)) {
      const std::vector<float> values = tensor.parameter(0);
      const auto bad = static_cast<size_t>(std::ssize(values) * 3 / 4);
      for (int64_t i = 0; i < tensor.type.shape.elements(); ++i)  // the values are distinct but for rare roundings
        if (static_cast<float>(load_element(dtype, tensor.bytes.data(), i)) == values[bad])
          store_element(dtype, tensor.bytes.data(), i, INFINITY);
      const std::vector<float> spoilt = tensor.parameter(0);
      const auto first = std::find(spoilt.begin(), spoilt.end(), INFINITY) - spoilt.begin();
      const ParamView view = view_of(tensor.tensor, 0, tensor.view(), "folder: p");
      const std::string wanted = fmt::format("folder: p: element {} is inf: weights must be finite", first);
      EXPECT_NE(error_of([&] { read_floats(view); }).find(wanted), std::string::npos);
      EXPECT_NE(error_of([&] { largest_magnitude(view); }).find(wanted), std::string::npos);
    }
  }
  // Finite as it is stored and not as a weight.
  const double huge = 1e39;
  EXPECT_NE(error_of([&] { read_floats(view_of(DType::kF64, &huge, 1, 1, "p")); }).find("element 0 is inf"),
            std::string::npos);
}

TEST(ParamView, GroupsMustFillTheirTensor) {
  const Stored tensor = stored(DType::kF32, {50, 4}, {.name = "t", .params = {"a", "b"}, .rows = {20, 20}});
  EXPECT_NE(error_of([&] { view_of(tensor.tensor, 0, tensor.view(), "t"); }).find("50 rows do not hold"),
            std::string::npos);
}

TEST(ParamView, CodesThatAreNotNumbersAreRefused) {
  std::vector<uint8_t> codes(300, 0x38);
  const ParamView view = view_of(DType::kE4M3, codes.data(), 100, 3, "model: w");
  std::vector<float> values(300);
  read_rows(view, 0, 100, DType::kF32, values.data());
  EXPECT_EQ(values[299], 1.0f);
  for (const uint8_t code : {uint8_t{0x7f}, uint8_t{0xff}}) {
    codes[211] = code;
    try {
      read_rows(view, 60, 40, DType::kE4M3, values.data());
      FAIL() << "a NaN went through";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
      EXPECT_NE(error.message().find("model: w: element 211 is"), std::string::npos) << error.message();
    }
  }
}

}  // namespace
}  // namespace octet
