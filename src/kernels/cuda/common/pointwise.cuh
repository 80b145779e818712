// One kernel for everything that goes element by element: 16-byte accesses, some of them in flight a thread, a
// scalar tail. What is done with the elements is a body:
//
//   struct Body {
//     template <int kVec> using Held = ...;                                  // what was read of kVec elements
//     template <int kVec> __device__ Held<kVec> load(int64_t i) const;       // elements i .. i + kVec - 1
//     template <int kVec> __device__ void finish(const Held<kVec>&, int64_t i);  // computes and writes them
//     __device__ void begin();                                               // once a thread; may be missing
//     __device__ void end();                                                 // the same, by whole blocks
//   };
//
// Results may alias inputs: a thread reads all it needs of an element before it writes that element.
// Buffers begin at 16-byte boundaries.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
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

// Elements as float32 and back. Pairs of bf16 round in one conversion: one by one they may go to the unit of the
// special functions, which has an eighth of the rate.
template <typename T, int kVec>
__device__ __forceinline__ void widen(const Vec<T, kVec>& v, float (&x)[kVec]) {
  if constexpr (std::is_same_v<T, bf16> && kVec > 1) {
    reinterpret_cast<const Packed<T, kVec>&>(v).unpack(x);
  } else {
    unroll<kVec>([&](int k) { x[k] = to_float(v.at[k]); });
  }
}
template <typename T, int kVec>
__device__ __forceinline__ Vec<T, kVec> narrow(const float (&x)[kVec]) {
  Vec<T, kVec> v;
  if constexpr (std::is_same_v<T, bf16> && kVec > 1) {
    reinterpret_cast<Packed<T, kVec>&>(v) = pack<T>(x);
  } else {
    unroll<kVec>([&](int k) { v.at[k] = from_float<T>(x[k]); });
  }
  return v;
}

template <int kVec, int kUnroll, typename Body>
__global__ void __launch_bounds__(kPointwiseThreads) pointwise_kernel(int64_t count, Body body) {
  griddep_wait();
  griddep_launch_dependents();
  if constexpr (requires { body.begin(); }) body.begin();
  constexpr int64_t kLine = static_cast<int64_t>(kPointwiseThreads) * kVec, kStep = kUnroll * kLine;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kStep + static_cast<int64_t>(threadIdx.x) * kVec;
  typename Body::template Held<kVec> held[kUnroll];
  unroll<kUnroll>([&](int u) {
    const int64_t i = first + u * kLine;
    if (i + kVec <= count) held[u] = body.template load<kVec>(i);
  });
  unroll<kUnroll>([&](int u) {
    const int64_t i = first + u * kLine;
    if (i + kVec <= count) {
      body.template finish<kVec>(held[u], i);
    } else {
      for (int64_t j = i; j < count; ++j) body.template finish<1>(body.template load<1>(j), j);
    }
  });
  if constexpr (requires { body.end(); }) body.end();
}

// kUnroll accesses in flight a thread.
template <int kVec, int kUnroll, typename Body>
void launch_pointwise(int64_t count, const Body& body, cudaStream_t stream) {
  if (count == 0) return;
  constexpr int64_t kBlock = static_cast<int64_t>(kPointwiseThreads) * kVec * kUnroll;
  launch_overlapped(pointwise_kernel<kVec, kUnroll, Body>,
                    {static_cast<unsigned>((count + kBlock - 1) / kBlock), kPointwiseThreads}, stream, count, body);
}

// Persistent CTAs, kBlocks per SM, for bodies whose begin or end is expensive: each takes every gridDim-th run of
// kUnroll lines, and a thread has its next vectors in flight while it works on those it holds.
template <int kVec, int kUnroll, int kBlocks, typename Body>
__global__ void __launch_bounds__(kPointwiseThreads, kBlocks) pointwise_persistent_kernel(int64_t count, Body body) {
  griddep_wait();
  griddep_launch_dependents();
  if constexpr (requires { body.begin(); }) body.begin();
  constexpr int64_t kLine = static_cast<int64_t>(kPointwiseThreads) * kVec, kRun = kUnroll * kLine;
  const int64_t step = gridDim.x * kRun, whole = count / kVec * kVec;
  int64_t first = blockIdx.x * kRun + static_cast<int64_t>(threadIdx.x) * kVec;
  typename Body::template Held<kVec> held[kUnroll], next[kUnroll];
  unroll<kUnroll>([&](int u) {
    if (first + u * kLine < whole) held[u] = body.template load<kVec>(first + u * kLine);
  });
#pragma unroll 1
  for (; first < whole; first += step) {
    unroll<kUnroll>([&](int u) {
      const int64_t i = first + step + u * kLine;
      if (i < whole) next[u] = body.template load<kVec>(i);
    });
    unroll<kUnroll>([&](int u) {
      const int64_t i = first + u * kLine;
      if (i < whole) body.template finish<kVec>(held[u], i);
      held[u] = next[u];
    });
  }
  if (blockIdx.x == 0 && whole + threadIdx.x < count) {
    const int64_t i = whole + threadIdx.x;
    body.template finish<1>(body.template load<1>(i), i);
  }
  if constexpr (requires { body.end(); }) body.end();
}
template <int kVec, int kUnroll, int kBlocks, typename Body>
void launch_pointwise_persistent(int64_t count, const Body& body, int sm_count, cudaStream_t stream) {
  constexpr int64_t kRun = static_cast<int64_t>(kPointwiseThreads) * kVec * kUnroll;
  const auto blocks =
      static_cast<unsigned>(std::clamp<int64_t>((count + kRun - 1) / kRun, 1, int64_t{kBlocks} * sm_count));
  launch_overlapped(pointwise_persistent_kernel<kVec, kUnroll, kBlocks, Body>, {blocks, kPointwiseThreads}, stream,
                    count, body);
}

// i / divisor and i mod divisor for 0 <= i: a multiplication where i < 2^31 (division takes some dozen instructions, in
// 64 bits some hundred). Source: Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994.
struct Divider {
  int64_t divisor;
  uint32_t factor = 0, shift = 0;
  explicit Divider(int64_t d) : divisor(d) {
    while ((int64_t{1} << shift) < d) ++shift;
    if (shift <= 31)
      factor = static_cast<uint32_t>(
          (((uint64_t{1} << shift) - static_cast<uint64_t>(d)) << 32) / static_cast<uint64_t>(d) + 1);
  }
  __device__ __forceinline__ int64_t quotient(int64_t i) const {
    if (i >= int64_t{1} << 31 || shift > 31) return i / divisor;
    const auto n = static_cast<uint32_t>(i);
    return (__umulhi(n, factor) + n) >> shift;
  }
  __device__ __forceinline__ int64_t remainder(int64_t i) const { return i - quotient(i) * divisor; }
};

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
    float v[kVec];
    widen(held, v);
#pragma unroll
    for (float& x : v) x = fn(x);
    write<kVec>(y + i, narrow<Y>(v));
  }
};

}  // namespace octet::cuda
