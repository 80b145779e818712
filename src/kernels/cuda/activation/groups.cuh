// Activations on groups of neighbouring elements, whatever holds them: Vec or Packed (common/numbers.cuh). Each value
// rounds to the group's type where it is defined.
#pragma once

#include "kernels/cuda/activation/activation.h"
#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/pointwise.cuh"

namespace octet::cuda {

template <typename Group>
struct GroupOf;
template <typename T, int kN>
struct GroupOf<Vec<T, kN>> {
  static constexpr int kCount = kN;
  __device__ __forceinline__ static void unpack(const Vec<T, kN>& group, float (&x)[kN]) { widen(group, x); }
  __device__ __forceinline__ static Vec<T, kN> pack(const float (&x)[kN]) { return narrow<T>(x); }
};
template <typename T, int kN>
struct GroupOf<Packed<T, kN>> {
  static constexpr int kCount = kN;
  __device__ __forceinline__ static void unpack(const Packed<T, kN>& group, float (&x)[kN]) { group.unpack(x); }
  __device__ __forceinline__ static Packed<T, kN> pack(const float (&x)[kN]) { return octet::cuda::pack<T>(x); }
};

// fn(x)
template <typename Fn, typename Group>
__device__ __forceinline__ Group activate(const Group& x) {
  float v[GroupOf<Group>::kCount];
  GroupOf<Group>::unpack(x, v);
#pragma unroll
  for (float& value : v) value = Fn{}(value);
  return GroupOf<Group>::pack(v);
}
// d fn'(x)
template <typename Fn, typename Group>
__device__ __forceinline__ Group times_slope(const Group& d, const Group& x) {
  constexpr int kCount = GroupOf<Group>::kCount;
  float v[kCount], factor[kCount];
  GroupOf<Group>::unpack(d, v), GroupOf<Group>::unpack(x, factor);
  unroll<kCount>([&](int k) { v[k] *= Fn::slope(factor[k]); });
  return GroupOf<Group>::pack(v);
}
template <typename Group>
__device__ __forceinline__ Group times(const Group& a, const Group& b) {
  constexpr int kCount = GroupOf<Group>::kCount;
  float v[kCount], factor[kCount];
  GroupOf<Group>::unpack(a, v), GroupOf<Group>::unpack(b, factor);
  unroll<kCount>([&](int k) { v[k] *= factor[k]; });
  return GroupOf<Group>::pack(v);
}
template <typename Group>
__device__ __forceinline__ Group plus(const Group& x, const float (&b)[GroupOf<Group>::kCount]) {
  float v[GroupOf<Group>::kCount];
  GroupOf<Group>::unpack(x, v);
  unroll<GroupOf<Group>::kCount>([&](int k) { v[k] += b[k]; });
  return GroupOf<Group>::pack(v);
}

// y of the form, given a = fn(x).
template <ActivationForm kForm, typename Group>
__device__ __forceinline__ Group of_form(const Group& a, const Group& up) {
  if constexpr (kForm == ActivationForm::kPlain) return a;
  return times(a, kForm == ActivationForm::kSquared ? a : up);
}
// The gradient of a. factor: of kSquared a, of kGated up.
template <ActivationForm kForm, typename Group>
__device__ __forceinline__ Group gradient_of_a(const Group& dy, const Group& factor) {
  if constexpr (kForm == ActivationForm::kPlain) return dy;
  const Group product = times(dy, factor);
  if constexpr (kForm == ActivationForm::kGated) return product;
  float v[GroupOf<Group>::kCount];
  GroupOf<Group>::unpack(product, v);
  return plus(product, v);
}

// body(Fn{}, std::integral_constant<ActivationForm, form>{}) of what has_activation_kernels.
template <bool kRows = false, typename Body>
void with_activation_form(Activation fn, ActivationForm form, Body&& body) {
  with_activation(fn, [&]<typename Fn>(Fn) {
    const auto with = [&]<ActivationForm kForm>(std::integral_constant<ActivationForm, kForm> constant) {
      if constexpr (has_activation_kernels(Fn::kActivation, kForm, kRows)) {
        if (form == kForm) body(Fn{}, constant);
      }
    };
    with(std::integral_constant<ActivationForm, ActivationForm::kPlain>{});
    with(std::integral_constant<ActivationForm, ActivationForm::kSquared>{});
    with(std::integral_constant<ActivationForm, ActivationForm::kGated>{});
  });
}

}  // namespace octet::cuda
