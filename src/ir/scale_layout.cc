#include "ir/scale_layout.h"

#include <iterator>

#include "base/error.h"

namespace octet {
namespace {

constexpr const char* kNames[] = {"tensor", "row", "1x128", "128x128", "1x32", "1x64"};

}  // namespace

const char* scale_layout_name(ScaleLayout layout) { return kNames[static_cast<size_t>(layout)]; }

ScaleLayout parse_scale_layout(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<ScaleLayout>(i);
  }
  fail(ErrorCode::kInternal, "scale layout \"{}\" is none of tensor, row, 1x128, 128x128, 1x32, 1x64", name);
}

int64_t scale_group(ScaleLayout layout) {
  switch (layout) {
    case ScaleLayout::kRow32: return 32;
    case ScaleLayout::kRow64: return 64;
    case ScaleLayout::kRow128: return 128;
    default: return 0;
  }
}

Shape scale_shape(ScaleLayout layout, int64_t rows, int64_t cols) {
  const auto blocks = [](int64_t size, int64_t block = kScaleBlock) { return (size + block - 1) / block; };
  switch (layout) {
    case ScaleLayout::kTensor: return {1};
    case ScaleLayout::kRow: return {rows};
    case ScaleLayout::kRow32:
    case ScaleLayout::kRow64:
    case ScaleLayout::kRow128: return {blocks(cols, scale_group(layout)), rows};
    case ScaleLayout::kTile128: return {blocks(rows), blocks(cols)};
  }
  return {};
}

}  // namespace octet
