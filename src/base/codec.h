// Inline element codecs, written so that a plain loop over them vectorises: selects instead of branches, 32-bit integer
// arithmetic, no table. dtype.cc has loops over elements and arrays; kernels that fuse a scale or a transpose with the
// rounding include this header and loop themselves (compile that file with -O3).
//
// The functions assume the default rounding mode (nearest even). None depends on denormal float32 operands, so they
// give the same bits with flush-to-zero on or off (bf16 and f64 excepted) and no lane takes a microcode assist.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"

namespace octet::codec {

// condition ? a : b as bit arithmetic. A plain ?: lets the compiler move the float add of one side into a branch, and
// such a loop does not vectorise under the default -ftrapping-math.
inline uint32_t select(bool condition, uint32_t a, uint32_t b) {
  uint32_t mask = -static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

// |value| to a format with kMantissa fraction bits and exponent bias kBias. Normals: drop 23 - kMantissa bits with
// round-half-even and rebias. Below the smallest normal: adding a power of two whose ulp is the format's quantum lets
// the float32 adder round. Rounding up across a binade or into the normals carries into the exponent as it should.
// kLargest = code that everything larger becomes; kNan = the NaN code.
template <int kMantissa, int kBias, uint32_t kLargest, uint32_t kNan>
inline uint32_t encode_magnitude(uint32_t magnitude) {
  constexpr int kDrop = 23 - kMantissa;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << kMantissa;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kBias) << 23;
  constexpr uint32_t kAdder = static_cast<uint32_t>(127 + 1 - kBias - kMantissa + 23) << 23;
  uint32_t normal = ((magnitude + ((1u << (kDrop - 1)) - 1) + ((magnitude >> kDrop) & 1)) >> kDrop) - kRebias;
  // Clamped so that the add is exact in range for lanes whose result the select throws away.
  uint32_t small = select(magnitude < kSmallestNormal, magnitude, 0);
  uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(small) + std::bit_cast<float>(kAdder)) - kAdder;
  uint32_t code = select(magnitude < kSmallestNormal, subnormal, normal);
  code = code < kLargest ? code : kLargest;
  return select(magnitude > 0x7f800000u, kNan, code);
}

inline uint8_t encode_e4m3(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint8_t>(encode_magnitude<3, 7, 0x7e, 0x7f>(bits & 0x7fffffffu) | (bits >> 24 & 0x80u));
}

inline uint8_t encode_e5m2(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint8_t>(encode_magnitude<2, 15, 0x7b, 0x7e>(bits & 0x7fffffffu) | (bits >> 24 & 0x80u));
}

// Overflow becomes infinity; any NaN becomes the quiet NaN of its sign.
inline uint16_t encode_f16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>(encode_magnitude<10, 15, 0x7c00, 0x7e00>(bits & 0x7fffffffu) | (bits >> 16 & 0x8000u));
}

// Keeps the upper payload bits of a NaN and makes it quiet.
inline uint16_t encode_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// Adding 1.5 * 2^23 lets the float32 adder round to an integer, whose low byte is the code.
inline uint8_t encode_i8(float value) {
  float number = value == value ? value : 0.0f;
  number = number < -127.0f ? -127.0f : number;
  number = number > 127.0f ? 127.0f : number;
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(number + 0x1.8p23f));
}

inline float decode_bf16(uint16_t code) { return std::bit_cast<float>(static_cast<uint32_t>(code) << 16); }

inline float decode_e4m3(uint8_t code) {
  uint32_t magnitude = code & 0x7fu;
  uint32_t normal = (magnitude << 20) + (120u << 23);
  uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f);
  uint32_t bits = select(magnitude < 8, subnormal, normal);
  bits = select(magnitude == 0x7f, 0x7fc00000u, bits);
  return std::bit_cast<float>(bits | (static_cast<uint32_t>(code & 0x80u) << 24));
}

inline float decode_f16(uint16_t code) {
  uint32_t magnitude = code & 0x7fffu;
  uint32_t normal = (magnitude << 13) + (112u << 23);
  uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  uint32_t bits = select(magnitude < 0x400, subnormal, normal);
  bits = magnitude >= 0x7c00 ? bits + (112u << 23) : bits;  // infinity and NaN: the exponent becomes 255
  return std::bit_cast<float>(bits | (static_cast<uint32_t>(code & 0x8000u) << 16));
}

// E5M2 is the upper byte of an f16.
inline float decode_e5m2(uint8_t code) { return decode_f16(static_cast<uint16_t>(code << 8)); }

inline float decode_i8(uint8_t code) { return static_cast<float>(static_cast<int8_t>(code)); }

// The codecs by storage type, for templates: decode(E4M3{x}), encode<BF16>(value).
inline float decode(float value) { return value; }
inline float decode(BF16 value) { return decode_bf16(value.bits); }
inline float decode(F16 value) { return decode_f16(value.bits); }
inline float decode(E4M3 value) { return decode_e4m3(value.bits); }
inline float decode(E5M2 value) { return decode_e5m2(value.bits); }
inline float decode(I8 value) { return decode_i8(value.bits); }

template <typename T>
T encode(float value) {
  if constexpr (std::is_same_v<T, float>) return value;
  if constexpr (std::is_same_v<T, BF16>) return {encode_bf16(value)};
  if constexpr (std::is_same_v<T, F16>) return {encode_f16(value)};
  if constexpr (std::is_same_v<T, E4M3>) return {encode_e4m3(value)};
  if constexpr (std::is_same_v<T, E5M2>) return {encode_e5m2(value)};
  if constexpr (std::is_same_v<T, I8>) return {encode_i8(value)};
}

}  // namespace octet::codec
