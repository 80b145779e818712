// Physical orders of the integer codes of weights [N, K]: how a backend's product wants them to lie instead of row
// after row. An order moves codes within blocks of neighbouring rows, and may write them in zigzag. `pack` chooses it
// by the Target's table (ir/target.h), the loader arranges, and whoever reads the state as a logical tensor restores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/shape.h"

namespace octet {

struct CodeOrder {
  const char* name;
  DType codes;
  int64_t rows, cols;  // of a block: N and K are multiples of them
  // The block [rows, width] of a matrix `width` columns wide, from its rows one after the other.
  void (*arrange)(const std::byte* plain, int64_t width, std::byte* to);
  bool zigzag = false;  // 0, -1, 1, -2, .. as 0, 1, 2, 3, ..
};
// A code of 4 bits, as a nibble.
constexpr uint32_t zigzag(uint32_t code) { return code < 8 ? 2 * code : 31 - 2 * code; }

// Throws kInternal when there is none of this name.
const CodeOrder& find_code_order(std::string_view name);

// All rows of codes of this type, whole blocks of them, by all threads; both spans have its bytes and do not overlap.
void arrange_codes(const CodeOrder& order, const TensorType& codes, std::span<const std::byte> plain,
                   std::span<std::byte> to);
void restore_codes(const CodeOrder& order, const TensorType& codes, std::span<const std::byte> ordered,
                   std::span<std::byte> to);

}  // namespace octet
