// The update of up to 32 parameters in one walk through memory, by an optimiser's Rule: 16-byte accesses, in place or
// not, the bf16 copy and the amax of the refreshed parameter on the way. A Rule has the number of moments, Constants
// that threads 0 and 1 make once a block (make), and the step of one element (step).
#pragma once

#include <algorithm>
#include <iterator>

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/optimiser/optimiser.h"

namespace octet::cuda::update {

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

// The last entry whose first chunk (or piece) is at or before this one.
template <int32_t UpdateEntry::*kFirst = &UpdateEntry::first_chunk>
__device__ __forceinline__ int entry_of(const UpdateTable& table, int32_t chunk) {
  int first = 0;
#pragma unroll
  for (int step = kUpdateEntries / 2; step > 0; step /= 2)
    if (first + step < table.count && table.entries[first + step].*kFirst <= chunk) first += step;
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

static __global__ void clear_amaxes_kernel(const __grid_constant__ UpdateTable table) {
  const int entry = static_cast<int>(threadIdx.x);
  if (entry < table.count && table.entries[entry].amax != nullptr) *table.entries[entry].amax = 0.0f;
}

inline bool fits_vectors(const UpdateEntry& e) {
  const void* all[] = {e.param, e.m, e.v, e.grad, e.new_param, e.new_m, e.new_v, e.copy};
  return std::all_of(std::begin(all), std::end(all),
                     [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; });
}

template <typename Rule>
void launch(const UpdateTable& table, cudaStream_t stream) {
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

}  // namespace octet::cuda::update
