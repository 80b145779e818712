// Grouped products of few rows, as in decoding: a warp makes one column of an expert's results, reading its row of the
// weights once for every kRows rows of x. Blocks of experts without rows end at once.
#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/experts/experts.h"

namespace octet::cuda {
namespace {

constexpr int kWarps = 8, kRows = 4;

// 16 bytes as float32.
template <typename T>
struct Piece {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  float at[kCount];

  __device__ explicit Piece(const T* from) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    const T* elements = reinterpret_cast<const T*>(&words);
    unroll<kCount>([&](int i) { at[i] = to_float(elements[i]); });
  }
};

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) grouped_gemv_kernel(GroupedProduct p) {
  const int expert = static_cast<int>(blockIdx.y), begin = p.offsets[expert], end = p.offsets[expert + 1];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t column = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (begin == end || column >= p.n) return;
  constexpr int kCount = Piece<T>::kCount;
  const int64_t of_weights = expert * p.n + column;
  const T* w = static_cast<const T*>(p.w) + of_weights * p.k;
  const float w_scale = p.w_scale == nullptr ? 1.0f : p.w_scale[p.w_scale_rows ? of_weights : 0];
  for (int first = begin; first < end; first += kRows) {
    const int rows = min(kRows, end - first);
    const T* x = static_cast<const T*>(p.x) + first * p.k;
    float sums[kRows] = {};
#pragma unroll 2
    for (int64_t k = lane * kCount; k < p.k; k += 32 * kCount) {
      const Piece<T> weights(w + k);
      unroll<kRows>([&](int r) {
        if (r >= rows) return;
        const Piece<T> values(x + r * p.k + k);
        unroll<kCount>([&](int i) { sums[r] = fmaf(values.at[i], weights.at[i], sums[r]); });
      });
    }
    unroll<kRows>([&](int r) {
      if (r >= rows) return;
      const float sum = warp_reduce<Sum>(sums[r]);
      const float x_scale = p.x_scale == nullptr ? 1.0f : p.x_scale[p.x_scale_rows ? first + r : 0];
      if (lane == 0) store(p.out, (first + r) * p.n + column, sum * x_scale * w_scale);
    });
  }
}

}  // namespace

void launch_grouped_gemv(const GroupedProduct& product, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((product.n + kWarps - 1) / kWarps), static_cast<unsigned>(product.experts));
  if (product.dtype == DType::kBF16) {
    grouped_gemv_kernel<bf16><<<grid, 32 * kWarps, 0, stream>>>(product);
  } else {
    grouped_gemv_kernel<e4m3><<<grid, 32 * kWarps, 0, stream>>>(product);
  }
}

}  // namespace octet::cuda
