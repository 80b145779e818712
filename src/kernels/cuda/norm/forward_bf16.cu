// The instances of norm_row_kernel for bf16 activations.
#include "kernels/cuda/norm/forward.cuh"

namespace octet::cuda {

void launch_norm_bf16(const NormForward& call, cudaStream_t stream) {
  call.layer ? launch_norm_rows<bf16, true>(call, stream) : launch_norm_rows<bf16, false>(call, stream);
}

}  // namespace octet::cuda
