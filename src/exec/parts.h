// Parts of whole tensors as ranks hold them.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "ir/layout.h"

namespace octet {

// fn(element of the whole, element of the part) for every element of the part of the rank at `at`.
template <typename Fn>
void for_each_element(const Shape& local, const Layout& layout, const Mesh& mesh, const Coordinate& at, const Fn& fn) {
  const Shape whole = whole_shape(local, layout, mesh);
  for (int64_t i = 0; i < local.elements(); ++i) {
    int64_t rest = i, index = 0, stride = 1;
    for (int d = local.rank() - 1; d >= 0; --d) {
      const int64_t within = rest % local[d], run = local[d] / layout.outer(d), all = whole[d] / layout.outer(d);
      rest /= local[d];
      index += stride * (within / run * all + first_element(layout, d, local[d], mesh, at) + within % run);
      stride *= whole[d];
    }
    fn(index, i);
  }
}

// A tensor whose dim is cut into `parts`, seen as [rows, parts, rest]: a part is `rows` runs of `rest` elements.
struct PartView {
  int64_t rows = 1, parts = 1, rest = 1;

  PartView(const Shape& whole, int axis, int64_t outer, int64_t count) : rows(outer), parts(count) {
    for (int d = 0; d < whole.rank(); ++d) (d < axis ? rows : rest) *= whole[d];
    rest /= outer * count;
  }
  int64_t part_elements() const { return rows * rest; }
  // copy(element of the whole, element of the range, count) for every run of elements [begin, end) of a part.
  template <typename Copy>
  void for_each_run(int64_t part, int64_t begin, int64_t end, const Copy& copy) const {
    for (int64_t at = begin; at < end;) {
      const int64_t row = at / rest, within = at % rest, count = std::min(rest - within, end - at);
      copy((row * parts + part) * rest + within, at - begin, count);
      at += count;
    }
  }
};

// The part of a whole tensor that the rank at `at` holds.
inline void copy_part(std::span<const std::byte> whole, const TensorType& local, const Layout& layout, const Mesh& mesh,
                      const Coordinate& at, std::span<std::byte> part) {
  if (layout.cuts.empty()) {
    std::copy(whole.begin(), whole.end(), part.begin());
    return;
  }
  const auto size = static_cast<size_t>(dtype_bytes(local.dtype));
  for_each_element(local.shape, layout, mesh, at, [&](int64_t from, int64_t to) {
    std::memcpy(part.data() + static_cast<size_t>(to) * size, whole.data() + static_cast<size_t>(from) * size, size);
  });
}

}  // namespace octet
