// Where attention's dropout of 8 bits finds the byte of an element.
#pragma once

#include <cstdint>

namespace octet {

// The byte of attention's element (head, query, key), tokens counted from the start of the batch: of every 16 queries
// and 64 keys, draw (i, j) has queries i and i + 8 and keys j, j + 8, .. j + 56, so that a lane of the tensor cores'
// fragments, queries by keys, draws just what it holds. Plain arithmetic: kernels call it too.
struct KeepByte {
  uint64_t block;  // of graph_random
  int byte;        // of its sixteen, little-endian words
};
constexpr KeepByte keep_byte(int64_t tokens, int64_t head, int64_t query, int64_t key) {
  const auto rows = static_cast<uint64_t>(head * ((tokens + 15) / 16) + query / 16);
  const auto within = static_cast<uint64_t>(key / 64 * 64 + query % 8 * 8 + key % 8);
  return {rows << 32 | within, static_cast<int>(key / 8 % 8 * 2 + query / 8 % 2)};
}

}  // namespace octet
