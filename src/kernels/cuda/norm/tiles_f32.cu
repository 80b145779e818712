// The instances of norm_tiles_kernel for f32 activations.
#include "kernels/cuda/norm/tiles.cuh"

namespace octet::cuda {

void launch_norm_tiles_f32(const NormForward& call, cudaStream_t stream) { launch_norm_tiles<float>(call, stream); }

}  // namespace octet::cuda
