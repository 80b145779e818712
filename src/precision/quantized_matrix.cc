#include "precision/quantized_matrix.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/error.h"
#include "base/threads.h"
#include "precision/recipe.h"

namespace octet {
namespace {

constexpr int64_t kBlock = 128;

int64_t blocks(int64_t size) { return (size + kBlock - 1) / kBlock; }

// Rows and columns one scale belongs to.
struct Group {
  int64_t rows, cols;
};
Group group_of(ScaleLayout layout, int64_t rows, int64_t cols) {
  switch (layout) {
    case ScaleLayout::kTensor: return {rows, cols};
    case ScaleLayout::kRow: return {1, cols};
    case ScaleLayout::kRow128: return {1, kBlock};
    case ScaleLayout::kTile128: return {kBlock, kBlock};
  }
  return {};
}

// Largest |x| as bits: NaN is above infinity, infinity above every number, as in the kernels.
uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }

float amax_of(std::span<const float> values) {
  uint32_t most = 0;
  for (float value : values) most = std::max(most, magnitude(value));
  return std::bit_cast<float>(most);
}

// Calls body(row, first column, columns, scale's index) for the runs of a row that share a scale.
template <typename Body>
void for_runs(int64_t row, int64_t cols, Group group, const Body& body) {
  const int64_t per_row = (cols + group.cols - 1) / group.cols;
  for (int64_t col = 0, i = 0; col < cols; col += group.cols, ++i)
    body(col, std::min(group.cols, cols - col), row / group.rows * per_row + i);
}

}  // namespace

const char* scale_layout_name(ScaleLayout layout) {
  switch (layout) {
    case ScaleLayout::kTensor: return "tensor";
    case ScaleLayout::kRow: return "row";
    case ScaleLayout::kRow128: return "1x128";
    case ScaleLayout::kTile128: return "128x128";
  }
  return "";
}

ScaleLayout parse_scale_layout(const std::string& name) {
  for (ScaleLayout layout : {ScaleLayout::kTensor, ScaleLayout::kRow, ScaleLayout::kRow128, ScaleLayout::kTile128}) {
    if (name == scale_layout_name(layout)) return layout;
  }
  fail(ErrorCode::kInternal, "scale layout \"{}\" is none of tensor, row, 1x128, 128x128", name);
}

int64_t scale_count(ScaleLayout layout, int64_t rows, int64_t cols) {
  switch (layout) {
    case ScaleLayout::kTensor: return 1;
    case ScaleLayout::kRow: return rows;
    case ScaleLayout::kRow128: return rows * blocks(cols);
    case ScaleLayout::kTile128: return blocks(rows) * blocks(cols);
  }
  return 0;
}

QuantizedMatrix quantize_matrix(std::span<const float> values, int64_t rows, int64_t cols, const QuantizeRule& rule) {
  return quantize_matrix(DType::kF32, std::as_bytes(values), rows, cols, rule);
}

QuantizedMatrix quantize_matrix(DType type, std::span<const std::byte> values, int64_t rows, int64_t cols,
                                const QuantizeRule& rule) {
  const int64_t row_bytes = cols * dtype_bytes(type);
  check(static_cast<int64_t>(values.size()) == rows * row_bytes, ErrorCode::kInternal, "{} bytes of a {}x{} matrix",
        values.size(), rows, cols);
  // Calls body(row, its values) for rows in parallel.
  const auto for_rows = [&](const auto& body) {
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      std::vector<float> row_values(static_cast<size_t>(cols));
      for (int64_t row = begin; row < end; ++row) {
        convert(type, values.data() + row * row_bytes, DType::kF32, row_values.data(), cols);
        body(row, std::span<float>(row_values));
      }
    });
  };
  const Group group = group_of(rule.layout, rows, cols);
  const auto count = static_cast<size_t>(scale_count(rule.layout, rows, cols));
  QuantizedMatrix result{.codes = std::vector<std::byte>(static_cast<size_t>(rows * cols)),
                         .scale_inv = std::vector<float>(count)};
  std::vector<float> row_amax(static_cast<size_t>(rows) * static_cast<size_t>((cols + group.cols - 1) / group.cols));
  const auto per_row = static_cast<int64_t>(row_amax.size()) / std::max<int64_t>(rows, 1);
  for_rows([&](int64_t row, std::span<float> x) {
    for_runs(0, cols, group, [&](int64_t col, int64_t length, int64_t i) {
      row_amax[static_cast<size_t>(row * per_row + i)] =
          amax_of(x.subspan(static_cast<size_t>(col), static_cast<size_t>(length)));
    });
  });
  std::vector<uint32_t> amax(count, 0);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < per_row; ++i) {
      uint32_t& most = amax[static_cast<size_t>(row / group.rows * per_row + i)];
      most = std::max(most, magnitude(row_amax[static_cast<size_t>(row * per_row + i)]));
    }
  std::vector<float> scales(count);
  for (size_t i = 0; i < count; ++i) {
    scales[i] = scale_from_amax(std::bit_cast<float>(amax[i]), rule.format, rule.margin, rule.power_of_two);
    result.scale_inv[i] = 1 / scales[i];
  }
  for_rows([&](int64_t row, std::span<float> x) {
    for_runs(row, cols, group, [&](int64_t col, int64_t length, int64_t i) {
      const float scale = scales[static_cast<size_t>(i)];
      for (int64_t c = col; c < col + length; ++c) x[static_cast<size_t>(c)] *= scale;
    });
    convert(DType::kF32, x.data(), rule.format, result.codes.data() + row * cols, cols);
  });
  return result;
}

std::vector<float> dequantize_matrix(std::span<const std::byte> codes, std::span<const float> scale_inv, int64_t rows,
                                     int64_t cols, ScaleLayout layout, DType format) {
  const Group group = group_of(layout, rows, cols);
  std::vector<float> values(codes.size());
  parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    convert(format, codes.data() + begin * cols, DType::kF32, values.data() + begin * cols, (end - begin) * cols);
    for (int64_t row = begin; row < end; ++row)
      for_runs(row, cols, group, [&](int64_t col, int64_t length, int64_t i) {
        for (int64_t c = col; c < col + length; ++c)
          values[static_cast<size_t>(row * cols + c)] *= scale_inv[static_cast<size_t>(i)];
      });
  });
  return values;
}

}  // namespace octet
