// The update of up to 32 parameters in one walk through memory, by an optimiser's Rule: 16-byte accesses, in place or
// not, the bf16 copy and the amax of the refreshed parameter on the way. A Rule has the number of moments, Constants
// that threads 0 and 1 make once a block (make), and the step of one element (step).
#include <algorithm>
#include <cstddef>
#include <iterator>

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/optimiser/optimiser.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kVec = 4;
constexpr int64_t kChunk = kThreads * kVec;  // elements of a block: one load of each operand a thread
constexpr int32_t kLarge = 4096;             // chunks: a parameter worth a launch of its own

// kCount elements from `i` on. Reads come before writes: results may stand where inputs stood.
template <typename Rule, int kCount, typename G>
struct Run {
  float p[kCount], g[kCount], m[kCount], v[kCount];

  __device__ __forceinline__ void read(const UpdateEntry& e, int64_t i) {
    load(e.param + i, p);
    load(static_cast<const G*>(e.grad) + i, g);
    if (Rule::kMoments == 2 || e.m != nullptr) {
      load(e.m + i, m);
    } else {
#pragma unroll
      for (float& value : m) value = 0;
    }
    if constexpr (Rule::kMoments == 2) load(e.v + i, v);
  }
  __device__ __forceinline__ void step(const typename Rule::Constants& k) {
    unroll<kCount>([&](int j) { Rule::step(k, p[j], g[j], m[j], v[j]); });
  }
  __device__ __forceinline__ uint32_t write(const UpdateEntry& e, int64_t i) const {
    if (e.new_param != nullptr) store(e.new_param + i, p);
    if (e.new_m != nullptr) store(e.new_m + i, m);
    if constexpr (Rule::kMoments == 2) {
      if (e.new_v != nullptr) store(e.new_v + i, v);
    }
    if (e.copy != nullptr) store(static_cast<bf16*>(e.copy) + i, p);
    uint32_t most = 0;
#pragma unroll
    for (float value : p) most = max(most, magnitude_bits(value));
    return most;
  }
};

// The block's chunk in whole vectors: reads are on their way while `shared` is made, nothing is in a loop.
template <typename Rule, typename G>
__device__ __forceinline__ uint32_t walk_vectors(const UpdateTable& table, const UpdateEntry& e, int64_t begin,
                                                 const typename Rule::Constants& shared) {
  const int64_t i = begin + threadIdx.x * kVec;
  const bool whole = i + kVec <= e.count;
  Run<Rule, kVec, G> run;
  if (whole) run.read(e, i);
  const bool keep = *table.finite == 0;
  __syncthreads();
  uint32_t most = 0;
  if (whole) {
    if (!keep) run.step(shared);
    return run.write(e, i);
  }
  for (int64_t last = i; last < e.count; ++last) {  // the one thread whose run is cut short
    Run<Rule, 1, G> one;
    one.read(e, last);
    if (!keep) one.step(shared);
    most = max(most, one.write(e, last));
  }
  return most;
}

template <typename Rule, typename G>
__device__ __forceinline__ uint32_t walk_elements(const UpdateTable& table, const UpdateEntry& e, int64_t begin,
                                                  const typename Rule::Constants& shared) {
  const int64_t end = min(begin + kChunk, e.count);
  const bool keep = *table.finite == 0;
  __syncthreads();
  uint32_t most = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    Run<Rule, 1, G> run;
    run.read(e, i);
    if (!keep) run.step(shared);
    most = max(most, run.write(e, i));
  }
  return most;
}

// The last entry whose first chunk is at or before this one.
__device__ __forceinline__ int entry_of(const UpdateTable& table, int32_t chunk) {
  int first = 0;
#pragma unroll
  for (int step = kUpdateEntries / 2; step > 0; step /= 2)
    if (first + step < table.count && table.entries[first + step].first_chunk <= chunk) first += step;
  return first;
}

