#include "kernels/cuda/common/fill_random.h"

#include "kernels/cuda/common/numbers.cuh"

namespace octet::cuda {
namespace {

__device__ uint32_t hash(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return static_cast<uint32_t>(x >> 32);
}

template <typename T>
__global__ void fill_normal_kernel(T* data, int64_t count, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const float u = (static_cast<float>(hash(seed + 2 * i) >> 8) + 0.5f) * 0x1p-24f;
    const float v = static_cast<float>(hash(seed + 2 * i + 1) >> 8) * 0x1p-24f;
    data[i] = from_float<T>(sqrtf(-2.0f * logf(u)) * cospif(2.0f * v));
  }
}

}  // namespace

void fill_random(DType dtype, void* data, int64_t elements, uint64_t seed) {
  if (elements == 0) return;
  with_number_type(dtype, [&]<typename T>(T) {
    fill_normal_kernel<<<1024, 256>>>(static_cast<T*>(data), elements, seed * 0x9E3779B97F4A7C15ull);
  });
}

}  // namespace octet::cuda
