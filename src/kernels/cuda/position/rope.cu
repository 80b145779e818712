// A block turns the heads of one token at a time: cosines and sines go through shared memory, once a token; angles are
// reduced in float64 (positions may be large), the functions of the rest are float32.
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/position/rope.h"
#include "kernels/cuda/position/turn.cuh"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256;

// A thread takes kVec pairs at a time: of halves, kVec neighbours in both halves; interleaved, 2 kVec neighbours.
// kVec divides pairs and dim - 2 pairs, so that every access is aligned.
template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads) rope_kernel(RopePlan p, const T* x, const int32_t* positions, T* y) {
  wait_for_previous();
  allow_next();
  extern __shared__ float2 turns[];  // [pairs]
  const int work = p.pairs / kVec, rest = (p.dim - 2 * p.pairs) / kVec;
  for (int token = static_cast<int>(blockIdx.x); token < p.tokens; token += static_cast<int>(gridDim.x)) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < p.pairs; i += kThreads) {
      const float2 t = turn(p.frequencies[i], positions[token]);
      turns[i] = {t.x, p.sign * t.y};
    }
    __syncthreads();
    const int64_t row = static_cast<int64_t>(token) * p.heads * p.dim;
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < p.heads * work; i += kThreads) {
      const int head = i / work, pair = i % work * kVec;
      const T* from = x + row + static_cast<int64_t>(head) * p.dim;
      T* to = y + row + static_cast<int64_t>(head) * p.dim;
      if (p.interleaved) {
        float v[2][kVec];
        load<kVec>(from + 2 * pair, v[0]);
        load<kVec>(from + 2 * pair + kVec, v[1]);
#pragma unroll
        for (int e = 0; e < 2 * kVec; e += 2) {
          float &a = v[e / kVec][e % kVec], &b = v[(e + 1) / kVec][(e + 1) % kVec];
          const float2 r = rotated(a, b, turns[pair + e / 2]);
          a = r.x, b = r.y;
        }
        store<kVec>(to + 2 * pair, v[0]);
        store<kVec>(to + 2 * pair + kVec, v[1]);
      } else {
        float a[kVec], b[kVec];
        load<kVec>(from + pair, a);
        load<kVec>(from + p.pairs + pair, b);
#pragma unroll
        for (int e = 0; e < kVec; ++e) {
          const float2 r = rotated(a[e], b[e], turns[pair + e]);
          a[e] = r.x, b[e] = r.y;
        }
        store<kVec>(to + pair, a);
        store<kVec>(to + p.pairs + pair, b);
      }
    }
    if (x == y) continue;
    for (int i = static_cast<int>(threadIdx.x); i < p.heads * rest; i += kThreads) {
      const int64_t at = row + static_cast<int64_t>(i / rest) * p.dim + 2 * p.pairs + i % rest * kVec;
      *reinterpret_cast<Vec<T, kVec>*>(y + at) = *reinterpret_cast<const Vec<T, kVec>*>(x + at);
    }
  }
}

}  // namespace

void launch_rope(DType dtype, const RopePlan& p, const void* x, const int32_t* positions, void* y,
                 cudaStream_t stream) {
  with_float_type(dtype, [&]<typename T>(T) {
    constexpr int kWide = kVecOf<T>;
    const bool wide = p.pairs % kWide == 0 && p.dim % kWide == 0;
    const auto kernel = wide ? rope_kernel<T, kWide> : rope_kernel<T, 1>;
    const Grid grid{static_cast<unsigned>(p.tokens), kThreads, static_cast<size_t>(p.pairs) * sizeof(float2)};
    launch_overlapped(kernel, grid, stream, p, static_cast<const T*>(x), positions, static_cast<T*>(y));
  });
}

}  // namespace octet::cuda
