// The normalizer "Precompiled" on a map of two entries, and damaged ones.
#include "io/character_map.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace octet {
namespace {

std::string base64(std::string_view bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[bits >> shift & 63];
    if (i + 2 >= bytes.size()) text.resize(text.size() - (i + 3 - bytes.size()), '=');
  }
  return text;
}

// The ligature fi (EF AC 81) becomes "fi", the letter e "E": a double array whose units are far apart.
std::string small_map() {
  std::vector<uint32_t> units(0x1000);
  const auto unit = [&](uint32_t at, uint32_t label, uint32_t offset, bool leaf) {
    units[at] = label | (leaf ? 1u << 8 : 0u) | offset << 10;
    return at ^ offset;
  };
  const uint32_t root = unit(0, 0, 0x100, false);
  uint32_t at = unit(root ^ 0xEF, 0xEF, 0x200, false);
  at = unit(at ^ 0xAC, 0xAC, 0x400, false);
  units[unit(at ^ 0x81, 0x81, 0x800, true)] = 0x80000000u;                // text 0
  units[unit(root ^ uint32_t{'e'}, 'e', 0x400, true)] = 0x80000000u | 3;  // text 3
  std::string bytes(4, '\0');
  const auto size = static_cast<uint32_t>(units.size() * 4);
  std::memcpy(bytes.data(), &size, 4);
  bytes.append(reinterpret_cast<const char*>(units.data()), size);
  bytes.append("fi\0E\0", 5);
  return base64(bytes);
}

TEST(Precompiled, ReplacesGraphemesThenCharacters) {
  const TextNormalizer::Step step = precompiled_step(small_map(), "map");
  EXPECT_EQ(step("o\xEF\xAC\x81x", {}), "ofix");
  EXPECT_EQ(step("rest", {}), "rEst");
  EXPECT_EQ(step("e\xCC\x81!", {}), "E!");  // e and an accent are one grapheme, which begins with an entry
  EXPECT_EQ(step("\xFF"
                 "e\xEF\xAC",
                 {}),
            "\xFF"
            "E\xEF\xAC");  // bytes that are no UTF-8 stay
  EXPECT_EQ(step("", {}), "");
}

TEST(Precompiled, DamagedMapsAreErrors) {
  EXPECT_THROW(precompiled_step("a*b", "map"), Error);
  EXPECT_THROW(precompiled_step("AAAA", "map"), Error);
  EXPECT_THROW(precompiled_step(small_map().substr(0, 400), "map"), Error);
}

}  // namespace
}  // namespace octet
