// cast between float types, and filling with a constant.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/common/pointwise.cuh"
#include "kernels/cuda/elementwise/elementwise.h"

namespace octet::cuda {
namespace {

struct Same {
  __device__ __forceinline__ float operator()(float x) const { return x; }
};

template <typename Body>
void with_number_type(DType dtype, Body&& body) {
  if (!with_float_type(dtype, body)) with_fp8_type(dtype, body);
}

__global__ void fill_kernel(uint64_t pattern, uint8_t* y, int64_t bytes) {
  const int64_t at = 16 * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
  if (at + 16 <= bytes) {
    *reinterpret_cast<ulonglong2*>(y + at) = {pattern, pattern};
  } else {
    for (int64_t i = at; i < bytes; ++i) y[i] = static_cast<uint8_t>(pattern >> (i % 8 * 8));
  }
}

}  // namespace

void launch_cast(DType from, const void* x, DType to, void* y, int64_t count, cudaStream_t stream) {
  if (from == to) {
    if (x != y) cudaMemcpyAsync(y, x, static_cast<size_t>(count * dtype_bytes(to)), cudaMemcpyDeviceToDevice, stream);
    return;
  }
  with_number_type(from, [&]<typename X>(X) {
    with_number_type(to, [&]<typename Y>(Y) {
      if constexpr (!std::is_same_v<X, Y>) {
        constexpr int kVec = std::min(kVecOf<X>, kVecOf<Y>);
        const Map<X, Y, Same> map{static_cast<const X*>(x), static_cast<Y*>(y), {}};
        launch_pointwise<kVec, 4>(count, map, stream);
      }
    });
  });
}

void launch_fill(uint64_t pattern, void* y, int64_t bytes, cudaStream_t stream) {
  constexpr int64_t kBlock = 256 * 16;
  fill_kernel<<<static_cast<unsigned>((bytes + kBlock - 1) / kBlock), 256, 0, stream>>>(
      pattern, static_cast<uint8_t*>(y), bytes);
}

}  // namespace octet::cuda
