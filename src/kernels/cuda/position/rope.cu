// A block turns the heads of one token at a time: cosines and sines go through shared memory, once a token, and are made
// while the first elements are under way; angles are reduced in float64 (positions may be large), the functions of the
// rest are float32.
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/pointwise.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/position/rope.h"
#include "kernels/cuda/position/turn.cuh"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kHeld = 2;  // items a thread has under way
constexpr int kTokensWithAmax = 4;        // of a block: each block's amax is an access to the same word

// kVec pairs: of halves, kVec neighbours in both halves; interleaved, 2 kVec neighbours.
template <typename T, int kVec>
struct Pairs {
  Vec<T, kVec> low, high;

  template <bool kInterleaved>
  __device__ __forceinline__ void turn_by(const float2* turns) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      T& a = kInterleaved ? (2 * e < kVec ? low.at[2 * e % kVec] : high.at[2 * e % kVec]) : low.at[e];
      T& b = kInterleaved ? (2 * e + 1 < kVec ? low.at[(2 * e + 1) % kVec] : high.at[(2 * e + 1) % kVec]) : high.at[e];
      const float2 r = rotated(to_float(a), to_float(b), turns[e]);
      a = from_float<T>(r.x), b = from_float<T>(r.y);
    }
  }
  __device__ __forceinline__ uint32_t amax() const {
    uint32_t most = 0;
#pragma unroll
    for (int e = 0; e < kVec; ++e)
      most = max(most, max(magnitude_bits(to_float(low.at[e])), magnitude_bits(to_float(high.at[e]))));
    return most;
  }
};

// kVec divides pairs and dim - 2 pairs, so that every access is aligned. y and amax may be null, not both.
template <typename T, int kVec, bool kInterleaved>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(RopePlan p, Divider by_work, const T* x, const int32_t* positions, T* y, float* amax) {
  wait_for_previous();
  allow_next();
  extern __shared__ float2 turns[];  // [pairs]
  const int thread = static_cast<int>(threadIdx.x);
  const int work = p.pairs / kVec, rest = (p.dim - 2 * p.pairs) / kVec, items = p.heads * work;
  const int apart = kInterleaved ? kVec : p.pairs;
  uint32_t most = 0;
  for (int token = static_cast<int>(blockIdx.x); token < p.tokens; token += static_cast<int>(gridDim.x)) {
    const int64_t row = static_cast<int64_t>(token) * p.heads * p.dim;
    const auto place = [&](int item) {
      const auto head = static_cast<int>(by_work.quotient(item));
      return row + static_cast<int64_t>(head) * p.dim + (item - head * work) * (kInterleaved ? 2 * kVec : kVec);
    };
    Pairs<T, kVec> held[kHeld];
    const auto load_from = [&](int first) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (first + i * kThreads >= items) continue;
        const T* from = x + place(first + i * kThreads);
        held[i].low = *reinterpret_cast<const Vec<T, kVec>*>(from);
        held[i].high = *reinterpret_cast<const Vec<T, kVec>*>(from + apart);
      }
    };
    load_from(thread);
    const int position = positions[token];
    __syncthreads();
    for (int i = thread; i < p.pairs; i += kThreads) {
      const float2 t = turn(p.frequencies[i], position);
      turns[i] = {t.x, p.sign * t.y};
    }
    __syncthreads();
    for (int first = thread; first < items; first += kHeld * kThreads) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int item = first + i * kThreads;
        if (item >= items) continue;
        const auto head = static_cast<int>(by_work.quotient(item));
        held[i].template turn_by<kInterleaved>(turns + (item - head * work) * kVec);
        if (amax != nullptr) most = max(most, held[i].amax());
        if (y == nullptr) continue;
        T* to = y + place(item);
        *reinterpret_cast<Vec<T, kVec>*>(to) = held[i].low;
        *reinterpret_cast<Vec<T, kVec>*>(to + apart) = held[i].high;
      }
      load_from(first + kHeld * kThreads);
    }
    if (x == y && amax == nullptr) continue;
    for (int i = thread; i < p.heads * rest; i += kThreads) {  // what passes unturned
      const int64_t at = row + static_cast<int64_t>(i / rest) * p.dim + 2 * p.pairs + i % rest * kVec;
      const auto v = *reinterpret_cast<const Vec<T, kVec>*>(x + at);
      if (y != nullptr) *reinterpret_cast<Vec<T, kVec>*>(y + at) = v;
#pragma unroll
      for (int e = 0; e < kVec; ++e) most = max(most, magnitude_bits(to_float(v.at[e])));
    }
  }
  if (amax != nullptr) block_amax(most, amax);
}

}  // namespace

void launch_rope(DType dtype, const RopePlan& p, const void* x, const int32_t* positions, void* y, float* amax,
                 cudaStream_t stream) {
  if (amax != nullptr) cudaMemsetAsync(amax, 0, sizeof(float), stream);
  const int blocks = amax != nullptr ? (p.tokens + kTokensWithAmax - 1) / kTokensWithAmax : p.tokens;
  if (blocks == 0 || (y == nullptr && amax == nullptr)) return;
  with_float_type(dtype, [&]<typename T>(T) {
    constexpr int kWide = kVecOf<T>;
    const Grid grid{static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(p.pairs) * sizeof(float2)};
    const auto launch = [&]<int kVec>(std::integral_constant<int, kVec>) {
      const auto kernel = p.interleaved ? rope_kernel<T, kVec, true> : rope_kernel<T, kVec, false>;
      launch_overlapped(kernel, grid, stream, p, Divider(std::max(p.pairs / kVec, 1)), static_cast<const T*>(x),
                        positions, static_cast<T*>(y), amax);
    };
    if (p.pairs % kWide == 0 && p.dim % kWide == 0) {
      launch(std::integral_constant<int, kWide>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace octet::cuda
