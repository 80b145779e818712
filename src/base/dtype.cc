// Names and one-element codecs of the element types. FP8 decodes through tables filled by base/codec.h; conversions
// from double go through float32 rounded to odd, which keeps the final rounding the only one.
#include "base/dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/codec.h"
#include "base/error.h"

namespace octet {
namespace {

struct DTypeRow {
  const char* name;
  int64_t bytes;
  bool is_float;
  double max;
};

constexpr DTypeRow kRows[] = {
    {"f64", 8, true, std::numeric_limits<double>::max()},
    {"f32", 4, true, 0x1.fffffep127},
    {"bf16", 2, true, 0x1.fep127},
    {"f16", 2, true, 65504.0},
    {"e4m3", 1, true, 448.0},
    {"e5m2", 1, true, 57344.0},
    {"i64", 8, false, 9223372036854775807.0},
    {"i32", 4, false, 2147483647.0},
    {"u8", 1, false, 255.0},
    {"i8", 1, false, 127.0},
};

const DTypeRow& row(DType dtype) {
  auto index = static_cast<size_t>(dtype);
  check(index < std::size(kRows), ErrorCode::kInternal, "dtype: no such enumerator {}", index);
  return kRows[index];
}

template <float (*kDecode)(uint8_t)>
std::array<float, 256> decode_table() {
  std::array<float, 256> table;
  for (int code = 0; code < 256; ++code) table[code] = kDecode(static_cast<uint8_t>(code));
  return table;
}

// float32 with the last bit set when anything was lost. A later rounding to a format with at least two bits fewer then
// equals one rounding from double (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
float round_to_odd(double value) {
  float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;  // toward zero; infinity becomes the largest
  return std::bit_cast<float>(bits | 1u);
}

// Truncates toward zero; out-of-range values go to the nearest bound and NaN to 0 (a plain cast would be undefined).
template <typename T>
T truncate_to(double value) {
  if (std::isnan(value)) return 0;
  if (value <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (value >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

template <typename T>
T load_at(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void store_at(void* data, int64_t index, T value) {
  std::memcpy(static_cast<char*>(data) + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

}  // namespace

int64_t dtype_bytes(DType dtype) { return row(dtype).bytes; }
const char* dtype_name(DType dtype) { return row(dtype).name; }
bool is_float(DType dtype) { return row(dtype).is_float; }
double dtype_max(DType dtype) { return row(dtype).max; }

DType parse_dtype(std::string_view name) {
  std::string names;
  for (size_t index = 0; index < std::size(kRows); ++index) {
    if (name == kRows[index].name) return static_cast<DType>(index);
    names += std::string(index ? " " : "") + kRows[index].name;
  }
  fail(ErrorCode::kInvalidArgument, "dtype '{}' is unknown; known: {}", name, names);
}

float bf16_to_f32(uint16_t bits) { return codec::decode_bf16(bits); }
uint16_t f32_to_bf16(float value) { return codec::encode_bf16(value); }
float f16_to_f32(uint16_t bits) { return codec::decode_f16(bits); }
uint16_t f32_to_f16(float value) { return codec::encode_f16(value); }
uint8_t f32_to_e4m3(float value) { return codec::encode_e4m3(value); }
uint8_t f32_to_e5m2(float value) { return codec::encode_e5m2(value); }

float e4m3_to_f32(uint8_t bits) {
  static const std::array<float, 256> table = decode_table<codec::decode_e4m3>();
  return table[bits];
}

float e5m2_to_f32(uint8_t bits) {
  static const std::array<float, 256> table = decode_table<codec::decode_e5m2>();
  return table[bits];
}

uint16_t f64_to_bf16(double value) { return codec::encode_bf16(round_to_odd(value)); }
uint16_t f64_to_f16(double value) { return codec::encode_f16(round_to_odd(value)); }
float i8_to_f32(uint8_t bits) { return codec::decode_i8(bits); }
uint8_t f32_to_i8(float value) { return codec::encode_i8(value); }
uint8_t f64_to_i8(double value) { return codec::encode_i8(round_to_odd(value)); }
uint8_t f64_to_e4m3(double value) { return codec::encode_e4m3(round_to_odd(value)); }
uint8_t f64_to_e5m2(double value) { return codec::encode_e5m2(round_to_odd(value)); }

double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::kF64: return value;
    case DType::kF32: return static_cast<float>(value);
    case DType::kBF16: return bf16_to_f32(f64_to_bf16(value));
    case DType::kF16: return f16_to_f32(f64_to_f16(value));
    case DType::kE4M3: return e4m3_to_f32(f64_to_e4m3(value));
    case DType::kE5M2: return e5m2_to_f32(f64_to_e5m2(value));
    case DType::kI64: return static_cast<double>(truncate_to<int64_t>(value));
    case DType::kI32: return truncate_to<int32_t>(value);
    case DType::kU8: return truncate_to<uint8_t>(value);
    case DType::kI8: return i8_to_f32(f64_to_i8(value));
  }
  fail(ErrorCode::kInternal, "round_to: no such dtype {}", static_cast<int>(dtype));
}

double load_element(DType dtype, const void* data, int64_t index) {
  switch (dtype) {
    case DType::kF64: return load_at<double>(data, index);
    case DType::kF32: return load_at<float>(data, index);
    case DType::kBF16: return bf16_to_f32(load_at<uint16_t>(data, index));
    case DType::kF16: return f16_to_f32(load_at<uint16_t>(data, index));
    case DType::kE4M3: return e4m3_to_f32(load_at<uint8_t>(data, index));
    case DType::kE5M2: return e5m2_to_f32(load_at<uint8_t>(data, index));
    case DType::kI64: return static_cast<double>(load_at<int64_t>(data, index));
    case DType::kI32: return load_at<int32_t>(data, index);
    case DType::kU8: return load_at<uint8_t>(data, index);
    case DType::kI8: return load_at<int8_t>(data, index);
  }
  fail(ErrorCode::kInternal, "load_element: no such dtype {}", static_cast<int>(dtype));
}

void store_element(DType dtype, void* data, int64_t index, double value) {
  switch (dtype) {
    case DType::kF64: return store_at(data, index, value);
    case DType::kF32: return store_at(data, index, static_cast<float>(value));
    case DType::kBF16: return store_at(data, index, f64_to_bf16(value));
    case DType::kF16: return store_at(data, index, f64_to_f16(value));
    case DType::kE4M3: return store_at(data, index, f64_to_e4m3(value));
    case DType::kE5M2: return store_at(data, index, f64_to_e5m2(value));
    case DType::kI64: return store_at(data, index, truncate_to<int64_t>(value));
    case DType::kI32: return store_at(data, index, truncate_to<int32_t>(value));
    case DType::kU8: return store_at(data, index, truncate_to<uint8_t>(value));
    case DType::kI8: return store_at(data, index, f64_to_i8(value));
  }
  fail(ErrorCode::kInternal, "store_element: no such dtype {}", static_cast<int>(dtype));
}

}  // namespace octet
