// One kernel for everything that goes element by element: 16-byte accesses, several of them in flight a thread, a
// scalar tail. What is done with the elements is a body:
//
//   struct Body {
//     template <int kVec> using Held = ...;                                  // what was read of kVec elements
//     template <int kVec> __device__ Held<kVec> load(int64_t i) const;       // elements i .. i + kVec - 1
//     template <int kVec> __device__ void finish(const Held<kVec>&, int64_t i);  // computes and writes them
//     __device__ void end();                                                 // once a thread, by whole blocks
//   };
//
// Results may stand in the place of inputs: a thread reads all it needs of an element before it writes that element.
// Buffers begin at 16-byte boundaries.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/reduce.cuh"

namespace octet::cuda {

inline constexpr int kPointwiseThreads = 256;

template <int kCount, typename T>
__device__ __forceinline__ Vec<T, kCount> read(const T* from) {
  return *reinterpret_cast<const Vec<T, kCount>*>(from);
}
template <int kCount, typename T>
__device__ __forceinline__ void write(T* to, const Vec<T, kCount>& v) {
  *reinterpret_cast<Vec<T, kCount>*>(to) = v;
}

template <int kVec, int kUnroll, typename Body>
__global__ void __launch_bounds__(kPointwiseThreads) pointwise_kernel(int64_t count, Body body) {
  constexpr int64_t kStep = static_cast<int64_t>(kPointwiseThreads) * kVec;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kUnroll * kStep + static_cast<int64_t>(threadIdx.x) * kVec;
  typename Body::template Held<kVec> held[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = first + u * kStep;
    if (i + kVec <= count) held[u] = body.template load<kVec>(i);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = first + u * kStep;
    if (i + kVec <= count) {
      body.template finish<kVec>(held[u], i);
    } else {
      for (int64_t j = i; j < count; ++j) body.template finish<1>(body.template load<1>(j), j);
    }
  }
  body.end();
}

template <int kVec, int kUnroll, typename Body>
void launch_pointwise(int64_t count, const Body& body, cudaStream_t stream) {
  if (count == 0) return;
  constexpr int64_t kBlock = static_cast<int64_t>(kPointwiseThreads) * kVec * kUnroll;
  pointwise_kernel<kVec, kUnroll>
      <<<static_cast<unsigned>((count + kBlock - 1) / kBlock), kPointwiseThreads, 0, stream>>>(count, body);
}

// i mod cols; 32-bit arithmetic where it suffices (64-bit division is some hundred instructions).
__device__ __forceinline__ int64_t column_of(int64_t i, int64_t cols) {
  if (i < int64_t{1} << 32) return static_cast<uint32_t>(i) % static_cast<uint32_t>(cols);
  return i % cols;
}

// y = fn(x)
template <typename X, typename Y, typename Fn>
struct Map {
  const X* x;
  Y* y;
  Fn fn;
  template <int kVec>
  using Held = Vec<X, kVec>;
  template <int kVec>
  __device__ __forceinline__ Held<kVec> load(int64_t i) const {
    return read<kVec>(x + i);
  }
  template <int kVec>
  __device__ __forceinline__ void finish(const Held<kVec>& held, int64_t i) {
    Vec<Y, kVec> v;
#pragma unroll
    for (int k = 0; k < kVec; ++k) v.at[k] = from_float<Y>(fn(to_float(held.at[k])));
    write<kVec>(y + i, v);
  }
  __device__ void end() {}
};

}  // namespace octet::cuda
