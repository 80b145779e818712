// global_norm in two stages: every block sums the squares of its pieces, one block joins the sums. Pieces go to blocks
// by number, so the bits depend on shapes alone.
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/optimiser/optimiser.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kFinishThreads = 256;

// Every thread gets the sum, made in a fixed order. `scratch` holds kThreads / 32 doubles.
__device__ double block_sum(double x, double* scratch) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes >>= 1) x += __shfl_xor_sync(kWholeWarp, x, lanes);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) x += scratch[warp];
  return x;
}

template <typename Acc>
struct Sums {
  Acc squares = 0;
  float rubbish = 0;  // 0 as long as everything is finite, then NaN
  __device__ __forceinline__ void add(float x) {
    squares = fma(static_cast<Acc>(x), static_cast<Acc>(x), squares);
    rubbish = fmaf(x, 0.0f, rubbish);
  }
};

// The same elements a thread whatever Acc is. kVec elements a load, several loads under way.
template <typename Acc, int kVec, typename T>
__device__ __forceinline__ Sums<Acc> sum_runs(const T* x, int64_t count) {
  constexpr int kLoads = 4;
  Sums<Acc> sums;
  int64_t i = static_cast<int64_t>(threadIdx.x) * kVec;
  for (; i + (kLoads - 1) * kThreads * kVec + kVec <= count; i += kLoads * kThreads * kVec) {
    float values[kLoads][kVec];
#pragma unroll
    for (int n = 0; n < kLoads; ++n) load(x + i + n * kThreads * kVec, values[n]);
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) sums.add(values[n][j]);
    }
  }
  for (; i < count; i += kThreads * kVec) {
    for (int j = 0; j < kVec && i + j < count; ++j) sums.add(to_float(x[i + j]));
  }
  return sums;
}
template <typename Acc, typename T>
__device__ __forceinline__ Sums<Acc> sum_piece(const T* x, int64_t count) {
  const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  return aligned ? sum_runs<Acc, kVecOf<T>>(x, count) : sum_runs<Acc, 1>(x, count);
}

template <typename T>
__device__ __noinline__ double squares_in_doubles(const T* x, int64_t count) {
  return sum_piece<double>(x, count).squares;
}

// This thread's squares of one piece, summed again in float64 where they are beyond float32.
template <typename T>
__device__ __forceinline__ double squares_of(const T* x, int64_t count, bool& finite) {
  const Sums<float> sums = sum_piece<float>(x, count);
  finite = finite && sums.rubbish == 0;
  if (isfinite(sums.squares) || sums.rubbish != 0) return static_cast<double>(sums.squares);
  return squares_in_doubles(x, count);
}

__global__ void __launch_bounds__(kThreads)
    norm_partials_kernel(const __grid_constant__ NormTable table, NormPartial* partials) {
  __shared__ double scratch[kThreads / 32];
  double total = 0;
  bool finite = true;
  int32_t input = 0;
  for (int32_t piece = static_cast<int32_t>(blockIdx.x); piece < table.pieces; piece += kNormBlocks) {
    while (input + 1 < table.count && table.inputs[input + 1].first_piece <= piece) ++input;
    const NormInput& of = table.inputs[input];
    const int64_t begin = (piece - of.first_piece) * kNormPiece, count = min(kNormPiece, of.count - begin);
    total += of.bf16 ? squares_of(static_cast<const bf16*>(of.data) + begin, count, finite)
                     : squares_of(static_cast<const float*>(of.data) + begin, count, finite);
  }
  total = block_sum(total, scratch);
  finite = __syncthreads_and(finite) != 0;
  if (threadIdx.x == 0) partials[blockIdx.x] = {total, finite ? 1.0 : 0.0};
}

__global__ void __launch_bounds__(kFinishThreads)
    norm_finish_kernel(const NormPartial* partials, int64_t count, double max_norm, float* norm, float* clip,
                       float* finite) {
  __shared__ double scratch[kFinishThreads / 32];
  double squares = 0;
  bool all_finite = true;
  for (int64_t i = threadIdx.x; i < count; i += kFinishThreads) {
    squares += partials[i].squares;
    all_finite = all_finite && partials[i].finite != 0;
  }
  squares = block_sum(squares, scratch);
  all_finite = __syncthreads_and(all_finite) != 0;
  if (threadIdx.x != 0) return;
  const double root = sqrt(squares), ratio = max_norm / (root + 1e-6);
  if (norm != nullptr) *norm = static_cast<float>(root);
  if (clip != nullptr) *clip = max_norm > 0 && ratio < 1 ? static_cast<float>(ratio) : 1.0f;
  if (finite != nullptr) *finite = all_finite ? 1.0f : 0.0f;
}

}  // namespace

void launch_norm_partials(const NormTable& table, NormPartial* partials, cudaStream_t stream) {
  norm_partials_kernel<<<kNormBlocks, kThreads, 0, stream>>>(table, partials);
}

void launch_norm_finish(const NormPartial* partials, int64_t launches, double max_norm, float* norm, float* clip,
                        float* finite, cudaStream_t stream) {
  norm_finish_kernel<<<1, kFinishThreads, 0, stream>>>(partials, launches * kNormBlocks, max_norm, norm, clip, finite);
}

}  // namespace octet::cuda
