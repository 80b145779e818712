// The instances of the norm kernels for f32 activations.
#include "kernels/cuda/norm/forward_narrow.cuh"

namespace octet::cuda {

void launch_norm_f32(const NormForward& call, const NormPlan& plan, cudaStream_t stream) {
  launch_norm_of<float>(call, plan, stream);
}

}  // namespace octet::cuda
