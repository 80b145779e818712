// The instances of norm_gradient_kernel for f32 activations.
#include "kernels/cuda/norm/gradient.cuh"

namespace octet::cuda {

void launch_norm_gradient_f32(const NormGradient& call, cudaStream_t stream) {
  if (call.column_sum != nullptr) {
    call.layer ? launch_norm_gradient_rows<float, true, true>(call, stream)
               : launch_norm_gradient_rows<float, false, true>(call, stream);
  } else {
    call.layer ? launch_norm_gradient_rows<float, true, false>(call, stream)
               : launch_norm_gradient_rows<float, false, false>(call, stream);
  }
}

}  // namespace octet::cuda
