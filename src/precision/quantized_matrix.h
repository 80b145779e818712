// Quantizing a weight matrix on the host, with the codes and scales op quantize gives (docs/numerics.md), and back.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "ir/scale_layout.h"

namespace octet {

struct QuantizeRule {
  ScaleLayout layout = ScaleLayout::kRow;
  DType format = DType::kE4M3;
  int64_t margin = 0;
  bool power_of_two = false;
};

// Quantizes a matrix piece by piece by all threads: nothing of it is held but its scales.
class MatrixQuantizer {
 public:
  // Puts rows [first, first + count) as float32 [count, cols]; several threads call it at once.
  using ReadRows = std::function<void(int64_t first, int64_t count, float* to)>;

  // Reads `rows_at_once`, or whole groups that share scales. One scale for the whole matrix needs its largest
  // magnitude: `amax` where it is known, else all is read here.
  MatrixQuantizer(int64_t rows, int64_t cols, const QuantizeRule& rule, int64_t rows_at_once, ReadRows read,
                  std::optional<float> amax = std::nullopt);

  // Codes of rows [first, first + count) and their scales; `first` is a multiple of row_grain().
  void make_codes(int64_t first, int64_t count, std::byte* to);
  int64_t row_grain() const { return group_rows_; }
  const std::vector<float>& scale_inv() const { return scale_inv_; }  // of the rows made

 private:
  void make_block(int64_t first, int64_t count, float* values, std::byte* to);

  int64_t rows_, cols_, block_rows_;
  QuantizeRule rule_;
  ReadRows read_;
  int64_t group_rows_ = 1;  // that share a scale; one scale for all: known before any row is made
  std::vector<float> scales_, scale_inv_;
};

struct QuantizedMatrix {
  std::vector<std::byte> codes;  // [rows, cols]
  std::vector<float> scale_inv;  // a code's value is code * scale_inv; in the shape of docs/ir.md
};
QuantizedMatrix quantize_matrix(std::span<const float> values, int64_t rows, int64_t cols, const QuantizeRule& rule);

// Values of codes of rows [first, first + count), converted already, less their zero points where there are some, by
// their scales: in place.
void apply_scales(std::span<float> values, std::span<const float> scale_inv, int64_t first, int64_t count, int64_t rows,
                  int64_t cols, ScaleLayout layout, std::span<const int8_t> zero = {});

}  // namespace octet
