#include "kernels/cuda/inference/paged_prefill_wgmma.cuh"

namespace octet::cuda {

void prefill::launch_bf16(const PagedProblem& p, const PagedOperands& x, cudaStream_t stream) {
  launch_dim<bf16>(p, x, stream);
}

void launch_paged_prefill_wgmma(const PagedProblem& p, const PagedOperands& x, cudaStream_t stream) {
  switch (x.k.dtype) {
    case DType::kE4M3: return prefill::launch_e4m3(p, x, stream);
    case DType::kE5M2: return prefill::launch_e5m2(p, x, stream);
    default: return prefill::launch_bf16(p, x, stream);
  }
}

}  // namespace octet::cuda
