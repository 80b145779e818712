// The instances of the gradients' kernels for f32 activations.
#include "kernels/cuda/norm/gradient.cuh"

namespace octet::cuda {

void launch_norm_gradient_f32(const NormGradient& call, const NormGradientPlan& plan, cudaStream_t stream) {
  launch_norm_gradient_of<float>(call, plan, stream);
}

}  // namespace octet::cuda
