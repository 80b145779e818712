#include "kernels/cuda/matmul/int4_kernel.cuh"

namespace octet::cuda {

void launch_int4(const Int4Product& p, const Int4Plan& plan, cudaStream_t stream) {
  const auto with_tokens = [&]<typename T>(T) {
    switch (plan.tokens) {
      case 16: return int4::launch<T, 16>(p, plan, stream);
      case 32: return int4::launch<T, 32>(p, plan, stream);
      case 64: return int4::launch<T, 64>(p, plan, stream);
      default: return int4::launch<T, 128>(p, plan, stream);
    }
  };
  if (plan.tokens == 256) return int4::launch<e4m3, 256>(p, plan, stream);
  if (plan.tokens == 8) return int4::launch<bf16, 8>(p, plan, stream);
  p.dtype == DType::kBF16 ? with_tokens(bf16{}) : with_tokens(e4m3{});
}

}  // namespace octet::cuda
