// Gradients of norms of any number of columns, the sum over the blocks' partial sums, and the choice between kernels.
#include <algorithm>

#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/row_access.cuh"

namespace octet::cuda {

void launch_norm_gradient_bf16(const NormGradient& call, cudaStream_t stream);
void launch_norm_gradient_f32(const NormGradient& call, cudaStream_t stream);

namespace {

constexpr int kAddCols = 32, kAddRows = 32;

// to [C] = the sum over partials [blocks, C], in one order.
__global__ void add_partials_kernel(const float* partials, int blocks, int64_t cols, float* to) {
  __shared__ float part[kAddRows][kAddCols + 1];
  const int64_t column = int64_t{blockIdx.x} * kAddCols + threadIdx.x;
  float sum = 0;
  if (column < cols) {
    for (int b = threadIdx.y; b < blocks; b += kAddRows) sum += partials[int64_t{b} * cols + column];
  }
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = warp_reduce<Sum>(part[threadIdx.x][threadIdx.y]);
  const int64_t own = int64_t{blockIdx.x} * kAddCols + threadIdx.y;
  if (threadIdx.x == 0 && own < cols) to[own] = sum;
}

// A block a row; element by element.
template <typename T>
__global__ void norm_gradient_any_dx_kernel(const NormGradient p) {
  __shared__ float scratch[kTeamScratch];
  RowTeam<false> team{scratch};
  const int64_t row = blockIdx.x;
  const T *x = static_cast<const T*>(p.x) + row * p.cols, *dy = static_cast<const T*>(p.dy) + row * p.cols;
  T* dx = static_cast<T*>(p.dx) + row * p.cols;
  const float mean = p.layer ? p.mean[row] : 0.0f, rstd = p.rstd[row], scale = 1.0f / static_cast<float>(p.cols);
  float sum_g = 0, sum_gh = 0;
  for (int64_t c = threadIdx.x; c < p.cols; c += blockDim.x) {
    const float g = to_float(dy[c]) * load_channel(p.weight, p.weight_dtype, c);
    sum_g += g;
    sum_gh = fmaf(g, (to_float(x[c]) - mean) * rstd, sum_gh);
  }
  const float mean_g = p.layer ? team.sum(sum_g) * scale : 0.0f, mean_gh = team.sum(sum_gh) * scale;
  for (int64_t c = threadIdx.x; c < p.cols; c += blockDim.x) {
    const float g = to_float(dy[c]) * load_channel(p.weight, p.weight_dtype, c) - mean_g;
    dx[c] = from_float<T>(rstd * fmaf(-(to_float(x[c]) - mean) * rstd, mean_gh, g));
  }
}

// A thread a column; block b walks rows b, b + blocks, ...: partials [2, blocks, C] of dweight and dbias.
template <typename T>
__global__ void norm_gradient_any_sums_kernel(const NormGradient p) {
  const int64_t column = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (column >= p.cols) return;
  float dweight = 0, dbias = 0;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const float mean = p.layer ? p.mean[row] : 0.0f;
    const float d = to_float(static_cast<const T*>(p.dy)[row * p.cols + column]);
    dweight = fmaf(d, (to_float(static_cast<const T*>(p.x)[row * p.cols + column]) - mean) * p.rstd[row], dweight);
    dbias += d;
  }
  p.partials[int64_t{blockIdx.x} * p.cols + column] = dweight;
  if (p.layer) p.partials[(int64_t{gridDim.x} + blockIdx.x) * p.cols + column] = dbias;
}

template <typename T>
void launch_any(const NormGradient& call, cudaStream_t stream) {
  if (call.dx != nullptr) {
    norm_gradient_any_dx_kernel<T><<<static_cast<unsigned>(call.rows), 256, 0, stream>>>(call);
  }
  const dim3 grid(static_cast<unsigned>(call.blocks), static_cast<unsigned>((call.cols + 127) / 128));
  norm_gradient_any_sums_kernel<T><<<grid, 128, 0, stream>>>(call);
}

}  // namespace

bool norm_gradient_takes(int64_t cols) { return cols % kGroup == 0 && cols <= 512 * 4 * kGroup; }

// 768 threads, 16 columns each where rows are wide.
int norm_gradient_blocks_per_sm(int64_t cols) { return static_cast<int>(std::clamp<int64_t>(12288 / cols, 1, 6)); }

int norm_gradient_blocks(int64_t rows, int64_t cols, int sm_count) {
  return static_cast<int>(std::min<int64_t>(rows, int64_t{norm_gradient_blocks_per_sm(cols)} * sm_count));
}

int64_t norm_gradient_scratch(int64_t rows, int64_t cols, int sm_count, int sums) {
  return int64_t{sums} * norm_gradient_blocks(rows, cols, sm_count) * cols * int64_t{sizeof(float)};
}

void launch_norm_gradient(const NormGradient& call, cudaStream_t stream) {
  if (call.amax != nullptr) cudaMemsetAsync(call.amax, 0, sizeof(float), stream);
  const bool is_bf16 = call.dtype == DType::kBF16;
  if (!norm_gradient_takes(call.cols)) {
    is_bf16 ? launch_any<bf16>(call, stream) : launch_any<float>(call, stream);
  } else {
    is_bf16 ? launch_norm_gradient_bf16(call, stream) : launch_norm_gradient_f32(call, stream);
  }
  const float* partials = call.partials;
  const auto add = [&](float* to) {
    if (to != nullptr) {
      add_partials_kernel<<<static_cast<unsigned>((call.cols + kAddCols - 1) / kAddCols), dim3(kAddCols, kAddRows), 0,
                            stream>>>(partials, call.blocks, call.cols, to);
    }
    partials += call.blocks * call.cols;
  };
  add(call.dweight);
  if (call.layer) add(call.dbias);
  if (call.column_sum != nullptr) add(call.column_sum);
}

}  // namespace octet::cuda
