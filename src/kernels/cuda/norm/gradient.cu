// Gradients of norms of any number of columns, and the sum over the blocks' partial sums.
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/row_access.cuh"

namespace octet::cuda {

void launch_norm_gradient_bf16(const NormGradient& call, const NormGradientPlan& plan, cudaStream_t stream);
void launch_norm_gradient_f32(const NormGradient& call, const NormGradientPlan& plan, cudaStream_t stream);

namespace {

constexpr int kAddCols = 32, kAddRows = 8;

// Where the sums over the blocks' shares go, in the order of the partials, and their amax; null: not wanted.
struct GradientSums {
  float *of[3], *amax;
  const uint32_t* block_amaxes;
};

// to.of[y] [C] = the sum over partials [y][blocks, C], in one order; the amax by the blocks beyond the last column.
__global__ void __launch_bounds__(kAddCols* kAddRows)
    add_partials_kernel(const float* partials, int blocks, int64_t cols, const __grid_constant__ GradientSums to) {
  __shared__ float part[kAddRows][kAddCols];
  griddep_wait();
  griddep_launch_dependents();
  if (blockIdx.x * int64_t{kAddCols} >= cols) {
    if (blockIdx.y != 0) return;
    const auto thread = static_cast<int>(threadIdx.y * kAddCols + threadIdx.x);
    uint32_t most = 0;
    for (int b = thread; b < blocks; b += kAddCols * kAddRows) most = max(most, to.block_amaxes[b]);
    most = warp_max(most);
    if (threadIdx.x == 0) part[0][threadIdx.y] = __uint_as_float(most);
    __syncthreads();
    if (threadIdx.y != 0) return;
    most = warp_max(__float_as_uint(part[0][threadIdx.x % kAddRows]));
    if (threadIdx.x == 0) *to.amax = __uint_as_float(most);
    return;
  }
  if (to.of[blockIdx.y] == nullptr) return;
  partials += int64_t{blockIdx.y} * blocks * cols;
  const int64_t column = int64_t{blockIdx.x} * kAddCols + threadIdx.x;
  float sum = 0;
  if (column < cols) {
#pragma unroll 8
    for (int b = threadIdx.y; b < blocks; b += kAddRows) sum += partials[int64_t{b} * cols + column];
  }
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= cols) return;
#pragma unroll
  for (int r = 1; r < kAddRows; ++r) sum += part[r][threadIdx.x];
  to.of[blockIdx.y][column] = sum;
}

// A block a row; element by element.
template <typename T>
__global__ void norm_gradient_elementwise_dx_kernel(const NormGradient p) {
  __shared__ float scratch[kTeamScratch];
  BlockReduce<false> team{scratch};
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
__global__ void norm_gradient_elementwise_sums_kernel(const NormGradient p) {
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
void launch_elementwise(const NormGradient& call, const NormGradientPlan& plan, cudaStream_t stream) {
  if (call.dx != nullptr) {
    norm_gradient_elementwise_dx_kernel<T><<<static_cast<unsigned>(call.rows), plan.threads, 0, stream>>>(call);
  }
  const dim3 grid(static_cast<unsigned>(plan.blocks), static_cast<unsigned>((call.cols + 127) / 128));
  norm_gradient_elementwise_sums_kernel<T><<<grid, 128, 0, stream>>>(call);
}

}  // namespace

int64_t norm_gradient_scratch(const NormGradientPlan& plan, int64_t cols, int sums) {
  return plan.blocks * (int64_t{sums} * cols + 1) * int64_t{sizeof(float)};
}

void launch_norm_gradient(const NormGradient& given, const NormGradientPlan& plan, cudaStream_t stream) {
  NormGradient call = given;
  const int sums = 1 + call.layer + (call.column_sum != nullptr ? 1 : 0);
  call.block_amaxes = reinterpret_cast<uint32_t*>(call.partials + int64_t{sums} * plan.blocks * call.cols);
  const bool is_bf16 = call.dtype == DType::kBF16;
  if (plan.kernel == NormGradientKernel::kElementwise) {
    is_bf16 ? launch_elementwise<bf16>(call, plan, stream) : launch_elementwise<float>(call, plan, stream);
  } else {
    is_bf16 ? launch_norm_gradient_bf16(call, plan, stream) : launch_norm_gradient_f32(call, plan, stream);
  }
  GradientSums to{
      {call.dweight, call.layer ? call.dbias : call.column_sum, call.column_sum}, call.amax, call.block_amaxes};
  const auto tiles = static_cast<unsigned>((call.cols + kAddCols - 1) / kAddCols);
  const dim3 grid(tiles + (call.amax != nullptr ? 1 : 0), static_cast<unsigned>(sums));
  launch_overlapped(add_partials_kernel, {grid, dim3(kAddCols, kAddRows)}, stream, call.partials, plan.blocks,
                    call.cols, to);
}

}  // namespace octet::cuda
