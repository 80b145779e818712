#include "ir/nf4.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/integers.h"

namespace octet {

const std::array<float, 256>& nf4_magnitude_values() {
  static const std::array<float, 256> table = [] {
    // In float32 as torch.linspace rounds, which bitsandbytes takes the bounds of each decade from.
    std::array<float, 256> values = {0, 1};
    size_t at = 2;
    for (int decade = 0; decade < 7; ++decade) {
      const int count = 1 << decade;
      const double step = (1.0F - 0.1F) / static_cast<float>(count);
      const auto bound = [&](int i) {
        return i < (count + 1) / 2 ? static_cast<float>(0.1F + step * i) : static_cast<float>(1 - step * (count - i));
      };
      const auto scale = static_cast<float>(std::pow(10.0, decade - 6));
      for (int i = 0; i < count; ++i) {
        values[at] = scale * ((bound(i) + bound(i + 1)) / 2);
        values[at + 1] = -values[at];
        at += 2;
      }
    }
    std::ranges::sort(values);
    return values;
  }();
  return table;
}

Nf4Shapes nf4_shapes(const Shape& codes, int64_t group) {
  if (has_whole_nf4_blocks(codes)) {
    const int64_t blocks = codes[1] / kNf4Block;
    return {{codes[0], blocks}, {codes[0], ceil_div(blocks, group)}, {codes[0]}};
  }
  const int64_t blocks = ceil_div(codes.elements(), kNf4Block);
  return {{1, blocks}, {1, ceil_div(blocks, group)}, {1}};
}

int64_t nf4_group(const Shape& codes, int64_t wanted, int64_t parts) {
  return has_whole_nf4_blocks(codes) ? std::gcd(wanted, codes[1] / kNf4Block / parts) : wanted;
}

}  // namespace octet
