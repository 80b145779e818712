// square_sum in two stages: every block sums the squares of its pieces, one block joins the sums. Pieces go to blocks
// by number, so the bits depend on shapes alone. clip_factor is one thread's work on that sum. Norms of single tensors
// have a block a piece, then a block a tensor.
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/optimiser/optimiser.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kFinishThreads = 256;

template <typename Acc>
struct Sums {
  Acc squares = 0;
  float rubbish = 0;  // 0 as long as everything is finite, then NaN
  __device__ __forceinline__ void add(float x) {
    squares = fma(static_cast<Acc>(x), static_cast<Acc>(x), squares);
    rubbish = fmaf(x, 0.0f, rubbish);
  }
};

// The same elements a thread whatever Acc is. kVec elements a load, several loads in flight.
template <typename Acc, int kVec, typename T>
__device__ __forceinline__ Sums<Acc> sum_runs(const T* x, int64_t count) {
  constexpr int kLoads = 4;
  Sums<Acc> sums;
  int64_t i = static_cast<int64_t>(threadIdx.x) * kVec;
  for (; i + (kLoads - 1) * kThreads * kVec + kVec <= count; i += kLoads * kThreads * kVec) {
    float values[kLoads][kVec];
    unroll<kLoads>([&](int n) { load(x + i + n * kThreads * kVec, values[n]); });
    unroll<kLoads, kVec>([&](int n, int j) { sums.add(values[n][j]); });
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
__device__ __forceinline__ double squares_of(const T* x, int64_t count) {
  const Sums<float> sums = sum_piece<float>(x, count);
  if (isfinite(sums.squares) || sums.rubbish != 0) return static_cast<double>(sums.squares);
  return squares_in_doubles(x, count);
}

__global__ void __launch_bounds__(kThreads, kSquareBlocksPerSm)
    square_partials_kernel(const __grid_constant__ SquareTable table, double* partials) {
  __shared__ double scratch[kThreads / 32];
  double total = 0;
  int32_t input = 0;
  for (int32_t piece = static_cast<int32_t>(blockIdx.x); piece < table.pieces; piece += kSquareBlocks) {
    while (input + 1 < table.count && table.inputs[input + 1].first_piece <= piece) ++input;
    const SquareInput& of = table.inputs[input];
    const int64_t begin = (piece - of.first_piece) * kSquarePiece, count = min(kSquarePiece, of.count - begin);
    total += of.bf16 ? squares_of(static_cast<const bf16*>(of.data) + begin, count)
                     : squares_of(static_cast<const float*>(of.data) + begin, count);
  }
  total = block_sum<kThreads>(total, scratch);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kFinishThreads)
    square_join_kernel(const double* partials, int64_t count, double* sum) {
  __shared__ double scratch[kFinishThreads / 32];
  double squares = 0;
  for (int64_t i = threadIdx.x; i < count; i += kFinishThreads) squares += partials[i];
  squares = block_sum<kFinishThreads>(squares, scratch);
  if (threadIdx.x == 0) *sum = squares;
}

__global__ void clip_factor_kernel(const double* squares, double max_norm, float* norm, float* clip, float* finite) {
  const double root = sqrt(*squares), ratio = max_norm / (root + 1e-6);
  if (norm != nullptr) *norm = static_cast<float>(root);
  if (clip != nullptr) *clip = max_norm > 0 && ratio < 1 ? static_cast<float>(ratio) : 1.0f;
  if (finite != nullptr) *finite = isfinite(*squares) ? 1.0f : 0.0f;
}

// The input of a piece.
__device__ __forceinline__ int32_t input_of(const NormTable& table, int32_t piece) {
  int32_t input = 0;
  while (input + 1 < table.count && table.inputs[input + 1].first_piece <= piece) ++input;
  return input;
}

__global__ void __launch_bounds__(kThreads)
    norm_partials_kernel(const __grid_constant__ NormTable table, double* partials) {
  __shared__ double scratch[kThreads / 32];
  const auto piece = static_cast<int32_t>(blockIdx.x);
  const SquareInput& of = table.inputs[input_of(table, piece)];
  const int64_t begin = (piece - of.first_piece) * kSquarePiece, count = min(kSquarePiece, of.count - begin);
  double total = of.bf16 ? squares_of(static_cast<const bf16*>(of.data) + begin, count)
                         : squares_of(static_cast<const float*>(of.data) + begin, count);
  total = block_sum<kThreads>(total, scratch);
  if (threadIdx.x == 0) partials[piece] = total;
}

__global__ void __launch_bounds__(kThreads)
    norm_join_kernel(const __grid_constant__ NormTable table, const double* partials) {
  __shared__ double scratch[kThreads / 32];
  const auto input = static_cast<int32_t>(blockIdx.x);
  const int32_t end = input + 1 < table.count ? table.inputs[input + 1].first_piece : table.pieces;
  double squares = 0;
  for (int32_t i = table.inputs[input].first_piece + static_cast<int32_t>(threadIdx.x); i < end; i += kThreads)
    squares += partials[i];
  squares = block_sum<kThreads>(squares, scratch);
  if (threadIdx.x == 0) *table.sums[input] = squares;
}

__global__ void trust_ratios_kernel(const __grid_constant__ RatioTable table) {
  const auto i = static_cast<int32_t>(threadIdx.x);
  if (i >= table.count) return;
  const RatioEntry& e = table.entries[i];
  const double p = sqrt(*e.params), u = sqrt(*e.updates) * (e.clip == nullptr ? 1.0 : static_cast<double>(*e.clip));
  const double trust = p > 0 && u > 0 ? table.coefficient * p / (u + e.weight_decay * p + table.eps) : 1.0;
  *e.rate = static_cast<float>(static_cast<double>(*e.lr) * trust);
}

}  // namespace

void launch_norms(const NormTable& table, double* partials, cudaStream_t stream) {
  norm_partials_kernel<<<static_cast<unsigned>(table.pieces), kThreads, 0, stream>>>(table, partials);
  norm_join_kernel<<<static_cast<unsigned>(table.count), kThreads, 0, stream>>>(table, partials);
}

void launch_trust_ratios(const RatioTable& table, cudaStream_t stream) {
  trust_ratios_kernel<<<1, kUpdateEntries, 0, stream>>>(table);
}

void launch_square_partials(const SquareTable& table, double* partials, cudaStream_t stream) {
  square_partials_kernel<<<kSquareBlocks, kThreads, 0, stream>>>(table, partials);
}

void launch_square_join(const double* partials, int64_t launches, double* sum, cudaStream_t stream) {
  square_join_kernel<<<1, kFinishThreads, 0, stream>>>(partials, launches * kSquareBlocks, sum);
}

void launch_clip_factor(const double* squares, double max_norm, float* norm, float* clip, float* finite,
                        cudaStream_t stream) {
  clip_factor_kernel<<<1, 1, 0, stream>>>(squares, max_norm, norm, clip, finite);
}

}  // namespace octet::cuda
