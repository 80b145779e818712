// AdamW of up to 32 parameters in one walk through memory: 28 bytes a parameter, 16-byte accesses, in place or not; the
// bf16 copy and the amax of the refreshed parameter on the way. The order of operations is torch.optim.AdamW's, in
// float32; the corrections of the moments are made in float64 once a block.
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/optimiser/optimiser.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kVec = 4;
constexpr int64_t kChunk = kThreads * kVec;  // elements of a block: one load of each operand a thread

struct Constants {
  float clip, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, eps;
};

// Threads 0 and 1 make the constants but for decay; each takes the power of one beta.
__device__ void make_constants(const AdamwTable& table, Constants& to) {
  const bool first = threadIdx.x == 0;
  const double correction = 1 - pow(first ? table.beta1 : table.beta2, static_cast<double>(*table.step));
  if (first) {
    to.clip = *table.clip;
    to.beta1 = static_cast<float>(table.beta1), to.one_minus_beta1 = static_cast<float>(1 - table.beta1);
    to.beta2 = static_cast<float>(table.beta2), to.one_minus_beta2 = static_cast<float>(1 - table.beta2);
    to.step_size = static_cast<float>(static_cast<double>(*table.lr) / correction);
    to.eps = static_cast<float>(table.eps);
  } else {
    to.root_correction = static_cast<float>(1 / sqrt(correction));
  }
}

// kCount elements from `i` on. Reads come before writes: results may stand where inputs stood.
template <int kCount, typename G>
struct Run {
  float p[kCount], g[kCount], m[kCount], v[kCount];

  __device__ __forceinline__ void read(const AdamwEntry& e, int64_t i) {
    load(e.param + i, p);
    load(static_cast<const G*>(e.grad) + i, g);
    load(e.m + i, m);
    load(e.v + i, v);
  }
  __device__ __forceinline__ void step(const Constants& k) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float grad = g[j] * k.clip;
      m[j] = fmaf(m[j], k.beta1, grad * k.one_minus_beta1);
      v[j] = fmaf(v[j], k.beta2, grad * grad * k.one_minus_beta2);
      const float denominator = sqrtf(v[j]) * k.root_correction + k.eps;
      p[j] = p[j] * k.decay - k.step_size * (m[j] / denominator);
    }
  }
  __device__ __forceinline__ uint32_t write(const AdamwEntry& e, int64_t i) const {
    if (e.new_param != nullptr) store(e.new_param + i, p);
    if (e.new_m != nullptr) store(e.new_m + i, m);
    if (e.new_v != nullptr) store(e.new_v + i, v);
    if (e.copy != nullptr) store(static_cast<bf16*>(e.copy) + i, p);
    uint32_t most = 0;
#pragma unroll
    for (float value : p) most = max(most, magnitude_bits(value));
    return most;
  }
};

// The block's chunk, kCount elements a thread at a time. The first reads are on their way while `shared` is made.
template <int kCount, typename G>
__device__ __forceinline__ uint32_t walk(const AdamwTable& table, const AdamwEntry& e, int64_t begin,
                                         const Constants& shared) {
  const int64_t end = min(begin + kChunk, e.count);
  Run<kCount, G> run;
  int64_t i = begin + threadIdx.x * kCount;
  if (i + kCount <= end) run.read(e, i);
  const bool keep = *table.finite == 0;
  __syncthreads();
  Constants k = shared;
  k.decay = static_cast<float>(1 - static_cast<double>(*table.lr) * e.weight_decay);
  uint32_t most = 0;
  while (i + kCount <= end) {
    if (!keep) run.step(k);
    most = max(most, run.write(e, i));
    i += kThreads * kCount;
    if (i + kCount <= end) run.read(e, i);
  }
  if (kCount > 1 && i < end) {  // the one thread whose run is cut short
    for (; i < end; ++i) {
      Run<1, G> one;
      one.read(e, i);
      if (!keep) one.step(k);
      most = max(most, one.write(e, i));
    }
  }
  return most;
}

// The last entry that begins at or before this chunk.
__device__ __forceinline__ int entry_of(const AdamwTable& table, int32_t chunk) {
  int first = 0;
#pragma unroll
  for (int step = kAdamwEntries / 2; step > 0; step /= 2)
    if (first + step < table.count && table.entries[first + step].first_chunk <= chunk) first += step;
  return first;
}

__global__ void __launch_bounds__(kThreads, 4) adamw_kernel(const __grid_constant__ AdamwTable table) {
  __shared__ Constants shared;
  const auto chunk = static_cast<int32_t>(blockIdx.x);
  const AdamwEntry& e = table.entries[entry_of(table, chunk)];
  const int64_t begin = (chunk - e.first_chunk) * kChunk;
  if (threadIdx.x < 2) make_constants(table, shared);
  uint32_t most = 0;
  if (!e.vector) {
    most = e.grad_bf16 ? walk<1, bf16>(table, e, begin, shared) : walk<1, float>(table, e, begin, shared);
  } else {
    most = e.grad_bf16 ? walk<kVec, bf16>(table, e, begin, shared) : walk<kVec, float>(table, e, begin, shared);
  }
  if (e.amax != nullptr) block_amax(most, e.amax);
}

__global__ void clear_amaxes_kernel(const __grid_constant__ AdamwTable table) {
  const int entry = static_cast<int>(threadIdx.x);
  if (entry < table.count && table.entries[entry].amax != nullptr) *table.entries[entry].amax = 0.0f;
}

}  // namespace

void launch_adamw(AdamwTable table, cudaStream_t stream) {
  bool amax = false;
  table.chunks = 0;
  for (int i = 0; i < table.count; ++i) {
    AdamwEntry& e = table.entries[i];
    e.first_chunk = table.chunks;
    table.chunks += static_cast<int32_t>((e.count + kChunk - 1) / kChunk);
    e.vector = true;
    for (const void* p :
         {static_cast<const void*>(e.param), static_cast<const void*>(e.m), static_cast<const void*>(e.v), e.grad,
          static_cast<const void*>(e.new_param), static_cast<const void*>(e.new_m), static_cast<const void*>(e.new_v),
          static_cast<const void*>(e.copy)})
      e.vector = e.vector && reinterpret_cast<uintptr_t>(p) % 16 == 0;
    amax = amax || e.amax != nullptr;
  }
  if (amax) clear_amaxes_kernel<<<1, kAdamwEntries, 0, stream>>>(table);
  if (table.chunks > 0) adamw_kernel<<<static_cast<unsigned>(table.chunks), kThreads, 0, stream>>>(table);
}

}  // namespace octet::cuda
