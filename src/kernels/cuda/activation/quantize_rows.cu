// (bias,) activation (, gate), quantize with a scale a row.
#include "kernels/cuda/activation/activation.h"
#include "kernels/cuda/common/activation.cuh"
#include "kernels/cuda/common/quantize_rows.cuh"

namespace octet::cuda {
namespace {

using Group = Packed<bf16, kRowGroup>;

template <typename Fn>
struct ActivatedRows {
  static constexpr bool kAnyColumns = false;
  using Element = bf16;
  using Operands = Group;
  const bf16* x;
  int64_t stride;
  const void* bias;
  bool bias_f32;

  template <bool kVector>
  __device__ __forceinline__ Operands load(int64_t row, int64_t column, int64_t left) const {
    return load_group<kVector>(x + row * stride + column, left);
  }
  template <bool kVector>
  __device__ __forceinline__ Group make(Operands group, int64_t column, int64_t left) const {
    float values[kRowGroup];
    group.unpack(values);
    if (bias != nullptr && left > 0) {
      float b[kRowGroup];
      bias_f32 ? octet::cuda::load(static_cast<const float*>(bias) + column, b)
               : octet::cuda::load(static_cast<const bf16*>(bias) + column, b);
#pragma unroll
      for (int i = 0; i < kRowGroup; ++i) values[i] += b[i];
      pack<bf16>(values).unpack(values);
    }
#pragma unroll
    for (float& value : values) value = Fn{}(value);
    return pack<bf16>(values);
  }
};

template <typename Fn>
struct GatedRows {
  static constexpr bool kAnyColumns = false;
  using Element = bf16;
  struct Operands {
    Group gate, up;
  };
  const bf16 *gate, *up;
  int64_t gate_stride, up_stride;

  template <bool kVector>
  __device__ __forceinline__ Operands load(int64_t row, int64_t column, int64_t left) const {
    return {load_group<kVector>(gate + row * gate_stride + column, left),
            load_group<kVector>(up + row * up_stride + column, left)};
  }
  template <bool kVector>
  __device__ __forceinline__ Group make(const Operands& operands, int64_t, int64_t) const {
    float values[kRowGroup], factor[kRowGroup];
    operands.gate.unpack(values), operands.up.unpack(factor);
#pragma unroll
    for (float& value : values) value = Fn{}(value);
    pack<bf16>(values).unpack(values);
#pragma unroll
    for (int i = 0; i < kRowGroup; ++i) values[i] *= factor[i];
    return pack<bf16>(values);
  }
};

}  // namespace

bool takes_activation_rows(Activation fn, bool gated) { return !gated || fn != Activation::kRelu; }

void launch_activation_rows(const ActivationRows& rows, cudaStream_t stream) {
  QuantizeJob job = rows.job;
  job.vector = true;
  if (job.amax != nullptr) cudaMemsetAsync(job.amax, 0, sizeof(float), stream);
  const auto *x = static_cast<const bf16*>(rows.x), *up = static_cast<const bf16*>(rows.up);
  const auto plain = [&]<typename Fn>(Fn) {
    launch_quantize_rows<e4m3>(ActivatedRows<Fn>{x, rows.x_stride, rows.bias, rows.bias_type == DType::kF32}, job,
                               stream);
  };
  const auto gated = [&]<typename Fn>(Fn) {
    launch_quantize_rows<e4m3>(GatedRows<Fn>{x, up, rows.x_stride, rows.up_stride}, job, stream);
  };
  switch (rows.fn) {
    case Activation::kGeluTanh: up == nullptr ? plain(GeluTanh{}) : gated(GeluTanh{}); break;
    case Activation::kGeluErf: up == nullptr ? plain(GeluErf{}) : gated(GeluErf{}); break;
    case Activation::kSilu: up == nullptr ? plain(Silu{}) : gated(Silu{}); break;
    case Activation::kRelu: plain(Relu{}); break;
  }
}

}  // namespace octet::cuda
