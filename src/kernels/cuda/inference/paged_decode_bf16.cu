#include "kernels/cuda/inference/paged_decode_mma.cuh"

namespace octet::cuda::decode {

Instance instance_bf16(int dim, bool wide) {
  if (dim <= 64) return wide ? instance<bf16, 64, 4, 3, 2>() : instance<bf16, 64, 1, 4, 3>();
  if (dim <= 128) return wide ? instance<bf16, 128, 2, 3, 2>() : instance<bf16, 128, 1, 3, 2>();
  return instance<bf16, 256, 1, 3, 1>();
}

}  // namespace octet::cuda::decode
