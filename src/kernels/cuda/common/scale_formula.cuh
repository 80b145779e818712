// scale_from_amax of precision/recipe.h on the device: the same bits (docs/numerics.md).
#pragma once

#include <cfloat>
#include <cstdint>

namespace octet::cuda {

struct ScaleFormula {
  float max = 448;    // of the format
  int margin = 0;     // scales divided by 2^margin
  bool pow2 = false;  // rounded down to a power of two

  __device__ __forceinline__ float operator()(uint32_t amax_bits) const {
    if (amax_bits == 0 || amax_bits >= 0x7f800000u) return 1.0f;
    float scale = __fdiv_rn(max, __uint_as_float(amax_bits));
    if (margin != 0) scale = ldexpf(scale, -margin);
    if (scale > FLT_MAX) scale = FLT_MAX;
    if (!pow2) return scale;
    const uint32_t bits = __float_as_uint(scale);
    if (bits >= 0x00800000u) return __uint_as_float(bits & 0x7f800000u);
    if (bits == 0) return 0.5f;  // a margin beyond float32: what frexp and ldexp make of 0
    return __uint_as_float(0x80000000u >> __clz(static_cast<int>(bits)));
  }
};

}  // namespace octet::cuda
