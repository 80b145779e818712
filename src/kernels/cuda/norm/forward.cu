// Norms of any number of columns, and what follows the rows: transposed codes, tiles.
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/norm/norm.h"
#include "kernels/cuda/norm/row_access.cuh"
#include "kernels/cuda/precision/quantize.h"

namespace octet::cuda {

void launch_norm_bf16(const NormForward& call, const NormPlan& plan, cudaStream_t stream);
void launch_norm_f32(const NormForward& call, const NormPlan& plan, cudaStream_t stream);
void launch_norm_tiles_bf16(const NormForward& call, cudaStream_t stream);
void launch_norm_tiles_f32(const NormForward& call, cudaStream_t stream);

namespace {

// A block a row, element by element; x is read again for every pass.
template <typename T>
__global__ void norm_elementwise_kernel(const NormForward p) {
  __shared__ float scratch[kTeamScratch];
  BlockReduce<false> team{scratch};
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(p.x) + row * p.cols;
  const float scale = 1.0f / static_cast<float>(p.cols);
  float mean = 0, squares = 0;
  if (p.layer) {
    float sum = 0;
    for (int64_t c = threadIdx.x; c < p.cols; c += blockDim.x) sum += to_float(x[c]);
    mean = team.sum(sum) * scale;
  }
  for (int64_t c = threadIdx.x; c < p.cols; c += blockDim.x) {
    const float d = to_float(x[c]) - mean;
    squares = fmaf(d, d, squares);
  }
  const float rstd = rsqrtf(team.sum(squares) * scale + p.eps);
  if (threadIdx.x == 0) {
    if (p.mean != nullptr) p.mean[row] = mean;
    if (p.rstd != nullptr) p.rstd[row] = rstd;
  }
  if (p.y == nullptr) return;
  T* y = static_cast<T*>(p.y) + row * p.cols;
  for (int64_t c = threadIdx.x; c < p.cols; c += blockDim.x) {
    const float h = (to_float(x[c]) - mean) * rstd, weight = load_channel(p.weight, p.weight_dtype, c);
    y[c] = from_float<T>(p.layer ? fmaf(h, weight, load_channel(p.bias, p.bias_dtype, c)) : h * weight);
  }
}

}  // namespace

NormPasses norm_passes(const NormForward& call) {
  const NormQuantize& q = call.quantize;
  if (q.codes_t != nullptr && q.codes != nullptr && q.scaling == CodeScaling::kTensor)
    return NormPasses::kTransposeCodes;
  return q.codes_t != nullptr || (q.scale_inv_t != nullptr && q.scaling == CodeScaling::kRow128) ? NormPasses::kTiles
                                                                                                 : NormPasses::kRows;
}

void launch_norm(const NormForward& call, const NormPlan& plan, cudaStream_t stream) {
  const bool is_bf16 = call.dtype == DType::kBF16;
  if (plan.kernel == NormKernel::kElementwise) {
    launch_overlapped(is_bf16 ? norm_elementwise_kernel<bf16> : norm_elementwise_kernel<float>,
                      {static_cast<unsigned>(plan.grid), static_cast<unsigned>(plan.threads)}, stream, call);
    return;
  }
  const NormPasses passes = norm_passes(call);
  NormForward rows = call;
  if (passes == NormPasses::kTiles) {
    if (call.amax != nullptr) cudaMemsetAsync(call.amax, 0, sizeof(float), stream);
    if (rows.mean == nullptr) rows.mean = call.statistics;
    if (rows.rstd == nullptr) rows.rstd = call.statistics + call.rows;
    rows.quantize = {}, rows.amax = nullptr;
  }
  is_bf16 ? launch_norm_bf16(rows, plan, stream) : launch_norm_f32(rows, plan, stream);
  if (passes == NormPasses::kTransposeCodes)
    launch_transpose_codes(call.quantize.codes, call.quantize.codes_t, call.rows, call.cols, stream);
  if (passes != NormPasses::kTiles) return;
  rows.quantize = call.quantize, rows.amax = call.amax;
  is_bf16 ? launch_norm_tiles_bf16(rows, stream) : launch_norm_tiles_f32(rows, stream);
}

}  // namespace octet::cuda