// kOne: of one parameter with vectors, found without a search.
template <typename Rule, bool kOne>
__global__ void __launch_bounds__(kThreads, 4) update_kernel(const __grid_constant__ UpdateTable table) {
  __shared__ typename Rule::Constants shared;
  const auto chunk = static_cast<int32_t>(blockIdx.x);
  const UpdateEntry& e = table.entries[kOne ? 0 : entry_of(table, chunk)];
  const int64_t begin = (chunk - e.first_chunk) * kChunk;
  if (threadIdx.x < 2) Rule::make(table, e, shared);
  uint32_t most = 0;
  if (kOne || e.vector) {
    most = e.grad_bf16 ? walk_vectors<Rule, bf16>(table, e, begin, shared)
                       : walk_vectors<Rule, float>(table, e, begin, shared);
  } else {
    most = e.grad_bf16 ? walk_elements<Rule, bf16>(table, e, begin, shared)
                       : walk_elements<Rule, float>(table, e, begin, shared);
  }
  if (e.amax != nullptr) block_amax(most, e.amax);
}

__global__ void clear_amaxes_kernel(const __grid_constant__ UpdateTable table) {
  const int entry = static_cast<int>(threadIdx.x);
  if (entry < table.count && table.entries[entry].amax != nullptr) *table.entries[entry].amax = 0.0f;
}

bool fits_vectors(const UpdateEntry& e) {
  const void* all[] = {e.param, e.m, e.v, e.grad, e.new_param, e.new_m, e.new_v, e.copy};
  return std::all_of(std::begin(all), std::end(all),
                     [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; });
}

template <typename Rule>
void launch_updates(const UpdateTable& table, cudaStream_t stream) {
  UpdateTable one = table;  // for the large ones, a launch each; the others go together
  UpdateTable few = table;
  few.count = few.chunks = 0;
  if (std::any_of(table.entries, table.entries + table.count, [](const UpdateEntry& e) { return e.amax != nullptr; }))
    clear_amaxes_kernel<<<1, kUpdateEntries, 0, stream>>>(table);
  for (int i = 0; i < table.count; ++i) {
    UpdateEntry e = table.entries[i];
    const auto chunks = static_cast<int32_t>((e.count + kChunk - 1) / kChunk);
    e.vector = fits_vectors(e);
    if (e.vector && chunks >= kLarge) {
      e.first_chunk = 0;
      one.entries[0] = e;
      update_kernel<Rule, true><<<static_cast<unsigned>(chunks), kThreads, 0, stream>>>(one);
    } else {
      e.first_chunk = few.chunks;
      few.entries[few.count++] = e;
      few.chunks += chunks;
    }
  }
  if (few.chunks > 0) update_kernel<Rule, false><<<static_cast<unsigned>(few.chunks), kThreads, 0, stream>>>(few);
}

// --- the moments of Adam, shared by AdamW and adam_direction. Their bias corrections are made in float64 once a block
struct AdamConstants {
  float clip, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, eps;
};

// Threads 0 and 1 make the constants; each takes the power of one beta. Thread 0 sets decay and step_size by
// set(correction of the first moment).
template <typename Set>
__device__ __forceinline__ void make_adam_constants(const UpdateTable& table, AdamConstants& to, const Set& set) {
  const bool first = threadIdx.x == 0;
  const double correction = 1 - pow(first ? table.beta1 : table.beta2, static_cast<double>(*table.step));
  if (first) {
    to.clip = *table.clip;
    to.beta1 = static_cast<float>(table.beta1), to.one_minus_beta1 = static_cast<float>(1 - table.beta1);
    to.beta2 = static_cast<float>(table.beta2), to.one_minus_beta2 = static_cast<float>(1 - table.beta2);
    to.eps = static_cast<float>(table.eps);
    set(correction);
  } else {
    to.root_correction = static_cast<float>(1 / sqrt(correction));
  }
}

// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; returns m / (sqrt(v) / sqrt(1 - b2^t) + eps)
__device__ __forceinline__ float refresh_moments(const AdamConstants& k, float g, float& m, float& v) {
  const float grad = g * k.clip;
  m = fmaf(m, k.beta1, grad * k.one_minus_beta1);
  v = fmaf(v, k.beta2, grad * grad * k.one_minus_beta2);
  const float denominator = sqrtf(v) * k.root_correction + k.eps;
  return m / denominator;
}

// --- AdamW: 28 bytes a parameter. The order of operations is torch.optim.AdamW's, in float32
struct AdamwRule {
  static constexpr int kMoments = 2;
  using Constants = AdamConstants;

  static __device__ __forceinline__ void make(const UpdateTable& table, const UpdateEntry& e, Constants& to) {
    make_adam_constants(table, to, [&](double correction) {
      to.decay = static_cast<float>(1 - static_cast<double>(*e.lr) * e.weight_decay);
      to.step_size = static_cast<float>(static_cast<double>(*e.lr) / correction);
    });
  }
  static __device__ __forceinline__ void step(const Constants& k, float& p, float g, float& m, float& v) {
    const float ratio = refresh_moments(k, g, m, v);
    p = p * k.decay - k.step_size * ratio;
  }
};

// --- SGD as torch.optim.SGD has it (dampening 0): 20 bytes a parameter with a momentum buffer, 12 without
struct SgdRule {
  static constexpr int kMoments = 1;
  struct Constants {
    float clip, decay, lr, momentum;
    bool buffer, nesterov, inside;
  };

  static __device__ __forceinline__ void make(const UpdateTable& table, const UpdateEntry& e, Constants& to) {
    if (threadIdx.x != 0) return;
    to.clip = *table.clip, to.lr = *e.lr;
    to.decay = static_cast<float>(e.weight_decay), to.momentum = static_cast<float>(table.beta1);
    to.buffer = e.m != nullptr, to.nesterov = table.nesterov, to.inside = table.rate_inside;
  }
  // g = grad clip + wd p; m = momentum m + g; p -= lr (g + momentum m with nesterov, else m). inside: g takes lr
  // before.
  static __device__ __forceinline__ void step(const Constants& k, float& p, float g, float& m, float&) {
    float direction = fmaf(p, k.decay, g * k.clip);
    if (k.inside) direction = k.lr * direction;
    if (k.buffer) {
      m = fmaf(m, k.momentum, direction);
      direction = k.nesterov ? fmaf(m, k.momentum, direction) : m;
    }
    p -= k.inside ? direction : k.lr * direction;
  }
};

// --- adam_direction: 28 bytes a parameter; the direction stands for the new parameter
struct DirectionRule {
  static constexpr int kMoments = 2;
  struct Constants : AdamConstants {
    float unbiased;
  };

  static __device__ __forceinline__ void make(const UpdateTable& table, const UpdateEntry& e, Constants& to) {
    make_adam_constants(table, to, [&](double correction) {
      to.decay = static_cast<float>(e.weight_decay);
      to.unbiased = static_cast<float>(1 / correction);
    });
  }
  // u = m / (1 - b1^t) / (sqrt(v) / sqrt(1 - b2^t) + eps) + wd p
  static __device__ __forceinline__ void step(const Constants& k, float& p, float g, float& m, float& v) {
    const float ratio = refresh_moments(k, g, m, v);
    p = fmaf(p, k.decay, k.unbiased * ratio);
  }
};

}  // namespace

void launch_adamw(const UpdateTable& table, cudaStream_t stream) { launch_updates<AdamwRule>(table, stream); }

void launch_sgd(const UpdateTable& table, cudaStream_t stream) { launch_updates<SgdRule>(table, stream); }

void launch_adam_direction(const UpdateTable& table, cudaStream_t stream) {
  launch_updates<DirectionRule>(table, stream);
}

}  // namespace octet::cuda
