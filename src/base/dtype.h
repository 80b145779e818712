// Element types and their bit-exact conversions; base/codec.h has them inline.
//
// Conversions round to nearest even. FP8 conversions saturate: finite values beyond the range and infinities become
// +-448 (E4M3) or +-57344 (E5M2); NaN stays NaN (E4M3 0x7f|sign, E5M2 0x7e|sign as produced from any NaN). E4M3 is the
// OCP "fn" kind: no infinities. Source: "FP8 Formats for Deep Learning", arXiv 2209.05433; OCP OFP8 1.0. I8 is a code
// as the FP8 types are, of evenly spaced values: conversions to it round to nearest even and saturate at +-127 (-128 is
// never produced, but occurs in weights that others quantized); it has no NaN, which becomes 0. I4 is the same of four
// bits, from -8 to 7, two codes a byte: the even index in the low half. Rows of it have an even number of codes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace octet {

enum class DType : uint8_t { kF64, kF32, kBF16, kF16, kE4M3, kE5M2, kI64, kI32, kU8, kI8, kI4 };
inline constexpr int kDTypes = 11;

int64_t dtype_bytes(DType dtype);  // of an element; i4 has no whole bytes: kInternal
// Of `count` elements. Throws kInternal when they do not fill whole bytes.
int64_t storage_bytes(DType dtype, int64_t count);
const char* dtype_name(DType dtype);  // "f64" "f32" "bf16" "f16" "e4m3" "e5m2" "i64" "i32" "u8" "i8" "i4"
DType parse_dtype(std::string_view name);
bool is_float(DType dtype);
inline bool is_fp8(DType dtype) { return dtype == DType::kE4M3 || dtype == DType::kE5M2; }
inline bool is_integer_code(DType dtype) { return dtype == DType::kI8 || dtype == DType::kI4; }
// Types of quantized codes, written by quantize and read by scaled_matmul: value = code * scale_inv, or with a zero
// point (code - zero) * scale_inv.
inline bool is_code(DType dtype) { return is_fp8(dtype) || is_integer_code(dtype); }
double dtype_max(DType dtype);  // the largest finite value: 448 for e4m3, 57344 for e5m2, 7 for i4, ...

// Storage types: plain bit containers, so that templates can tell them apart.
struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct E4M3 {
  uint8_t bits;
};
struct E5M2 {
  uint8_t bits;
};
struct I8 {
  uint8_t bits;  // two's complement
};

// The value after rounding to `dtype`, as double; integers but i8 and i4 truncate. One rounding from double.
double round_to(DType dtype, double value);

// Element `index` of an array of `dtype`, as double, and back (with one rounding).
double load_element(DType dtype, const void* data, int64_t index);
void store_element(DType dtype, void* data, int64_t index, double value);

// Array conversions between any two float or code types through float32 (vectorised where the machine allows; one
// rounding from f64). Serial; the arrays must not overlap unless both types are the same, which is a copy of the bits.
// A count of i4 is even.
void convert(DType from, const void* source, DType to, void* destination, int64_t count);

}  // namespace octet
