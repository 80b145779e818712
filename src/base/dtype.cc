// Names of the element types, and conversions of elements and arrays over base/codec.h. Those from double go through
// float32 rounded to odd, which keeps the final rounding the only one. This file is compiled with -O3.
#include "base/dtype.h"

#include <algorithm>
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
  int64_t bits;
  bool is_float;
  double max;
};

constexpr DTypeRow kRows[] = {
    {"f64", 64, true, std::numeric_limits<double>::max()},
    {"f32", 32, true, 0x1.fffffep127},
    {"bf16", 16, true, 0x1.fep127},
    {"f16", 16, true, 65504.0},
    {"e4m3", 8, true, 448.0},
    {"e5m2", 8, true, 57344.0},
    {"i64", 64, false, 9223372036854775807.0},
    {"i32", 32, false, 2147483647.0},
    {"u8", 8, false, 255.0},
    {"i8", 8, false, 127.0},
    {"i4", 4, false, 7.0},
};
static_assert(std::size(kRows) == kDTypes);

const DTypeRow& row(DType dtype) {
  auto index = static_cast<size_t>(dtype);
  check(index < std::size(kRows), ErrorCode::kInternal, "dtype: no such enumerator {}", index);
  return kRows[index];
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

// Any value of a storage type, exactly; and back, with one rounding.
template <typename T>
double to_double(T value) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<double>(value);
  else
    return codec::decode(value);
}

template <typename T>
T from_double(double value) {
  if constexpr (std::is_integral_v<T>)
    return truncate_to<T>(value);
  else if constexpr (std::is_arithmetic_v<T>)
    return static_cast<T>(value);
  else
    return codec::encode<T>(round_to_odd(value));
}

// Calls visit(T{}) with the storage type of `dtype`.
template <typename Visit>
auto with_storage_type(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kF64: return visit(double{});
    case DType::kF32: return visit(float{});
    case DType::kBF16: return visit(BF16{});
    case DType::kF16: return visit(F16{});
    case DType::kE4M3: return visit(E4M3{});
    case DType::kE5M2: return visit(E5M2{});
    case DType::kI64: return visit(int64_t{});
    case DType::kI32: return visit(int32_t{});
    case DType::kU8: return visit(uint8_t{});
    case DType::kI8: return visit(I8{});
    case DType::kI4: break;  // has no storage type of its own: the callers take care of it
  }
  fail(ErrorCode::kInternal, "no such dtype {}", static_cast<int>(dtype));
}

// --- i4

constexpr int64_t kPairRun = 512;  // codes in a buffer at once, even

float decode_i4(const void* codes, int64_t index) {
  const int byte = static_cast<const uint8_t*>(codes)[index / 2];
  return static_cast<float>((((index % 2 == 0 ? byte : byte >> 4) & 15) ^ 8) - 8);
}

// Round to nearest, ties to even; NaN becomes 0.
double round_to_i4(double value) { return std::isnan(value) ? 0 : std::clamp(std::nearbyint(value), -8.0, 7.0); }

uint8_t encode_i4(double value) { return static_cast<uint8_t>(static_cast<int>(round_to_i4(value)) & 15); }

void store_i4(void* codes, int64_t index, double value) {
  uint8_t& byte = static_cast<uint8_t*>(codes)[index / 2];
  const int shift = index % 2 == 0 ? 0 : 4;
  byte = static_cast<uint8_t>((byte & ~(15 << shift)) | encode_i4(value) << shift);
}

// Through float32, a run of codes at a time: read(first, count, floats), write(first, count, floats).
template <typename Read, typename Write>
void convert_runs(int64_t count, const Read& read, const Write& write) {
  float run[kPairRun];
  for (int64_t first = 0; first < count; first += kPairRun) {
    const int64_t length = std::min(kPairRun, count - first);
    read(first, length, run);
    write(first, length, run);
  }
}

