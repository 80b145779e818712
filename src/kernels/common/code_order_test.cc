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

TEST(CodeOrder, RefusesWhatIsNoWholeBlockAndUnknownNames) {
  std::vector<std::byte> bytes(8 * 24 / 2), to(bytes.size());
  EXPECT_THROW(arrange_codes(find_code_order("rows16"), {DType::kI4, {8, 24}}, bytes, to), Error);
  EXPECT_THROW(find_code_order("rows17"), Error);
}

}  // namespace
}  // namespace octet
