// The instances of the gradients' kernels for bf16 activations.
#include "kernels/cuda/norm/gradient.cuh"

namespace octet::cuda {

void launch_norm_gradient_bf16(const NormGradient& call, const NormGradientPlan& plan, cudaStream_t stream) {
  launch_norm_gradient_of<bf16>(call, plan, stream);
}

}  // namespace octet::cuda
