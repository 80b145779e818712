// Rows of tokens to where their experts read them, and back as weighted sums in the order of k.
#include <cuda_runtime.h>

#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/experts/experts.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256;

// A thread reads a word of a token once and writes it into all its rows; those of first words write the scales.
template <typename V>
__global__ void __launch_bounds__(kThreads) dispatch_rows_kernel(RowsToDispatch r) {
  griddep_begin(false);
  const int64_t words = r.row_bytes / static_cast<int64_t>(sizeof(V));
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= r.tokens * words) return;
  const int64_t t = i / words, word = i - t * words;
  const bool scales = word == 0 && r.scale_inv_rows != nullptr;
  const V value = static_cast<const V*>(r.x)[i];
  for (int j = 0; j < r.k; ++j) {
    const int64_t place = r.places[t * r.k + j];
    if (r.rows != nullptr) static_cast<V*>(r.rows)[place * words + word] = value;
    if (scales) r.scale_inv_rows[place] = r.scale_inv[t];
  }
}

template <int kVec>
__global__ void __launch_bounds__(kThreads)
    combine_rows_kernel(Operand rows, const int32_t* places, const float* weights, Operand y, int64_t tokens, int k,
                        int64_t width) {
  griddep_begin(false);
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVec;
  if (i >= tokens * width) return;
  const int64_t t = i / width, c = i - t * width;
  float sums[kVec] = {};
  for (int j = 0; j < k; ++j) {
    float row[kVec];
    load<kVec>(rows, places[t * k + j] * width + c, row);
    const float weight = weights != nullptr ? weights[t * k + j] : 1.0f;
    unroll<kVec>([&](int n) { sums[n] += weight * row[n]; });
  }
  store<kVec>(y, i, sums);
}

// A block for each choice.
__global__ void __launch_bounds__(kThreads)
    combine_rows_grad_kernel(Operand rows, const int32_t* places, const float* weights, Operand dy, Operand drows,
                             float* dweights, int k, int64_t width) {
  __shared__ float scratch[32];
  const int64_t choice = blockIdx.x, at = places[choice] * width, from = choice / k * width;
  const float weight = weights[choice];
  float sum = 0;
  for (int64_t c = threadIdx.x; c < width; c += kThreads) {
    const float given = load(dy, from + c);
    if (drows.data != nullptr) store(drows, at + c, weight * given);
    sum += load(rows, at + c) * given;
  }
  sum = block_reduce<Sum>(sum, scratch);
  if (dweights != nullptr && threadIdx.x == 0) dweights[choice] = sum;
}

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

}  // namespace

void launch_dispatch_rows(const RowsToDispatch& rows, cudaStream_t stream) {
  const auto as = [&]<typename V>(V) {
    const int64_t words = rows.row_bytes / static_cast<int64_t>(sizeof(V));
    launch_overlapped(dispatch_rows_kernel<V>, {blocks_for(rows.tokens * words), kThreads}, stream, rows);
  };
  if (rows.row_bytes % 16 == 0) return as(uint4{});
  rows.row_bytes % 4 == 0 ? as(uint32_t{}) : as(uint8_t{});
}

void launch_combine_rows(const Operand& rows, const int32_t* places, const float* weights, const Operand& y,
                         int64_t tokens, int k, int64_t width, cudaStream_t stream) {
  const auto launch = [&](auto kernel, int64_t threads) {
    launch_overlapped(kernel, {blocks_for(threads), kThreads}, stream, rows, places, weights, y, tokens, k, width);
  };
  width % 4 == 0 ? launch(combine_rows_kernel<4>, tokens * width / 4) : launch(combine_rows_kernel<1>, tokens * width);
}

void launch_combine_rows_grad(const Operand& rows, const int32_t* places, const float* weights, const Operand& dy,
                              const Operand& drows, float* dweights, int64_t tokens, int k, int64_t width,
                              cudaStream_t stream) {
  combine_rows_grad_kernel<<<static_cast<unsigned>(tokens * k), kThreads, 0, stream>>>(rows, places, weights, dy, drows,
                                                                                       dweights, k, width);
}

}  // namespace octet::cuda
