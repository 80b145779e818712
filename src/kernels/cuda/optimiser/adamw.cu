// AdamW in one walk through memory: 28 bytes a parameter, 16-byte accesses, in place or not. The order of operations is
// torch.optim.AdamW's, in float32; the corrections of the moments are made in float64 once a block.
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/optimiser/optimiser.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kVec = 4, kBlocksPerSm = 5;

struct Constants {
  float clip, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, eps;
};

// The first warp makes the constants; a lane each takes the powers of beta1 and beta2.
__device__ void make_constants(const AdamwJob& job, Constants& to) {
  const int lane = static_cast<int>(threadIdx.x);
  const double beta = lane == 0 ? job.beta1 : job.beta2;
  const double correction = 1 - pow(beta, static_cast<double>(*job.step));
  const double lr = static_cast<double>(*job.lr);
  if (lane == 0) {
    to.clip = *job.clip;
    to.decay = static_cast<float>(1 - lr * job.weight_decay);
    to.beta1 = static_cast<float>(job.beta1), to.one_minus_beta1 = static_cast<float>(1 - job.beta1);
    to.beta2 = static_cast<float>(job.beta2), to.one_minus_beta2 = static_cast<float>(1 - job.beta2);
    to.step_size = static_cast<float>(lr / correction);
    to.eps = static_cast<float>(job.eps);
  } else {
    to.root_correction = static_cast<float>(1 / sqrt(correction));
  }
}

struct Element {
  float p, g, m, v;
};
__device__ __forceinline__ void update(const Constants& k, Element& e) {
  const float g = e.g * k.clip;
  e.m = fmaf(e.m, k.beta1, g * k.one_minus_beta1);
  e.v = fmaf(e.v, k.beta2, g * g * k.one_minus_beta2);
  const float denominator = sqrtf(e.v) * k.root_correction + k.eps;
  e.p = e.p * k.decay - k.step_size * (e.m / denominator);
}

// kCount elements from `i` on. Reads come before writes: results may stand where inputs stood.
template <int kCount, typename G>
struct Run {
  float p[kCount], g[kCount], m[kCount], v[kCount];

  __device__ __forceinline__ void read(const AdamwJob& job, int64_t i) {
    load(job.param + i, p);
    load(static_cast<const G*>(job.grad) + i, g);
    load(job.m + i, m);
    load(job.v + i, v);
  }
  __device__ __forceinline__ void step(const Constants& k, bool keep) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      Element e{p[j], g[j], m[j], v[j]};
      update(k, e);
      if (!keep) p[j] = e.p, m[j] = e.m, v[j] = e.v;
    }
  }
  __device__ __forceinline__ void write(const AdamwJob& job, int64_t i) const {
    if (job.new_param != nullptr) store(job.new_param + i, p);
    if (job.new_m != nullptr) store(job.new_m + i, m);
    if (job.new_v != nullptr) store(job.new_v + i, v);
  }
};

// The first reads are on their way while the constants are made.
template <int kCount, typename G>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) adamw_kernel(const __grid_constant__ AdamwJob job) {
  __shared__ Constants shared;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kCount;
  int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kCount;
  Run<kCount, G> run;
  if (i + kCount <= job.count) run.read(job, i);
  const bool keep = *job.finite == 0;
  if (threadIdx.x < 2) make_constants(job, shared);
  __syncthreads();
  const Constants k = shared;
  while (i + kCount <= job.count) {
    run.step(k, keep);
    run.write(job, i);
    i += stride;
    if (i + kCount <= job.count) run.read(job, i);
  }
  if (kCount > 1 && i < job.count) {  // the one thread whose run is cut short
    for (; i < job.count; ++i) {
      Run<1, G> one;
      one.read(job, i);
      one.step(k, keep);
      one.write(job, i);
    }
  }
}

template <typename G>
void launch(const AdamwJob& job, int sm_count, cudaStream_t stream) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  bool vector = aligned(job.grad);
  for (const float* p : {job.param, job.m, job.v}) vector = vector && aligned(p);
  for (const float* p : {job.new_param, job.new_m, job.new_v}) vector = vector && aligned(p);
  const int64_t of_block = kThreads * (vector ? kVec : 1), wanted = (job.count + of_block - 1) / of_block;
  const int64_t resident = int64_t{sm_count} * kBlocksPerSm;
  const auto blocks = static_cast<unsigned>(wanted < resident ? wanted : resident);
  if (vector) {
    adamw_kernel<kVec, G><<<blocks, kThreads, 0, stream>>>(job);
  } else {
    adamw_kernel<1, G><<<blocks, kThreads, 0, stream>>>(job);
  }
}

}  // namespace

void launch_adamw(const AdamwJob& job, int sm_count, cudaStream_t stream) {
  if (job.grad_type == DType::kF32) {
    launch<float>(job, sm_count, stream);
  } else {
    launch<bf16>(job, sm_count, stream);
  }
}

}  // namespace octet::cuda
