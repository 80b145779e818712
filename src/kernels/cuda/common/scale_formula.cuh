// scale_from_amax of precision/recipe.h on the device: the same bits (docs/numerics.md).
#pragma once

#include <cfloat>
#include <cstdint>

#include "kernels/cuda/precision/quantize.h"

namespace octet::cuda {

__device__ __forceinline__ float scale_of(const ScaleFormula& formula, uint32_t amax_bits) {
  if (amax_bits == 0 || amax_bits >= 0x7f800000u) return 1.0f;
  float scale = __fdiv_rn(formula.max, __uint_as_float(amax_bits));
  if (formula.margin != 0) scale = ldexpf(scale, -formula.margin);
  if (scale > FLT_MAX) scale = FLT_MAX;
  if (!formula.pow2) return scale;
  const uint32_t bits = __float_as_uint(scale);
  if (bits >= 0x00800000u) return __uint_as_float(bits & 0x7f800000u);
  if (bits == 0) return 0.5f;  // a margin beyond float32: what frexp and ldexp make of 0
  return __uint_as_float(0x80000000u >> __clz(static_cast<int>(bits)));
}
__device__ __forceinline__ float int8_scale_of(uint32_t amax_bits) { return scale_of({.max = 127}, amax_bits); }

}  // namespace octet::cuda
