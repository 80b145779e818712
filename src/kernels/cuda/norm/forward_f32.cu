// The instances of the norm kernels for f32 activations.
#include "kernels/cuda/norm/forward_narrow.cuh"

namespace octet::cuda {

void launch_norm_f32(const NormForward& call, cudaStream_t stream) { launch_norm_of<float>(call, stream); }

}  // namespace octet::cuda
