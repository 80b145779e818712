// The instances of norm_tiles_kernel for bf16 activations.
#include "kernels/cuda/norm/tiles.cuh"

namespace octet::cuda {

void launch_norm_tiles_bf16(const NormForward& call, cudaStream_t stream) { launch_norm_tiles<bf16>(call, stream); }

}  // namespace octet::cuda
