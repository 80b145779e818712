// quantize of f32.
#include "kernels/cuda/precision/quantize_kernels.cuh"

namespace octet::cuda {

void launch_quantize_f32(const QuantizeJob& job, Grouping grouping, DType format, const float* x, uint32_t* col_amax,
                         cudaStream_t stream) {
  with_fp8_type(format, [&]<typename Code>(Code) { launch_quantize_as<Code>(job, grouping, x, col_amax, stream); });
}

}  // namespace octet::cuda
