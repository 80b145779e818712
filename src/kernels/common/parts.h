// What a kernel must know of a node that sees a part of the whole, from the attributes that ir/localize.h sets. Without
// them the part is the whole.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ir/graph.h"

namespace octet {

// Columns [0, count) of a row of logits are classes first, first + 1, .. of `all`; columns beyond are padding.
struct ClassPart {
  int64_t first, all, count;

  ClassPart(const Node& node, int64_t columns)
      : first(node.attrs.get_or<int64_t>("first", 0)),
        all(node.attrs.get_or<int64_t>("classes", node.attrs.has("first") ? INT64_MAX : columns)),
        count(std::clamp<int64_t>(all - first, 0, columns)) {}
  // The column of a target, or -1 where another rank has it. (Target -1, an ignored one, has none either.)
  int64_t column(int64_t target) const { return target >= first && target - first < count ? target - first : -1; }
};

// Element (row, column) of the part of a matrix is element first + row * stride + column of the whole.
struct MatrixPart {
  int64_t first = 0, stride;

  MatrixPart(const Node& node, int64_t columns) : stride(columns) {
    if (!node.attrs.has("origin")) return;
    const auto& origin = node.attrs.get<std::vector<int64_t>>("origin");  // row, column, columns of the whole
    first = origin[0] * origin[2] + origin[1], stride = origin[2];
  }
};

// The first row of the table's part; ids of other rows are other ranks' where `is_part` holds, else errors.
struct TablePart {
  int64_t first;
  bool is_part;

  explicit TablePart(const Node& node)
      : first(node.attrs.get_or<int64_t>("first", 0)), is_part(node.attrs.has("first")) {}
};

// Whether an operand of square_sum counts on this rank.
inline bool is_counted(const Node& square_sum, size_t operand) {
  if (!square_sum.attrs.has("counted")) return true;
  const auto& counted = square_sum.attrs.get<std::vector<int64_t>>("counted");
  return std::find(counted.begin(), counted.end(), static_cast<int64_t>(operand)) != counted.end();
}

}  // namespace octet
