// AdamW of up to 32 parameters in one walk through memory: 28 bytes a parameter, 16-byte accesses, in place or not; the
// bf16 copy and the amax of the refreshed parameter on the way. The order of operations is torch.optim.AdamW's, in
// float32; the corrections of the moments are made in float64 once a block.
#include <algorithm>
#include <iterator>

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/optimiser/optimiser.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kVec = 4;
constexpr int64_t kChunk = kThreads * kVec;  // elements of a block: one load of each operand a thread
constexpr int32_t kLarge = 4096;             // chunks: a parameter worth a launch of its own

struct Constants {
  float clip, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, eps;
};

// Threads 0 and 1 make the constants; each takes the power of one beta.
__device__ __forceinline__ void make_constants(const AdamwTable& table, double weight_decay, Constants& to) {
  const bool first = threadIdx.x == 0;
  const double correction = 1 - pow(first ? table.beta1 : table.beta2, static_cast<double>(*table.step));
  if (first) {
    to.clip = *table.clip;
    to.decay = static_cast<float>(1 - static_cast<double>(*table.lr) * weight_decay);
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

// The block's chunk in whole vectors: reads are on their way while `shared` is made, nothing is in a loop.
template <typename G>
__device__ __forceinline__ uint32_t walk_vectors(const AdamwTable& table, const AdamwEntry& e, int64_t begin,
                                                 const Constants& shared) {
  const int64_t i = begin + threadIdx.x * kVec;
  const bool whole = i + kVec <= e.count;
  Run<kVec, G> run;
  if (whole) run.read(e, i);
  const bool keep = *table.finite == 0;
  __syncthreads();
  uint32_t most = 0;
  if (whole) {
    if (!keep) run.step(shared);
    return run.write(e, i);
  }
  for (int64_t last = i; last < e.count; ++last) {  // the one thread whose run is cut short
    Run<1, G> one;
    one.read(e, last);
    if (!keep) one.step(shared);
    most = max(most, one.write(e, last));
  }
  return most;
}

template <typename G>
__device__ __forceinline__ uint32_t walk_elements(const AdamwTable& table, const AdamwEntry& e, int64_t begin,
                                                  const Constants& shared) {
  const int64_t end = min(begin + kChunk, e.count);
  const bool keep = *table.finite == 0;
  __syncthreads();
  uint32_t most = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    Run<1, G> run;
    run.read(e, i);
    if (!keep) run.step(shared);
    most = max(most, run.write(e, i));
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

// kOne: of one parameter with vectors, found without a search.
template <bool kOne>
__global__ void __launch_bounds__(kThreads, 4) adamw_kernel(const __grid_constant__ AdamwTable table) {
  __shared__ Constants shared;
  const auto chunk = static_cast<int32_t>(blockIdx.x);
  const AdamwEntry& e = table.entries[kOne ? 0 : entry_of(table, chunk)];
  const int64_t begin = (chunk - e.first_chunk) * kChunk;
  if (threadIdx.x < 2) make_constants(table, e.weight_decay, shared);
  uint32_t most = 0;
  if (kOne || e.vector) {
    most = e.grad_bf16 ? walk_vectors<bf16>(table, e, begin, shared) : walk_vectors<float>(table, e, begin, shared);
  } else {
    most = e.grad_bf16 ? walk_elements<bf16>(table, e, begin, shared) : walk_elements<float>(table, e, begin, shared);
  }
  if (e.amax != nullptr) block_amax(most, e.amax);
}

__global__ void clear_amaxes_kernel(const __grid_constant__ AdamwTable table) {
  const int entry = static_cast<int>(threadIdx.x);
  if (entry < table.count && table.entries[entry].amax != nullptr) *table.entries[entry].amax = 0.0f;
}

bool fits_vectors(const AdamwEntry& e) {
  const void* all[] = {e.param, e.m, e.v, e.grad, e.new_param, e.new_m, e.new_v, e.copy};
  return std::all_of(std::begin(all), std::end(all),
                     [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; });
}

}  // namespace

void launch_adamw(AdamwTable table, cudaStream_t stream) {
  AdamwTable one = table;  // for the large ones, a launch each; the others go together
  AdamwTable few = table;
  few.count = few.chunks = 0;
  if (std::any_of(table.entries, table.entries + table.count, [](const AdamwEntry& e) { return e.amax != nullptr; }))
    clear_amaxes_kernel<<<1, kAdamwEntries, 0, stream>>>(table);
  for (int i = 0; i < table.count; ++i) {
    AdamwEntry e = table.entries[i];
    const auto chunks = static_cast<int32_t>((e.count + kChunk - 1) / kChunk);
    e.vector = fits_vectors(e);
    if (e.vector && chunks >= kLarge) {
      e.first_chunk = 0;
      one.entries[0] = e;
      adamw_kernel<true><<<static_cast<unsigned>(chunks), kThreads, 0, stream>>>(one);
    } else {
      e.first_chunk = few.chunks;
      few.entries[few.count++] = e;
      few.chunks += chunks;
    }
  }
  if (few.chunks > 0) adamw_kernel<false><<<static_cast<unsigned>(few.chunks), kThreads, 0, stream>>>(few);
}

}  // namespace octet::cuda