// For the vectoriser: branch-free codecs. Serial: callers split the work.
template <typename From, typename To>
void convert_loop(const From* __restrict source, To* __restrict destination, int64_t count) {
  constexpr bool kDouble = std::is_same_v<From, double> || std::is_same_v<To, double>;
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (kDouble)
      destination[i] = from_double<To>(to_double(source[i]));
    else
      destination[i] = codec::encode<To>(codec::decode(source[i]));
  }
}

}  // namespace

int64_t dtype_bytes(DType dtype) {
  const DTypeRow& type = row(dtype);
  check(type.bits % 8 == 0, ErrorCode::kInternal, "an element of {} is {} bits, which is not a whole number of bytes",
        type.name, type.bits);
  return type.bits / 8;
}

int64_t storage_bytes(DType dtype, int64_t count) {
  const DTypeRow& type = row(dtype);
  if (type.bits % 8 == 0) return count * (type.bits / 8);
  check(count * type.bits % 8 == 0, ErrorCode::kInternal, "{} elements of {} fill no whole bytes", count, type.name);
  return count * type.bits / 8;
}

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

double round_to(DType dtype, double value) {
  if (dtype == DType::kI4) return round_to_i4(value);
  return with_storage_type(dtype, [&](auto type) { return to_double(from_double<decltype(type)>(value)); });
}

double load_element(DType dtype, const void* data, int64_t index) {
  if (dtype == DType::kI4) return decode_i4(data, index);
  return with_storage_type(dtype, [&](auto value) {
    std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<int64_t>(sizeof value), sizeof value);
    return to_double(value);
  });
}

void store_element(DType dtype, void* data, int64_t index, double value) {
  if (dtype == DType::kI4) return store_i4(data, index, value);
  with_storage_type(dtype, [&](auto type) {
    const auto stored = from_double<decltype(type)>(value);
    std::memcpy(static_cast<char*>(data) + index * static_cast<int64_t>(sizeof stored), &stored, sizeof stored);
  });
}

void convert(DType from, const void* source, DType to, void* destination, int64_t count) {
  check(count >= 0, ErrorCode::kInvalidArgument, "convert: count {} is negative", count);
  const auto converts = [](DType dtype) { return is_float(dtype) || is_code(dtype); };
  check(converts(from) && converts(to), ErrorCode::kInvalidArgument,
        "convert: {} to {}: both must be float or code types", dtype_name(from), dtype_name(to));
  if (count == 0) return;
  if (from == to) {
    std::memmove(destination, source, static_cast<size_t>(storage_bytes(from, count)));
    return;
  }
  if (from == DType::kI4) {
    return convert_runs(
        count,
        [&](int64_t first, int64_t length, float* run) {
          for (int64_t i = 0; i < length; ++i) run[i] = decode_i4(source, first + i);
        },
        [&](int64_t first, int64_t length, const float* run) {
          convert(DType::kF32, run, to, static_cast<char*>(destination) + first * dtype_bytes(to), length);
        });
  }
  if (to == DType::kI4) {
    check(count % 2 == 0, ErrorCode::kInternal, "{} codes of i4 fill no whole bytes", count);
    return convert_runs(
        count,
        [&](int64_t first, int64_t length, float* run) {
          convert(from, static_cast<const char*>(source) + first * dtype_bytes(from), DType::kF32, run, length);
        },
        [&](int64_t first, int64_t length, const float* run) {
          auto* bytes = static_cast<uint8_t*>(destination) + first / 2;
          for (int64_t i = 0; i < length; i += 2)
            bytes[i / 2] = static_cast<uint8_t>(encode_i4(run[i]) | encode_i4(run[i + 1]) << 4);
        });
  }
  with_storage_type(from, [&](auto from_type) {
    with_storage_type(to, [&](auto to_type) {
      using From = decltype(from_type);
      using To = decltype(to_type);
      if constexpr (!std::is_integral_v<From> && !std::is_integral_v<To>)
        convert_loop(static_cast<const From*>(source), static_cast<To*>(destination), count);
    });
  });
}

}  // namespace octet
