// The instances of the norm kernels for bf16 activations.
#include "kernels/cuda/norm/forward_narrow.cuh"

namespace octet::cuda {

void launch_norm_bf16(const NormForward& call, const NormPlan& plan, cudaStream_t stream) {
  launch_norm_of<bf16>(call, plan, stream);
}

}  // namespace octet::cuda
