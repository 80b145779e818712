#include "kernels/cuda/inference/paged_prefill_wgmma.cuh"

namespace octet::cuda {

void prefill::launch_e5m2(const PagedProblem& p, const PagedOperands& x, cudaStream_t stream) {
  launch_dim<e5m2>(p, x, stream);
}

}  // namespace octet::cuda
