#include "kernels/cuda/inference/paged_prefill_wgmma.cuh"

namespace octet::cuda {

void prefill::launch_bf16(const PagedProblem& p, const PagedOperands& x, PrefillWork* list, int sm_count,
                          cudaStream_t stream) {
  launch_dim<bf16>(p, x, list, sm_count, stream);
}

}  // namespace octet::cuda
