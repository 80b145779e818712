// A weight matrix [N, K] in integer codes: value = (code - zero) * scale, with a scale (and a zero point) for every
// group of columns of every row. Grids that values are rounded to, rounding to nearest, and back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace octet {

struct CodeRule {
  int bits = 4;                     // 4: codes -8..7; 8: -127..127, symmetric
  int64_t group = 128;              // columns that share a scale: 32, 64, 128; 0: the whole row
  bool symmetric = true;            // no zero points
  DType scale_type = DType::kBF16;  // scales are rounded to it before codes are made

  int64_t width(int64_t cols) const { return group > 0 ? group : cols; }
  int lowest() const { return bits == 4 ? -8 : -127; }
  int highest() const { return bits == 4 ? 7 : 127; }
};
// Throws kInvalidArgument naming `what` for a rule that is none of the above, or groups that do not divide K.
void check_rule(const CodeRule& rule, int64_t cols, const std::string& what);

struct GroupCodes {
  CodeRule rule = {};
  int64_t rows = 0, cols = 0;
  std::vector<int8_t> codes = {};      // [N, K]
  std::vector<float> scales = {};      // [N, K / width]
  std::vector<int8_t> zeros = {};      // [N, K / width]; empty: all 0
  std::vector<int32_t> group_of = {};  // [K], the group of a column; empty: column / width

  int64_t groups() const { return cols / rule.width(cols); }
};
GroupCodes empty_codes(const CodeRule& rule, int64_t rows, int64_t cols);
std::vector<float> dequantize(const GroupCodes& codes);  // [N, K]

// What the values of one group are rounded to.
struct Grid {
  float scale = 1, zero = 0;
  float lowest = -8, highest = 7;

  float code(float value) const;
  float value(float code) const { return (code - zero) * scale; }
  float nearest(float of) const { return value(code(of)); }
};
// Of the values' range times `shrink`: symmetric, its larger end is half a step beyond the last code of 4 bits, on the
// last of 8; else both ends, and 0, are codes.
Grid fit_grid(std::span<const float> values, const CodeRule& rule, float shrink = 1);

// Puts the grid of a row's group into `codes`.
void set_grid(GroupCodes& codes, int64_t row, int64_t group, const Grid& grid);

// `shrink` [N, K / width]: of each group's range; empty: 1.
GroupCodes round_to_nearest(std::span<const float> weights, int64_t rows, int64_t cols, const CodeRule& rule,
                            std::span<const float> shrink = {});

}  // namespace octet
