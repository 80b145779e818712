// The instances of norm_gradient_kernel for bf16 activations.
#include "kernels/cuda/norm/gradient.cuh"

namespace octet::cuda {

void launch_norm_gradient_bf16(const NormGradient& call, cudaStream_t stream) {
  if (call.column_sum != nullptr) {
    call.layer ? launch_norm_gradient_rows<bf16, true, true>(call, stream)
               : launch_norm_gradient_rows<bf16, false, true>(call, stream);
  } else {
    call.layer ? launch_norm_gradient_rows<bf16, true, false>(call, stream)
               : launch_norm_gradient_rows<bf16, false, false>(call, stream);
  }
}

}  // namespace octet::cuda
