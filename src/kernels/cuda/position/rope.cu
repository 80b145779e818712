// A thread turns a few pieces of heads; the block computes the cosines and sines of its tokens once, in shared memory,
// while the pieces are on their way. Angles are reduced in float64 (positions may be large), the functions of the rest
// are float32 polynomials.
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/position/rope.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kItems = 2;  // pieces of a thread

// cos and sin of position * frequency: reduced to [-pi/4, pi/4] by quarter turns in float64, then the float32
// polynomials of the CPU's rope.
__device__ float2 turn(double frequency, int position) {
  constexpr double kTwoOverPi = 0.63661977236758134308, kHalfPi = 1.5707963267948966192;
  const double angle = frequency * position;
  const double whole = rint(angle * kTwoOverPi);
  const auto r = static_cast<float>(fma(-whole, kHalfPi, angle));
  const float z = r * r;
  float s = fmaf(0x1.6dbbeep-19f, z, -0x1.a013a2p-13f);
  s = fmaf(s, z, 0x1.11110ep-7f);
  s = fmaf(s, z, -0x1.555556p-3f);
  s = fmaf(s * z, r, r);
  float c = fmaf(0x1.9bd670p-16f, z, -0x1.6c12cep-10f);
  c = fmaf(c, z, 0x1.555554p-5f);
  c = fmaf(c * z, z, fmaf(z, -0.5f, 1.0f));
  const auto quadrant = static_cast<unsigned>(static_cast<long long>(whole)) & 3u;
  const float cosine = (quadrant & 1) != 0 ? s : c, sine = (quadrant & 1) != 0 ? c : s;
  return {((quadrant + 1) & 2) != 0 ? -cosine : cosine, (quadrant & 2) != 0 ? -sine : sine};
}

// How the pieces of a head are counted: kVec pairs each, then kVec elements each of what is not rotated. kVec divides
// pairs and dim, so that every access is aligned.
struct Pieces {
  int rotated, of_head;
  int64_t total;

  Pieces(const RopePlan& p, int vec, bool in_place)
      : rotated(p.pairs / vec),
        of_head(rotated + (in_place ? 0 : (p.dim - 2 * p.pairs) / vec)),
        total(static_cast<int64_t>(p.tokens) * p.heads * of_head) {}
};

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(RopePlan p, Pieces pieces, const T* x, const int32_t* positions, T* y) {
  extern __shared__ float2 turns[];  // [tokens of the block][pairs]
  const int64_t of_token = static_cast<int64_t>(p.heads) * pieces.of_head;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * (kThreads * kItems);
  const int64_t end = min(begin + kThreads * kItems, pieces.total);
  const int first_token = static_cast<int>(begin / of_token),
            tokens = static_cast<int>((end - 1) / of_token) - first_token + 1;

  // Element numbers of both halves of a piece; rotated pieces have two, others one.
  int64_t at[kItems];
  int pair[kItems], turn_row[kItems];  // pair < 0: copied
  float a[kItems][kVec], b[kItems][kVec];
  const int apart = p.interleaved ? kVec : p.pairs;
#pragma unroll
  for (int n = 0; n < kItems; ++n) {
    const int64_t i = begin + n * kThreads + static_cast<int>(threadIdx.x);
    at[n] = -1;
    if (i >= end) continue;
    const int64_t head_row = i / pieces.of_head;
    const int piece = static_cast<int>(i - head_row * pieces.of_head);
    turn_row[n] = static_cast<int>(head_row / p.heads) - first_token;
    if (piece < pieces.rotated) {
      pair[n] = piece * kVec;
      at[n] = head_row * p.dim + (p.interleaved ? 2 * pair[n] : pair[n]);
      load<kVec>(x + at[n] + apart, b[n]);
    } else {
      pair[n] = -1;
      at[n] = head_row * p.dim + 2 * p.pairs + (piece - pieces.rotated) * kVec;
    }
    load<kVec>(x + at[n], a[n]);
  }
  for (int i = static_cast<int>(threadIdx.x); i < tokens * p.pairs; i += kThreads) {
    const float2 t = turn(p.frequencies[i % p.pairs], positions[first_token + i / p.pairs]);
    turns[i] = {t.x, p.sign * t.y};
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kItems; ++n) {
    if (at[n] < 0) continue;
    if (pair[n] >= 0) {
      const float2* by = turns + turn_row[n] * p.pairs + pair[n];
      if (p.interleaved) {
        // Neighbours turn: elements 2 e and 2 e + 1 of the two halves together.
#pragma unroll
        for (int e = 0; e < 2 * kVec; e += 2) {
          float& first = e < kVec ? a[n][e % kVec] : b[n][e % kVec];
          float& second = e + 1 < kVec ? a[n][(e + 1) % kVec] : b[n][(e + 1) % kVec];
          const float u = first, v = second, cosine = by[e / 2].x, sine = by[e / 2].y;
          first = fmaf(u, cosine, -(v * sine)), second = fmaf(v, cosine, u * sine);
        }
      } else {
#pragma unroll
        for (int e = 0; e < kVec; ++e) {
          const float u = a[n][e], v = b[n][e];
          a[n][e] = fmaf(u, by[e].x, -(v * by[e].y)), b[n][e] = fmaf(v, by[e].x, u * by[e].y);
        }
      }
      store<kVec>(y + at[n] + apart, b[n]);
    }
    store<kVec>(y + at[n], a[n]);
  }
}

}  // namespace

void launch_rope(DType dtype, const RopePlan& p, const void* x, const int32_t* positions, void* y,
                 cudaStream_t stream) {
  with_float_type(dtype, [&]<typename T>(T) {
    const auto launch = [&]<int kVec>(std::integral_constant<int, kVec>) {
      const Pieces pieces(p, kVec, x == y);
      constexpr int64_t kOfBlock = kThreads * kItems;
      const int64_t of_token = static_cast<int64_t>(p.heads) * pieces.of_head;
      const int64_t tokens = kOfBlock / of_token + 2;  // at most, of a block
      rope_kernel<T, kVec><<<static_cast<unsigned>((pieces.total + kOfBlock - 1) / kOfBlock), kThreads,
                             static_cast<size_t>(tokens * p.pairs) * sizeof(float2), stream>>>(
          p, pieces, static_cast<const T*>(x), positions, static_cast<T*>(y));
    };
    if (p.pairs % kVecOf<T> == 0 && p.dim % kVecOf<T> == 0) {
      launch(std::integral_constant<int, kVecOf<T>>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace octet::cuda
