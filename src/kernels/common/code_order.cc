#include "kernels/common/code_order.h"

#include <cstring>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/threads.h"

namespace octet {
namespace {

// 16 rows side by side, 4 bytes (8 codes) of each in turn: a 64-byte vector has a lane for every row.
void arrange_rows16(const std::byte* plain, int64_t width, std::byte* to) {
  const int64_t row_bytes = width / 2;
  for (int64_t at = 0; at < row_bytes; at += 4)
    for (int64_t row = 0; row < 16; ++row, to += 4) std::memcpy(to, plain + row * row_bytes + at, 4);
}

// The left operands of Hopper's wgmma (kernels/cuda/matmul/int4.cu): tiles of 128 rows by 128 of K, one after another
// along K, 8192 bytes each. A tile is two halves of 64 rows, for a warp group each; a half is 2 x 128 pieces of 16
// bytes: piece p of lane t of the group holds, as four words, rows 16 (t / 32) + t % 32 / 4 and 8 further, of K in [64
// p, 64 p + 32), then of K 32 further. A word is eight codes of a row; with c = t % 4, where x has codes nibbles 2 i
// and 2 i + 1 are of k = 4 c + i and 16 further, in zigzag; where x has 16 bits, i and 4 + i of k = 8 i + 2 c and the
// next.
template <bool kWideX>
void arrange_wgmma(const std::byte* plain, int64_t width, std::byte* to) {
  const auto code = [&](int64_t row, int64_t k) {
    const auto two = static_cast<uint32_t>(plain[(row * width + k) / 2]);
    return (k % 2 == 0 ? two : two >> 4) & 0xf;
  };
  for (int64_t row = 0; row < 128; ++row) {
    const int64_t half = row / 64, warp = row % 64 / 16, high = row % 16 / 8, group = row % 8;
    for (int64_t k = 0; k < width; k += 32) {
      for (int64_t c = 0; c < 4; ++c) {
        uint32_t word = 0;
        for (int64_t i = 0; i < 4; ++i) {
          if constexpr (kWideX) {
            word |= code(row, k + 8 * i + 2 * c) << (4 * i) | code(row, k + 8 * i + 2 * c + 1) << (4 * i + 16);
          } else {
            word |= zigzag(code(row, k + 4 * c + i)) << (8 * i) | zigzag(code(row, k + 4 * c + i + 16)) << (8 * i + 4);
          }
        }
        const int64_t lane = warp * 32 + group * 4 + c, piece = k % 128 / 64, second = k % 64 / 32;
        const int64_t at = k / 128 * 2048 + half * 1024 + piece * 512 + lane * 4 + second * 2 + high;
        std::memcpy(to + 4 * at, &word, 4);
      }
    }
  }
}

constexpr CodeOrder kOrders[] = {
    {.name = "rows16", .codes = DType::kI4, .rows = 16, .cols = 8, .arrange = arrange_rows16},
    {.name = "wgmma_x8",
     .codes = DType::kI4,
     .rows = 128,
     .cols = 128,
     .arrange = arrange_wgmma<false>,
     .zigzag = true},
    {.name = "wgmma_x16", .codes = DType::kI4, .rows = 128, .cols = 128, .arrange = arrange_wgmma<true>}};

int64_t of_zigzag(int64_t nibble) { return nibble % 2 == 0 ? nibble / 2 : (31 - nibble) / 2; }

// body(bytes into the tensor) for every block.
template <typename Body>
void for_blocks(const CodeOrder& order, const TensorType& codes, size_t from, size_t to, const Body& body) {
  const int64_t rows = codes.shape.rows(), width = codes.shape.cols();
  check(codes.dtype == order.codes && rows % order.rows == 0 && width % order.cols == 0 &&
            static_cast<int64_t>(from) == codes.bytes() && from == to,
        ErrorCode::kInternal, "order {} is for {} in blocks of {} rows and {} columns: {} in {} and {} bytes",
        order.name, dtype_name(order.codes), order.rows, order.cols, to_string(codes), from, to);
  const int64_t block = storage_bytes(codes.dtype, order.rows * width);
  parallel_for(rows / order.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i * block);
  });
}

// Where each code of a block comes from, found by arranging the digits of its number, as many bits at a time as a code
// has.
std::vector<int64_t> sources(const CodeOrder& order, int64_t width) {
  const int64_t count = order.rows * width;
  const int bits = static_cast<int>(storage_bytes(order.codes, 8));
  const auto bytes = static_cast<size_t>(storage_bytes(order.codes, count));
  std::vector<std::byte> plain(bytes), arranged(bytes);
  std::vector<int64_t> from(static_cast<size_t>(count), 0);
  const int64_t mask = (int64_t{1} << bits) - 1;
  const auto per_byte = 8 / bits;
  for (int shift = 0; (count - 1) >> shift != 0; shift += bits) {
    std::fill(plain.begin(), plain.end(), std::byte{0});
    for (int64_t i = 0; i < count; ++i)
      plain[static_cast<size_t>(i / per_byte)] |= static_cast<std::byte>(((i >> shift) & mask) << i % per_byte * bits);
    order.arrange(plain.data(), width, arranged.data());
    for (int64_t i = 0; i < count; ++i) {
      const auto byte = static_cast<int64_t>(arranged[static_cast<size_t>(i / per_byte)]);
      const int64_t digit = (byte >> i % per_byte * bits) & mask;
      from[static_cast<size_t>(i)] |= (order.zigzag ? of_zigzag(digit) : digit) << shift;
    }
  }
  return from;
}

}  // namespace

const CodeOrder& find_code_order(std::string_view name) {
  for (const CodeOrder& order : kOrders) {
    if (name == order.name) return order;
  }
  fail(ErrorCode::kInternal, "no order of codes is called \"{}\"", name);
}

void arrange_codes(const CodeOrder& order, const TensorType& codes, std::span<const std::byte> plain,
                   std::span<std::byte> to) {
  for_blocks(order, codes, plain.size(), to.size(),
             [&](int64_t at) { order.arrange(plain.data() + at, codes.shape.cols(), to.data() + at); });
}

void restore_codes(const CodeOrder& order, const TensorType& codes, std::span<const std::byte> ordered,
                   std::span<std::byte> to) {
  const std::vector<int64_t> from = sources(order, codes.shape.cols());
  const int bits = static_cast<int>(storage_bytes(order.codes, 8)), per_byte = 8 / bits;
  const int mask = (1 << bits) - 1;
  for_blocks(order, codes, ordered.size(), to.size(), [&](int64_t at) {
    std::byte* block = to.data() + at;
    std::memset(block, 0, from.size() / static_cast<size_t>(per_byte));
    for (int64_t i = 0; i < std::ssize(from); ++i) {
      const auto byte = static_cast<int>(ordered[static_cast<size_t>(at + i / per_byte)]);
      const int code = (byte >> i % per_byte * bits) & mask;
      const int64_t place = from[static_cast<size_t>(i)], plain = order.zigzag ? of_zigzag(code) : code;
      block[place / per_byte] |= static_cast<std::byte>(plain << place % per_byte * bits);
    }
  });
}

}  // namespace octet
