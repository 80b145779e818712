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
