#include "kernels/cuda/inference/paged_decode_mma.cuh"

namespace octet::cuda::decode {
namespace {

template <typename T>
Instance choose(int dim, bool wide) {
  if (dim <= 64) return wide ? instance<T, 64, 4, 4, 2>() : instance<T, 64, 1, 4, 3>();
  if (dim <= 128) return wide ? instance<T, 128, 2, 3, 2>() : instance<T, 128, 1, 3, 4>();
  return instance<T, 256, 1, 3, 2>();
}

}  // namespace

Instance instance_e4m3(int dim, bool wide) { return choose<e4m3>(dim, wide); }
Instance instance_e5m2(int dim, bool wide) { return choose<e5m2>(dim, wide); }

}  // namespace octet::cuda::decode
