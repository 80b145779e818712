// A block turns the heads of a few tokens: cosines and sines go through shared memory, once a token, and are made while
// the first elements are under way; angles are reduced in float64 (positions may be large), the functions of the rest
// are float32.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/position/rope.h"
#include "kernels/cuda/position/turn.cuh"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kMostTokens = 4;  // of a block

// kVec pairs: of halves, kVec neighbours in both halves; interleaved, 2 kVec neighbours.
template <typename T, int kVec>
struct Pairs {
  Vec<T, kVec> low, high;

  __device__ __forceinline__ void load(const T* from, int apart) {
    low = *reinterpret_cast<const Vec<T, kVec>*>(from);
    high = *reinterpret_cast<const Vec<T, kVec>*>(from + apart);
  }
  __device__ __forceinline__ void store(T* to, int apart) const {
    *reinterpret_cast<Vec<T, kVec>*>(to) = low;
    *reinterpret_cast<Vec<T, kVec>*>(to + apart) = high;
  }
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

// Threads of a block: chunks of kVec pairs, heads, tokens.
// kVec divides pairs and dim - 2 pairs, so that every access is aligned. y and amax may be null, not both.
template <typename T, int kVec, bool kInterleaved>
__global__ void __launch_bounds__(kThreads, 5)
    rope_kernel(RopePlan p, const T* x, const int32_t* positions, T* y, float* amax) {
  wait_for_previous();
  allow_next();
  extern __shared__ float2 turns[];  // [tokens of the block, pairs]
  const int chunk = static_cast<int>(threadIdx.x), head = static_cast<int>(threadIdx.y);
  const int chunks = p.pairs / kVec, rest = (p.dim - 2 * p.pairs) / kVec;
  const int across = static_cast<int>(blockDim.x), down = static_cast<int>(blockDim.y);
  const int first = static_cast<int>(blockIdx.x * blockDim.z), token = first + static_cast<int>(threadIdx.z);
  const int heads = token < p.tokens ? p.heads : 0;
  const int64_t row = static_cast<int64_t>(token) * p.heads * p.dim;
  const auto at = [&](int c, int h) { return row + h * p.dim + c * (kInterleaved ? 2 * kVec : kVec); };
  const int apart = kInterleaved ? kVec : p.pairs;

  Pairs<T, kVec> next;
  if (head < heads && chunk < chunks) next.load(x + at(chunk, head), apart);
  const int thread = chunk + across * (head + down * static_cast<int>(threadIdx.z));
  for (int i = thread; i < p.pairs * static_cast<int>(blockDim.z); i += across * down * static_cast<int>(blockDim.z)) {
    const int of = first + i / p.pairs;
    if (of >= p.tokens) break;
    const float2 t = turn(p.frequencies[i % p.pairs], positions[of]);
    turns[i] = {t.x, p.sign * t.y};
  }
  __syncthreads();

  uint32_t most = 0;
  for (int c = chunk; c < chunks; c += across) {
    const float2* by = turns + static_cast<int>(threadIdx.z) * p.pairs + c * kVec;
    for (int h = head; h < heads; h += down) {
      Pairs<T, kVec> pairs = next;
      const bool last = h + down >= heads;
      const int c_next = last ? c + across : c, h_next = last ? head : h + down;
      if (c_next < chunks) next.load(x + at(c_next, h_next), apart);
      pairs.template turn_by<kInterleaved>(by);
      if (amax != nullptr) most = max(most, pairs.amax());
      if (y != nullptr) pairs.store(y + at(c, h), apart);
    }
  }
  if (rest > 0 && (x != y || amax != nullptr)) {  // what passes unturned
    for (int h = head; h < heads; h += down) {
      for (int c = chunk; c < rest; c += across) {
        const int64_t i = row + h * p.dim + 2 * p.pairs + c * kVec;
        const auto v = *reinterpret_cast<const Vec<T, kVec>*>(x + i);
        if (y != nullptr) *reinterpret_cast<Vec<T, kVec>*>(y + i) = v;
#pragma unroll
        for (int e = 0; e < kVec; ++e) most = max(most, magnitude_bits(to_float(v.at[e])));
      }
    }
  }
  if (amax == nullptr) return;
  __shared__ uint32_t largest;
  if (thread == 0) largest = 0;
  __syncthreads();
  const unsigned lanes = __activemask();  // a last warp may be short
  const uint32_t of_warp = __reduce_max_sync(lanes, most);
  if (thread % 32 == __ffs(static_cast<int>(lanes)) - 1) atomicMax(&largest, of_warp);
  __syncthreads();
  if (thread == 0) atomicMax(reinterpret_cast<uint32_t*>(amax), largest);
}

}  // namespace

void launch_rope(DType dtype, const RopePlan& p, const void* x, const int32_t* positions, void* y, float* amax,
                 cudaStream_t stream) {
  if (amax != nullptr) cudaMemsetAsync(amax, 0, sizeof(float), stream);
  if (p.tokens == 0 || (y == nullptr && amax == nullptr)) return;
  with_float_type(dtype, [&]<typename T>(T) {
    const auto launch = [&]<int kVec>(std::integral_constant<int, kVec>) {
      const int across = std::clamp(p.pairs / kVec, 1, 32), of_token = kThreads / across;
      const int down = std::min(p.heads, std::max(of_token / kMostTokens, 1));
      const int tokens = std::clamp(of_token / down, 1, kMostTokens);
      const Grid grid{static_cast<unsigned>((p.tokens + tokens - 1) / tokens),
                      {static_cast<unsigned>(across), static_cast<unsigned>(down), static_cast<unsigned>(tokens)},
                      static_cast<size_t>(p.pairs * tokens) * sizeof(float2)};
      const auto kernel = p.interleaved ? rope_kernel<T, kVec, true> : rope_kernel<T, kVec, false>;
      launch_overlapped(kernel, grid, stream, p, static_cast<const T*>(x), positions, static_cast<T*>(y), amax);
    };
    constexpr int kWide = kVecOf<T>;
    if (p.pairs % kWide == 0 && p.dim % kWide == 0) {
      launch(std::integral_constant<int, kWide>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace octet::cuda
