// The instances of norm_row_kernel for f32 activations.
#include "kernels/cuda/norm/forward.cuh"

namespace octet::cuda {

void launch_norm_f32(const NormForward& call, cudaStream_t stream) {
  call.layer ? launch_norm_rows<float, true>(call, stream) : launch_norm_rows<float, false>(call, stream);
}

}  // namespace octet::cuda
