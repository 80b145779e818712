// Loads and stores of operands: f32, bf16, f16, and FP8 and int8 codes as their plain values. One switch an access, the
// same way for all threads: for tiles that are loaded once and used many times.
#pragma once

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/operand.h"

namespace octet::cuda {

// Calls body with a pointer of the operand's element type.
template <typename Body>
__device__ __forceinline__ void with_pointer(const Operand& x, Body&& body) {
  switch (x.dtype) {
    case DType::kBF16: return body(static_cast<bf16*>(x.data));
    case DType::kF16: return body(static_cast<f16*>(x.data));
    case DType::kE4M3: return body(static_cast<e4m3*>(x.data));
    case DType::kE5M2: return body(static_cast<e5m2*>(x.data));
    case DType::kI8: return body(static_cast<int8_t*>(x.data));
    default: return body(static_cast<float*>(x.data));
  }
}

// Elements [index, index + kCount); index is a multiple of kCount.
template <int kCount>
__device__ __forceinline__ void load(const Operand& x, int64_t index, float (&to)[kCount]) {
  with_pointer(x, [&]<typename T>(T* data) { load<kCount>(static_cast<const T*>(data) + index, to); });
}
template <int kCount>
__device__ __forceinline__ void store(const Operand& x, int64_t index, const float (&from)[kCount]) {
  with_pointer(x, [&]<typename T>(T* data) { store<kCount>(data + index, from); });
}
__device__ __forceinline__ float load(const Operand& x, int64_t index) {
  float value = 0;
  with_pointer(x, [&](auto* data) { value = to_float(data[index]); });
  return value;
}
__device__ __forceinline__ void store(const Operand& x, int64_t index, float value) {
  with_pointer(x, [&]<typename T>(T* data) { data[index] = from_float<T>(value); });
}

}  // namespace octet::cuda
