#include "kernels/cuda/inference/paged_prefill_wgmma.cuh"

namespace octet::cuda {

void prefill::launch_e4m3(const PagedProblem& p, const PagedOperands& x, cudaStream_t stream) {
  launch_dim<e4m3>(p, x, stream);
}

}  // namespace octet::cuda
