#include "kernels/cuda/attention/attention.h"

#include "kernels/cuda/common/philox.cuh"

namespace octet::cuda {
namespace {

__global__ void ragged_layout_kernel(AttentionProblem p, const int32_t* segments, RaggedLayout to) {
  const int s = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (s > p.segments) return;
  const int start = min(max(segments[s], 0), p.tokens);
  to.q_starts[s] = start * p.heads * p.dim;
  to.kv_starts[s] = start * p.kv_heads * p.dim;
  to.stats_starts[s] = start * p.heads;
  if (s < p.segments) to.lengths[s] = max(min(segments[s + 1], p.tokens) - start, 0);
}

__global__ void clear_outside_kernel(AttentionProblem p, const int32_t* segments, uint32_t* rows, int words) {
  const int token = static_cast<int>(blockIdx.x);
  if (token >= segments[0] && token < segments[p.segments]) return;
  for (int i = static_cast<int>(threadIdx.x); i < words; i += static_cast<int>(blockDim.x)) {
    rows[static_cast<int64_t>(token) * words + i] = 0;
  }
}

__global__ void lse_by_head_kernel(const float* from, float* to, int length, int heads) {
  __shared__ float tile[32][33];
  const int64_t base = static_cast<int64_t>(blockIdx.z) * length * heads;
  const int tx = static_cast<int>(threadIdx.x), ty = static_cast<int>(threadIdx.y);
  const int token0 = static_cast<int>(blockIdx.x) * 32, head0 = static_cast<int>(blockIdx.y) * 32;
  for (int i = ty; i < 32; i += 8) {
    if (token0 + i < length && head0 + tx < heads) tile[i][tx] = from[base + (token0 + i) * heads + head0 + tx];
  }
  __syncthreads();
  for (int i = ty; i < 32; i += 8) {
    if (head0 + i < heads && token0 + tx < length) to[base + (head0 + i) * length + token0 + tx] = tile[tx][i];
  }
}

// One seed a site: masks of other sites, steps and micro-batches have unrelated ones, whatever cuDNN makes of offsets.
__global__ void mask_seed_kernel(const int64_t* rng, uint32_t key, int64_t* to) {
  const uint64_t site = static_cast<uint64_t>(key) << 32 | static_cast<uint32_t>(rng[2]);
  const uint64_t run = static_cast<uint64_t>(rng[0]) ^ RandomStream::mix64(static_cast<uint64_t>(rng[1]));
  to[0] = static_cast<int64_t>(RandomStream::mix64(run ^ RandomStream::mix64(~site)));
  to[1] = 0;
}

}  // namespace

void launch_mask_seed(const int64_t* rng, uint32_t key, int64_t* to, cudaStream_t stream) {
  mask_seed_kernel<<<1, 1, 0, stream>>>(rng, key, to);
}

void launch_ragged_layout(const AttentionProblem& p, const int32_t* segments, const RaggedLayout& layout,
                          cudaStream_t stream) {
  ragged_layout_kernel<<<static_cast<unsigned>(p.segments / 128 + 1), 128, 0, stream>>>(p, segments, layout);
}

void launch_clear_outside(const AttentionProblem& p, const int32_t* segments, void* rows, int width, int bytes,
                          cudaStream_t stream) {
  clear_outside_kernel<<<static_cast<unsigned>(p.tokens), 128, 0, stream>>>(
      p, segments, static_cast<uint32_t*>(rows), static_cast<int>(static_cast<int64_t>(width) * bytes / 4));
}

void launch_lse_by_head(const float* from, float* to, int batch, int length, int heads, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((length + 31) / 32), static_cast<unsigned>((heads + 31) / 32),
                  static_cast<unsigned>(batch));
  lse_by_head_kernel<<<grid, dim3(32, 8), 0, stream>>>(from, to, length, heads);
}

}  // namespace octet::cuda
