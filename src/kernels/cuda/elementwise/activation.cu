// scale, the activations and their gradients.
#include <type_traits>

#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/pointwise.cuh"
#include "kernels/cuda/elementwise/elementwise.h"

namespace octet::cuda {
namespace {

constexpr int kUnroll = 1;

struct Times {
  float factor;
  __device__ __forceinline__ float operator()(float x) const { return x * factor; }
};

// dx = dy slope(x)
template <typename T, typename Fn>
struct MapGradient {
  const T *x, *dy;
  T* dx;
  template <int kVec>
  struct Held {
    Vec<T, kVec> x, dy;
  };
  template <int kVec>
  __device__ __forceinline__ Held<kVec> load(int64_t i) const {
    return {read<kVec>(x + i), read<kVec>(dy + i)};
  }
  template <int kVec>
  __device__ __forceinline__ void finish(const Held<kVec>& held, int64_t i) {
    Vec<T, kVec> v;
    unroll<kVec>([&](int k) { v.at[k] = from_float<T>(to_float(held.dy.at[k]) * Fn::slope(to_float(held.x.at[k]))); });
    write<kVec>(dx + i, v);
  }
  __device__ void end() {}
};

template <typename Body>
void with_f32_or_bf16(DType dtype, Body&& body) {
  if (dtype == DType::kF32) body(float{});
  if (dtype == DType::kBF16) body(bf16{});
}

}  // namespace

void launch_scale(DType dtype, const void* x, void* y, int64_t count, float factor, cudaStream_t stream) {
  with_f32_or_bf16(dtype, [&]<typename T>(T) {
    const Map<T, T, Times> map{static_cast<const T*>(x), static_cast<T*>(y), {factor}};
    launch_pointwise<kVecOf<T>, kUnroll>(count, map, stream);
  });
}

void launch_activation(Activation fn, DType dtype, const void* x, void* y, int64_t count, cudaStream_t stream) {
  with_f32_or_bf16(dtype, [&]<typename T>(T) {
    const auto launch = [&]<typename Fn>(Fn) {
      const Map<T, T, Fn> map{static_cast<const T*>(x), static_cast<T*>(y), {}};
      constexpr bool kErf = std::is_same_v<Fn, GeluErf>;  // bound by its arithmetic: more of it side by side
      launch_pointwise<kVecOf<T>, kErf ? 4 : kUnroll>(count, map, stream);
    };
    with_activation(fn, launch);
  });
}

void launch_activation_grad(Activation fn, DType dtype, const void* x, const void* dy, void* dx, int64_t count,
                            cudaStream_t stream) {
  with_f32_or_bf16(dtype, [&]<typename T>(T) {
    with_activation(fn, [&]<typename Fn>(Fn) {
      const MapGradient<T, Fn> map{static_cast<const T*>(x), static_cast<const T*>(dy), static_cast<T*>(dx)};
      launch_pointwise<kVecOf<T>, 2>(count, map, stream);
    });
  });
}

}  // namespace octet::cuda
