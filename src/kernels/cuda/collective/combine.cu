// Maxima and log-sum-exps over gathered rows: many small tensors (amaxes) are one launch, a row of blocks each.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/cuda/collective/combine.h"
#include "kernels/cuda/common/numbers.cuh"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kMaxBlocks = 1024, kMaxTensors = 64;

struct Tensors {
  Combined at[kMaxTensors];
};

__device__ __forceinline__ float plain(bf16 x) { return to_float(x); }
__device__ __forceinline__ float plain(f16 x) { return to_float(x); }
template <typename T>
__device__ __forceinline__ T plain(T x) {
  return x;
}

struct Largest {
  template <typename T>
  __device__ T operator()(const T* x, int64_t stride, int ranks) const {
    T joined = x[0];
    for (int r = 1; r < ranks; ++r) {
      const T next = x[r * stride];
      const auto a = plain(joined), b = plain(next);
      joined = a != a || a > b ? joined : next;
    }
    return joined;
  }
};

struct LogSumExp {
  __device__ float operator()(const float* x, int64_t stride, int ranks) const {
    double largest = -INFINITY, sum = 0;
    for (int r = 0; r < ranks; ++r) largest = fmax(largest, static_cast<double>(x[r * stride]));
    for (int r = 0; r < ranks; ++r) sum += exp(static_cast<double>(x[r * stride]) - largest);
    return static_cast<float>(largest + log(sum));
  }
};

template <typename T, typename Combine>
__global__ void __launch_bounds__(kThreads) combine_kernel(Tensors tensors, int ranks) {
  const Combined tensor = tensors.at[blockIdx.y];
  const T* rows = static_cast<const T*>(tensor.rows);
  T* y = static_cast<T*>(tensor.y);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < tensor.count; i += step)
    y[i] = Combine()(rows + i, tensor.count, ranks);
}

template <typename T, typename Combine>
void launch(std::span<const Combined> all, int ranks, cudaStream_t stream) {
  for (size_t first = 0; first < all.size(); first += kMaxTensors) {
    const std::span<const Combined> some = all.subspan(first, std::min<size_t>(kMaxTensors, all.size() - first));
    Tensors tensors = {};
    std::copy(some.begin(), some.end(), tensors.at);
    int64_t largest = 1;
    for (const Combined& tensor : some) largest = std::max(largest, tensor.count);
    const int64_t blocks = std::min<int64_t>((largest + kThreads - 1) / kThreads, kMaxBlocks);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(some.size()));
    combine_kernel<T, Combine><<<grid, kThreads, 0, stream>>>(tensors, ranks);
  }
}

}  // namespace

void launch_combine(Combination kind, DType dtype, std::span<const Combined> all, int ranks, cudaStream_t stream) {
  if (kind == Combination::kLogSumExp) return launch<float, LogSumExp>(all, ranks, stream);
  switch (dtype) {
    case DType::kBF16: return launch<bf16, Largest>(all, ranks, stream);
    case DType::kF16: return launch<f16, Largest>(all, ranks, stream);
    case DType::kF64: return launch<double, Largest>(all, ranks, stream);
    case DType::kI32: return launch<int32_t, Largest>(all, ranks, stream);
    default: return launch<float, Largest>(all, ranks, stream);
  }
}

}  // namespace octet::cuda
