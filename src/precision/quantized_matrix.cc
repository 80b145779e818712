#include "precision/quantized_matrix.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <string>

#include "base/error.h"
#include "base/threads.h"
#include "precision/recipe.h"

namespace octet {
namespace {

// Rows and columns one scale belongs to, and how far the next scale down and across is.
struct Group {
  int64_t rows, cols;
  int64_t down = 1, across = 1;
};
Group group_of(ScaleLayout layout, int64_t rows, int64_t cols) {
  switch (layout) {
    case ScaleLayout::kTensor: return {rows, cols};
    case ScaleLayout::kRow: return {1, cols};
    case ScaleLayout::kRow32:
    case ScaleLayout::kRow64:
    case ScaleLayout::kRow128: return {1, scale_group(layout), 1, rows};
    case ScaleLayout::kTile128: return {kScaleBlock, kScaleBlock, (cols + kScaleBlock - 1) / kScaleBlock, 1};
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
float largest(float a, float b) { return magnitude(a) < magnitude(b) ? b : a; }

void raise(std::atomic<uint32_t>& most, float amax) {
  uint32_t seen = most.load();
  while (seen < magnitude(amax) && !most.compare_exchange_weak(seen, magnitude(amax))) {
  }
}

// Calls body(row, first column, columns, scale's index) for the runs of a row that share a scale.
template <typename Body>
void for_runs(int64_t row, int64_t cols, Group group, const Body& body) {
  int64_t i = row / group.rows * group.down;
  for (int64_t col = 0; col < cols; col += group.cols, i += group.across)
    body(col, std::min(group.cols, cols - col), i);
}

}  // namespace

MatrixQuantizer::MatrixQuantizer(int64_t rows, int64_t cols, const QuantizeRule& rule, int64_t rows_at_once,
                                 ReadRows read, std::optional<float> amax)
    : rows_(rows), cols_(cols), rule_(rule), read_(std::move(read)) {
  const auto count = static_cast<size_t>(scale_shape(rule.layout, rows, cols).elements());
  scales_.resize(count);
  scale_inv_.resize(count);
  if (rule.layout != ScaleLayout::kTensor) group_rows_ = group_of(rule.layout, rows, cols).rows;
  block_rows_ = (std::max<int64_t>(rows_at_once, 1) + group_rows_ - 1) / group_rows_ * group_rows_;
  if (rule.layout != ScaleLayout::kTensor) return;
  if (!amax) {
    std::atomic<uint32_t> most = 0;
    parallel_for((rows + block_rows_ - 1) / block_rows_, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> values(static_cast<size_t>(block_rows_ * cols));
      for (int64_t first = begin * block_rows_; first < std::min(end * block_rows_, rows); first += block_rows_) {
        const int64_t length = std::min(block_rows_, rows - first);
        read_(first, length, values.data());
        raise(most, amax_of(std::span(values).first(static_cast<size_t>(length * cols))));
      }
    });
    amax = std::bit_cast<float>(most.load());
  }
  scales_[0] = scale_from_amax(*amax, rule.format, rule.margin, rule.power_of_two);
  scale_inv_[0] = 1 / scales_[0];
}

void MatrixQuantizer::make_codes(int64_t first, int64_t count, std::byte* to) {
  const int64_t block = block_rows_;
  parallel_for((count + block - 1) / block, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> values(static_cast<size_t>(std::min(block, count) * cols_));
    for (int64_t at = begin * block; at < std::min(end * block, count); at += block)
      make_block(first + at, std::min(block, count - at), values.data(), to + storage_bytes(rule_.format, at * cols_));
  });
}

void MatrixQuantizer::make_block(int64_t first, int64_t count, float* values, std::byte* to) {
  read_(first, count, values);
  const Group group = group_of(rule_.layout, rows_, cols_);
  for (int64_t begin = 0; begin < count; begin += group_rows_) {
    const int64_t end = std::min(begin + group_rows_, count);
    const auto for_all_runs = [&](const auto& body) {
      for (int64_t row = begin; row < end; ++row)
        for_runs(first + row, cols_, group, [&](int64_t col, int64_t length, int64_t i) {
          body(std::span(values + row * cols_ + col, static_cast<size_t>(length)), static_cast<size_t>(i));
        });
    };
    if (rule_.layout != ScaleLayout::kTensor) {
      for_runs(first + begin, cols_, group, [&](int64_t, int64_t, int64_t i) { scales_[static_cast<size_t>(i)] = 0; });
      for_all_runs([&](std::span<const float> x, size_t i) { scales_[i] = largest(scales_[i], amax_of(x)); });
      for_runs(first + begin, cols_, group, [&](int64_t, int64_t, int64_t i) {
        float& scale = scales_[static_cast<size_t>(i)];
        scale = scale_from_amax(scale, rule_.format, rule_.margin, rule_.power_of_two);
        scale_inv_[static_cast<size_t>(i)] = 1 / scale;
      });
    }
    for_all_runs([&](std::span<float> x, size_t i) {
      const float scale = scales_[i];
      for (float& value : x) value *= scale;
    });
  }
  convert(DType::kF32, values, rule_.format, to, count * cols_);
}

QuantizedMatrix quantize_matrix(std::span<const float> values, int64_t rows, int64_t cols, const QuantizeRule& rule) {
  check(static_cast<int64_t>(values.size()) == rows * cols, ErrorCode::kInternal, "{} values of a {}x{} matrix",
        values.size(), rows, cols);
  MatrixQuantizer quantizer(rows, cols, rule, 16, [&](int64_t first, int64_t count, float* to) {
    std::copy_n(values.begin() + first * cols, count * cols, to);
  });
  std::vector<std::byte> codes(static_cast<size_t>(storage_bytes(rule.format, rows * cols)));
  quantizer.make_codes(0, rows, codes.data());
  return {.codes = std::move(codes), .scale_inv = quantizer.scale_inv()};
}

void apply_scales(std::span<float> values, std::span<const float> scale_inv, int64_t first, int64_t count, int64_t rows,
                  int64_t cols, ScaleLayout layout, std::span<const int8_t> zero) {
  const Group group = group_of(layout, rows, cols);
  for (int64_t row = 0; row < count; ++row)
    for_runs(first + row, cols, group, [&](int64_t col, int64_t length, int64_t i) {
      const float scale = scale_inv[static_cast<size_t>(i)];
      const auto shift = static_cast<float>(zero.empty() ? 0 : zero[static_cast<size_t>(i)]);
      for (float& value : values.subspan(static_cast<size_t>(row * cols + col), static_cast<size_t>(length)))
        value = (value - shift) * scale;
    });
}

}  // namespace octet
