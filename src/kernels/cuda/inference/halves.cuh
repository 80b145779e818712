// FP8 codes and bf16 as f16: what attention over a cache of codes multiplies. Codes are exact.
#pragma once

#include "kernels/cuda/attention/mma.cuh"

namespace octet::cuda::mma {

// Two codes in the low half of `codes` as f16.
template <typename T>
__device__ __forceinline__ uint32_t halves(uint32_t codes) {
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes),
                                                      std::is_same_v<T, e4m3> ? __NV_E4M3 : __NV_E5M2);
  return static_cast<uint32_t>(pair.x) | static_cast<uint32_t>(pair.y) << 16;
}
// bf16 as f16; beyond its range the largest number.
__device__ __forceinline__ uint32_t halves_of_bf16(uint32_t pair) {
  const float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000u);
  return mma::pack<f16>(fminf(fmaxf(low, -65504.0f), 65504.0f), fminf(fmaxf(high, -65504.0f), 65504.0f));
}

}  // namespace octet::cuda::mma
