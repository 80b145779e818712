// Sums along a row, several at a time, in an order that depends on the row's length only.
#pragma once

#include <array>

#include "kernels/cpu/simd.h"

namespace octet::cpu {

// terms(i, lanes) returns kCount vectors; the last, partial one is masked here.
template <int kCount, typename Terms>
OCTET_SIMD std::array<float, kCount> row_sums(int64_t cols, const Terms& terms) {
  using simd::Floats;
  Floats even[kCount]{}, odd[kCount]{};  // two chains of additions
  int64_t i = 0;
  for (; i + 2 * simd::kLanes <= cols; i += 2 * simd::kLanes) {
    const std::array<Floats, kCount> a = terms(i, simd::Full{}), b = terms(i + simd::kLanes, simd::Full{});
    for (int k = 0; k < kCount; ++k) even[k] += a[k], odd[k] += b[k];
  }
  for (; i + simd::kLanes <= cols; i += simd::kLanes) {
    const std::array<Floats, kCount> a = terms(i, simd::Full{});
    for (int k = 0; k < kCount; ++k) even[k] += a[k];
  }
  if (i < cols) {
    const simd::Part part{cols - i};
    const std::array<Floats, kCount> a = terms(i, part);
    for (int k = 0; k < kCount; ++k) odd[k] += simd::keep(a[k], part, Floats{});
  }
  std::array<float, kCount> sums;
  for (int k = 0; k < kCount; ++k) sums[k] = simd::sum(even[k] + odd[k]);
  return sums;
}

}  // namespace octet::cpu
