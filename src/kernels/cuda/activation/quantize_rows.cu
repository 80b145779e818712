// (bias,) activation (, gate), quantize with a scale a row.
#include "kernels/cuda/activation/groups.cuh"
#include "kernels/cuda/common/quantize_per_row.cuh"

namespace octet::cuda {
namespace {

using Form = ActivationForm;
using Group = Packed<bf16, kRowGroup>;

template <typename Fn, Form kForm>
struct ActivatedRows {
  static constexpr bool kAnyColumns = false;
  using Element = bf16;
  struct Operands {
    Group x, up;
  };
  const bf16 *x, *up;
  int64_t x_stride, up_stride;
  const void* bias;
  bool bias_f32;

  template <bool kVector>
  __device__ __forceinline__ Operands load(int64_t row, int64_t column, int64_t left) const {
    Operands operands{load_group<kVector>(x + row * x_stride + column, left), {}};
    if constexpr (kForm == Form::kGated) operands.up = load_group<kVector>(up + row * up_stride + column, left);
    return operands;
  }
  template <bool kVector>
  __device__ __forceinline__ Group make(Operands operands, int64_t column, int64_t left) const {
    if constexpr (kForm != Form::kGated) {
      if (bias != nullptr && left > 0) {
        float b[kRowGroup];
        bias_f32 ? octet::cuda::load(static_cast<const float*>(bias) + column, b)
                 : octet::cuda::load(static_cast<const bf16*>(bias) + column, b);
        operands.x = plus(operands.x, b);
      }
    }
    return of_form<kForm>(activate<Fn>(operands.x), operands.up);
  }
};

}  // namespace

void launch_activation_rows(const ActivationForward& job, QuantizeJob quantize, cudaStream_t stream) {
  if (quantize.amax != nullptr) cudaMemsetAsync(quantize.amax, 0, sizeof(float), stream);
  with_activation_form<true>(job.fn, job.form, [&]<typename Fn, Form kForm>(Fn, std::integral_constant<Form, kForm>) {
    launch_quantize_per_row<e4m3>(
        ActivatedRows<Fn, kForm>{static_cast<const bf16*>(job.x), static_cast<const bf16*>(job.up), job.x_stride,
                                 job.up_stride, job.bias, job.bias_type == DType::kF32},
        quantize, choose_quantize_per_row(quantize.rows, quantize.cols, true), stream);
  });
}

}  // namespace octet::cuda
