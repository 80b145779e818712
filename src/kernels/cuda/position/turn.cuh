// The turn of a pair by position times frequency: what every kernel that rotates must share to agree bit for bit.
#pragma once

#include <cuda_runtime.h>

namespace octet::cuda {

// cos and sin of position * frequency: reduced to [-pi/4, pi/4] by quarter turns in float64.
__device__ __forceinline__ float2 turn(double frequency, int position) {
  constexpr double kTwoOverPi = 0.63661977236758134308, kHalfPi = 1.5707963267948966192;
  const double angle = frequency * position;
  const double whole = rint(angle * kTwoOverPi);
  const auto rest = static_cast<float>(fma(-whole, kHalfPi, angle));
  float sine, cosine;
  sincosf(rest, &sine, &cosine);
  switch (static_cast<long long>(whole) & 3) {
    case 0: return {cosine, sine};
    case 1: return {-sine, cosine};
    case 2: return {-cosine, -sine};
    default: return {sine, -cosine};
  }
}

__device__ __forceinline__ float2 rotated(float a, float b, float2 by) {
  return {fmaf(a, by.x, -(b * by.y)), fmaf(b, by.x, a * by.y)};
}

}  // namespace octet::cuda
