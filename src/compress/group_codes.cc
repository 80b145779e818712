#include "compress/group_codes.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/threads.h"

namespace octet {
namespace {

float rounded(float value, DType type) {
  float result = value;
  std::byte stored[sizeof(float)];
  convert(DType::kF32, &value, type, stored, 1);
  convert(type, stored, DType::kF32, &result, 1);
  return result;
}

}  // namespace

void check_rule(const CodeRule& rule, int64_t cols, const std::string& what) {
  const bool four = rule.bits == 4, eight = rule.bits == 8 && rule.symmetric && rule.group == 0;
  check(four || eight, ErrorCode::kInvalidArgument,
        "{}: {} bits, {}, in groups of {}: codes have 4 bits, or 8, "
        "symmetric, with a scale a row",
        what, rule.bits, rule.symmetric ? "symmetric" : "with zero points", rule.group);
  check(rule.group == 0 || rule.group == 32 || rule.group == 64 || rule.group == 128, ErrorCode::kInvalidArgument,
        "{}: groups of {} (want 32, 64, 128 or whole rows)", what, rule.group);
  check(cols % rule.width(cols) == 0, ErrorCode::kInvalidArgument,
        "{}: groups of {} do not divide its {} inputs: use smaller ones (--group 32, or row), or keep the linear in "
        "bf16 (--keep)",
        what, rule.group, cols);
}

float Grid::code(float value) const { return std::clamp(std::nearbyint(value / scale) + zero, lowest, highest); }

Grid fit_grid(std::span<const float> values, const CodeRule& rule, float shrink) {
  float least = 0, most = 0;
  for (const float value : values) least = std::min(least, value), most = std::max(most, value);
  Grid grid{.lowest = static_cast<float>(rule.lowest()), .highest = static_cast<float>(rule.highest())};
  const float steps = grid.highest - grid.lowest;
  const float range = rule.symmetric ? 2 * std::max(most, -least) : most - least;
  grid.scale = rounded(shrink * range / steps, rule.scale_type);
  if (!(grid.scale > 0)) grid.scale = 1;  // all zeros, or below what the type holds
  if (!rule.symmetric)
    grid.zero = std::clamp(std::nearbyint(grid.lowest - shrink * least / grid.scale), grid.lowest, grid.highest);
  return grid;
}

GroupCodes empty_codes(const CodeRule& rule, int64_t rows, int64_t cols) {
  GroupCodes codes{.rule = rule, .rows = rows, .cols = cols};
  const auto grids = static_cast<size_t>(rows * codes.groups());
  codes.codes.resize(static_cast<size_t>(rows * cols));
  codes.scales.resize(grids, 1.0f);
  if (!rule.symmetric) codes.zeros.resize(grids);
  return codes;
}

void set_grid(GroupCodes& codes, int64_t row, int64_t group, const Grid& grid) {
  const auto at = static_cast<size_t>(row * codes.groups() + group);
  codes.scales[at] = grid.scale;
  if (!codes.zeros.empty()) codes.zeros[at] = static_cast<int8_t>(grid.zero);
}

GroupCodes round_to_nearest(std::span<const float> weights, int64_t rows, int64_t cols, const CodeRule& rule,
                            std::span<const float> shrink) {
  GroupCodes result = empty_codes(rule, rows, cols);
  const int64_t width = rule.width(cols), groups = result.groups();
  parallel_for(rows * groups, 16, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {  // rows are whole groups: those of a row lie one after the other
      const auto values = weights.subspan(static_cast<size_t>(g * width), static_cast<size_t>(width));
      const Grid grid = fit_grid(values, rule, shrink.empty() ? 1.0f : shrink[static_cast<size_t>(g)]);
      set_grid(result, g / groups, g % groups, grid);
      for (int64_t i = 0; i < width; ++i)
        result.codes[static_cast<size_t>(g * width + i)] =
            static_cast<int8_t>(grid.code(values[static_cast<size_t>(i)]));
    }
  });
  return result;
}

std::vector<float> dequantize(const GroupCodes& codes) {
  std::vector<float> values(codes.codes.size());
  const int64_t width = codes.rule.width(codes.cols), groups = codes.groups();
  parallel_for(codes.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t k = 0; k < codes.cols; ++k) {
        const auto at = static_cast<size_t>(r * codes.cols + k);
        const int64_t group = codes.group_of.empty() ? k / width : codes.group_of[static_cast<size_t>(k)];
        const auto grid = static_cast<size_t>(r * groups + group);
        const int zero = codes.zeros.empty() ? 0 : codes.zeros[grid];
        values[at] = static_cast<float>(codes.codes[at] - zero) * codes.scales[grid];
      }
    }
  });
  return values;
}

}  // namespace octet
