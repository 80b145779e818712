// Element types on the device: conversion to and from float32 with the bits of base/codec.h, and 16-byte vectors.
//
// Kernels compute in float32 and round once, when a value is stored in its declared type. Compiled with -fmad=false
// (CMakeLists.txt): a product and a sum round separately, as they do on the CPU; write fmaf where one rounding is
// meant.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "base/dtype.h"

namespace octet::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;
struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};

// body(i) for all i < kCount, body(i, j) for all j < kCounts of each i, ...: loops without a branch, whose arrays stay
// in registers.
template <int kCount, int... kCounts, typename Body>
__device__ __forceinline__ void unroll(const Body& body) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (sizeof...(kCounts) == 0) {
      body(i);
    } else {
      unroll<kCounts...>([&](auto... rest) { body(i, rest...); });
    }
  }
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(f16 x) { return __half2float(x); }
__device__ __forceinline__ float to_float(e4m3 x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3)));
}
__device__ __forceinline__ float to_float(e5m2 x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E5M2)));
}

__device__ __forceinline__ float to_float(int8_t x) { return static_cast<float>(x); }

template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float x) {
  return __float2half_rn(x);
}
// Saturating; a NaN keeps its sign (e4m3 0x7f, e5m2 0x7e), as base/codec.h has it.
template <>
__device__ __forceinline__ e4m3 from_float<e4m3>(float x) {
  uint8_t code = static_cast<uint8_t>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3));
  if (x != x) code = static_cast<uint8_t>(0x7f | (__float_as_uint(x) >> 24 & 0x80u));
  return {code};
}
template <>
__device__ __forceinline__ e5m2 from_float<e5m2>(float x) {
  uint8_t code = static_cast<uint8_t>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2));
  if (x != x) code = static_cast<uint8_t>(0x7e | (__float_as_uint(x) >> 24 & 0x80u));
  return {code};
}

// A code of int8: saturating at +-127, NaN is 0.
template <>
__device__ __forceinline__ int8_t from_float<int8_t>(float x) {
  return static_cast<int8_t>(__float2int_rn(fminf(fmaxf(x != x ? 0.0f : x, -127.0f), 127.0f)));
}

// A result of codes of int8: their sum, exact, by the scales of the row and the column, then what is added. Every
// rounding is written out, so that all kernels give the same bits.
__device__ __forceinline__ float scale_sum(int32_t sum, float row_scale, float col_scale, float c, float bias) {
  const float product = __fmul_rn(__int2float_rn(sum), __fmul_rn(row_scale, col_scale));
  return __fadd_rn(__fadd_rn(product, c), bias);
}

// kCount neighbouring elements, loaded and stored as one access where it is 2, 4, 8 or 16 bytes.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vec {
  T at[kCount];
};
template <typename T>
inline constexpr int kVecOf = 16 / static_cast<int>(sizeof(T));  // elements of a 16-byte access

template <int kCount, typename T>
__device__ __forceinline__ void load(const T* from, float (&to)[kCount]) {
  const Vec<T, kCount> v = *reinterpret_cast<const Vec<T, kCount>*>(from);
  unroll<kCount>([&](int i) { to[i] = to_float(v.at[i]); });
}
template <int kCount, typename T>
__device__ __forceinline__ void store(T* to, const float (&from)[kCount]) {
  Vec<T, kCount> v;
  unroll<kCount>([&](int i) { v.at[i] = from_float<T>(from[i]); });
  *reinterpret_cast<Vec<T, kCount>*>(to) = v;
}
// kCount neighbouring elements of bf16 or float32 as words: what a kernel holds, stores or compares without unpacking.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Packed {
  static constexpr int kWords = static_cast<int>(sizeof(T)) * kCount / 4;
  uint32_t words[kWords];

  __device__ __forceinline__ void unpack(float (&to)[kCount]) const {
    if constexpr (sizeof(T) == 4) {
      unroll<kCount>([&](int i) { to[i] = __uint_as_float(words[i]); });
    } else {
      unroll<kWords>([&](int i) {
        to[2 * i] = __uint_as_float(words[i] << 16), to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
      });
    }
  }
};
// Pairs of bf16 round in one conversion.
template <typename T, int kCount>
__device__ __forceinline__ Packed<T, kCount> pack(const float (&from)[kCount]) {
  Packed<T, kCount> packed;
  if constexpr (sizeof(T) == 4) {
    unroll<kCount>([&](int i) { packed.words[i] = __float_as_uint(from[i]); });
  } else {
    unroll<kCount / 2>([&](int i) {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed.words[i]) : "f"(from[2 * i + 1]), "f"(from[2 * i]));
    });
  }
  return packed;
}
template <int kCount, typename T>
__device__ __forceinline__ Packed<T, kCount> load_packed(const T* from) {
  return *reinterpret_cast<const Packed<T, kCount>*>(from);
}
template <int kCount, typename T>
__device__ __forceinline__ void store_packed(T* to, const Packed<T, kCount>& packed) {
  *reinterpret_cast<Packed<T, kCount>*>(to) = packed;
}

inline constexpr float kLog2E = 1.44269504f;

// 2^x by the special function unit, to about 1 unit in the last place; subnormal results become 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What x becomes when it is stored as T and read again.
template <typename T>
__device__ __forceinline__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

// Calls body with a value of the element type: with_type(dtype, [&]<typename T>(T) { kernel<T><<<...>>>(...); });
// Returns false for types outside the list.
template <typename Body>
bool with_float_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32: body(float{}); return true;
    case DType::kBF16: body(bf16{}); return true;
    case DType::kF16: body(f16{}); return true;
    default: return false;
  }
}
template <typename Body>
void with_f32_or_bf16(DType dtype, Body&& body) {
  dtype == DType::kF32 ? body(float{}) : body(bf16{});
}
template <typename Body>
bool with_fp8_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kE4M3: body(e4m3{}); return true;
    case DType::kE5M2: body(e5m2{}); return true;
    default: return false;
  }
}
// Of the codes of one byte; false for another.
template <typename Body>
bool with_code_type(DType dtype, Body&& body) {
  if (dtype != DType::kI8) return with_fp8_type(dtype, body);
  body(int8_t{});
  return true;
}
// Of either list.
template <typename Body>
void with_number_type(DType dtype, Body&& body) {
  if (!with_float_type(dtype, body)) with_fp8_type(dtype, body);
}

}  // namespace octet::cuda
