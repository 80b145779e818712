// The activation functions and their slopes in float32, shared by the elementwise kernels and the fusions: one
// formulation each, so that fused and unfused results have the same bits.
//
// tanh forms go through the logistic function: x/2 (1 + tanh u) = x sigmoid(2u). It takes two operations of the special
// function unit (2^x and 1/x, each good to about 1 unit in the last place), where tanhf takes a branch and a
// polynomial.
#pragma once

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/elementwise/elementwise.h"

namespace octet::cuda {

inline constexpr float kSqrt2OverPi = 0.79788456f, kInvSqrt2 = 0.70710678f, kInvSqrt2Pi = 0.39894228f,
                       kCubic = 0.044715f;

__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / (1 + exp(-x)); exp overflows to infinity and its reciprocal to 0. 1 + e does not see that subnormals are 0.
__device__ __forceinline__ float sigmoid(float x) { return reciprocal_fast(1.0f + exp2_fast(-kLog2E * x)); }

// sigmoid(2u) for u = sqrt(2/pi) (x + 0.044715 x^3), given x and its square.
__device__ __forceinline__ float sigmoid_2u(float x, float square) {
  constexpr float kFirst = -2 * kSqrt2OverPi * kLog2E, kThird = kFirst * kCubic;
  return reciprocal_fast(1.0f + exp2_fast(x * fmaf(square, kThird, kFirst)));
}

// Each with its slope, the derivative.
struct GeluTanh {
  static constexpr Activation kActivation = Activation::kGeluTanh;
  __device__ __forceinline__ float operator()(float x) const { return x * sigmoid_2u(x, x * x); }
  // With s = sigmoid(2u): s + x s (1 - s) d(2u)/dx. Beyond +-20 s is exactly 1 or 0, and the cube may overflow.
  __device__ __forceinline__ static float slope(float x) {
    const float square = fminf(x * x, 400.0f);
    const float s = sigmoid_2u(x, square);
    const float slope = fmaf(square, 6 * kSqrt2OverPi * kCubic, 2 * kSqrt2OverPi);
    return fmaf(x * s * (1.0f - s), slope, s);
  }
};

struct GeluErf {
  static constexpr Activation kActivation = Activation::kGeluErf;
  __device__ __forceinline__ float operator()(float x) const { return 0.5f * x * (1.0f + erff(kInvSqrt2 * x)); }
  // Phi(x) + x phi(x)
  __device__ __forceinline__ static float slope(float x) {
    return fmaf(kInvSqrt2Pi * x, exp2_fast(-0.5f * kLog2E * x * x), 0.5f * (1.0f + erff(kInvSqrt2 * x)));
  }
};

struct Silu {
  static constexpr Activation kActivation = Activation::kSilu;
  __device__ __forceinline__ float operator()(float x) const { return x * sigmoid(x); }
  __device__ __forceinline__ static float slope(float x) {
    const float s = sigmoid(x);
    return s * fmaf(x, 1.0f - s, 1.0f);
  }
};

struct Relu {
  static constexpr Activation kActivation = Activation::kRelu;
  __device__ __forceinline__ float operator()(float x) const { return x < 0.0f ? 0.0f : x; }
  __device__ __forceinline__ static float slope(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};

// body(Fn{}) of the functor; a new activation is a functor above, its enumerator and its line here.
template <typename Body>
void with_activation(Activation fn, Body&& body) {
  switch (fn) {
    case Activation::kGeluTanh: body(GeluTanh{}); break;
    case Activation::kGeluErf: body(GeluErf{}); break;
    case Activation::kSilu: body(Silu{}); break;
    case Activation::kRelu: body(Relu{}); break;
  }
}

}  // namespace octet::cuda
