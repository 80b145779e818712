#include "base/crc32c.h"

#include <array>
#include <cstring>

#ifdef __SSE4_2__
#include <nmmintrin.h>
#endif

namespace octet {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;  // reflected

using Table = std::array<std::array<uint32_t, 256>, 8>;

// table[k][b] = the effect of byte b followed by k zero bytes: eight bytes per step ("slicing by 8").
constexpr Table make_table() {
  Table table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    table[0][byte] = crc;
  }
  for (uint32_t byte = 0; byte < 256; ++byte)
    for (int k = 1; k < 8; ++k) table[k][byte] = (table[k - 1][byte] >> 8) ^ table[0][table[k - 1][byte] & 0xff];
  return table;
}

constexpr Table kTable = make_table();

uint64_t load_word(const unsigned char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, 8);
  return word;
}

}  // namespace

uint32_t crc32c_portable(const void* data, int64_t bytes, uint32_t crc) {
  auto* cursor = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; bytes >= 8; bytes -= 8, cursor += 8) {
    uint64_t word = load_word(cursor) ^ crc;
    crc = 0;
    for (int k = 0; k < 8; ++k) crc ^= kTable[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; bytes > 0; --bytes, ++cursor) crc = (crc >> 8) ^ kTable[0][(crc ^ *cursor) & 0xff];
  return ~crc;
}

#ifdef __SSE4_2__
uint32_t crc32c(const void* data, int64_t bytes, uint32_t crc) {
  auto* cursor = static_cast<const unsigned char*>(data);
  uint64_t wide = static_cast<uint32_t>(~crc);
  for (; bytes >= 8; bytes -= 8, cursor += 8) wide = _mm_crc32_u64(wide, load_word(cursor));
  auto narrow = static_cast<uint32_t>(wide);
  for (; bytes > 0; --bytes, ++cursor) narrow = _mm_crc32_u8(narrow, *cursor);
  return ~narrow;
}
#else
uint32_t crc32c(const void* data, int64_t bytes, uint32_t crc) { return crc32c_portable(data, bytes, crc); }
#endif

}  // namespace octet
