// Orders of codes: every order is a permutation within its blocks that restoring undoes, whatever the codes.
#include "kernels/common/code_order.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace octet {
namespace {

TEST(CodeOrder, Rows16HasALaneForEveryRow) {
  const TensorType type{DType::kI4, {32, 24}};
  std::vector<std::byte> plain(static_cast<size_t>(type.bytes())), ordered(plain.size()), back(plain.size());
  Philox random(5, 1);
  for (std::byte& byte : plain) byte = static_cast<std::byte>(random.below(256));
  const CodeOrder& order = find_code_order("rows16");
  arrange_codes(order, type, plain, ordered);
  for (int64_t row = 0; row < 32; ++row)
    for (int64_t k = 0; k < 24; ++k) {
      const int64_t at = row / 16 * 16 * 24 + k / 8 * 128 + row % 16 * 8 + k % 8;
      EXPECT_EQ(load_element(DType::kI4, ordered.data(), at), load_element(DType::kI4, plain.data(), row * 24 + k));
    }
  restore_codes(order, type, ordered, back);
  EXPECT_EQ(back, plain);
}

// The operand of wgmma that a lane's word is (PTX ISA, fragments of wgmma's matrix A).
TEST(CodeOrder, WordsOfWgmmaAreALanesOwn) {
  const TensorType type{DType::kI4, {256, 384}};
  std::vector<std::byte> plain(static_cast<size_t>(type.bytes())), ordered(plain.size()), back(plain.size());
  Philox random(6, 1);
  for (std::byte& byte : plain) byte = static_cast<std::byte>(random.below(256));
  for (const bool wide : {false, true}) {
    const CodeOrder& order = find_code_order(wide ? "wgmma_x16" : "wgmma_x8");
    arrange_codes(order, type, plain, ordered);
    for (int64_t at = 0; at < type.shape.elements(); ++at) {
      const int64_t tile = at / 16384, word = at % 16384 / 8, nibble = at % 8, lane = word % 512 / 4;
      const int64_t row = tile / 3 * 128 + word / 1024 * 64 + lane / 32 * 16 + word % 2 * 8 + lane % 32 / 4;
      const int64_t c = lane % 4, i = wide ? nibble % 4 : nibble / 2, second = wide ? nibble / 4 : nibble % 2;
      const int64_t k = tile % 3 * 128 + word % 1024 / 512 * 64 + word % 4 / 2 * 32 +
                        (wide ? 8 * i + 2 * c + second : 16 * second + 4 * c + i);
      const auto code = static_cast<int>(load_element(DType::kI4, plain.data(), row * 384 + k));
      const auto stored = static_cast<int>(load_element(DType::kI4, ordered.data(), at)) & 0xf;
      ASSERT_EQ(stored, wide ? code & 0xf : code < 0 ? -2 * code - 1 : 2 * code);
    }
    restore_codes(order, type, ordered, back);
    EXPECT_EQ(back, plain);
  }
}

TEST(CodeOrder, RefusesWhatIsNoWholeBlockAndUnknownNames) {
  std::vector<std::byte> bytes(8 * 24 / 2), to(bytes.size());
  EXPECT_THROW(arrange_codes(find_code_order("rows16"), {DType::kI4, {8, 24}}, bytes, to), Error);
  EXPECT_THROW(find_code_order("rows17"), Error);
}

}  // namespace
}  // namespace octet
