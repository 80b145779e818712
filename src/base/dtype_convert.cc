// Array conversions: one loop per (from, to) pair of float or code types over the branch-free codecs, for the
// vectoriser. Separate from dtype.cc because only this file is compiled with -O3. It must stay serial: callers split
// the work.
#include <cstring>

#include "base/codec.h"
#include "base/dtype.h"
#include "base/error.h"

namespace octet {
namespace {

template <typename From, typename To>
void convert_loop(const From* __restrict source, To* __restrict destination, int64_t count) {
  for (int64_t i = 0; i < count; ++i) destination[i] = codec::encode<To>(codec::decode(source[i]));
}

// Calls visit(T{}) with the storage type of `dtype`; every value of these types is exact in float32.
template <typename Visit>
void with_storage_type(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kF32: return visit(float{});
    case DType::kBF16: return visit(BF16{});
    case DType::kF16: return visit(F16{});
    case DType::kE4M3: return visit(E4M3{});
    case DType::kE5M2: return visit(E5M2{});
    case DType::kI8: return visit(I8{});
    default: fail(ErrorCode::kInvalidArgument, "convert: {} is no float or code type", dtype_name(dtype));
  }
}

}  // namespace

void convert(DType from, const void* source, DType to, void* destination, int64_t count) {
  check(count >= 0, ErrorCode::kInvalidArgument, "convert: count {} is negative", count);
  const auto converts = [](DType dtype) { return is_float(dtype) || is_code(dtype); };
  check(converts(from) && converts(to), ErrorCode::kInvalidArgument,
        "convert: {} to {}: both must be float or code types", dtype_name(from), dtype_name(to));
  if (count == 0) return;
  if (from == to) {
    std::memmove(destination, source, static_cast<size_t>(count * dtype_bytes(from)));
    return;
  }
  if (from == DType::kF64 || to == DType::kF64) {  // not hot: one rounding, element by element
    for (int64_t i = 0; i < count; ++i) store_element(to, destination, i, load_element(from, source, i));
    return;
  }
  with_storage_type(from, [&](auto from_type) {
    with_storage_type(to, [&](auto to_type) {
      convert_loop(static_cast<const decltype(from_type)*>(source), static_cast<decltype(to_type)*>(destination),
                   count);
    });
  });
}

}  // namespace octet
