// A block turns the heads of a few tokens: cosines and sines go through shared memory, once a token, while a thread's
// first elements are in flight; it keeps those of its pairs for all heads it takes. Angles are reduced in float64
// (positions may be large), the functions of the rest are float32.
#include <algorithm>
#include <bit>

#include "kernels/cuda/common/arrivals.cuh"
#include "kernels/cuda/common/column_sums.cuh"
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/pointwise.cuh"
#include "kernels/cuda/position/rope.h"
#include "kernels/cuda/position/turn.cuh"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kHeadsAhead = 2;

// kVec pairs of a head, or as many elements that pass unturned. Neighbouring threads write neighbouring 16 bytes, of
// interleaved pairs too: half a sector written twice costs two.
template <typename T, int kVec, bool kInterleaved>
struct Pairs {
  static constexpr bool kAlone = kInterleaved && kVec == 1;  // one pair, its elements side by side
  Vec<T, kVec> a, b;  // of halves: first and second elements; interleaved: kVec / 2 pairs of each half of the pairs

  // Where part `part` of a head begins, and from a to b.
  __device__ __forceinline__ static int place(int part) { return kAlone ? 2 * part : kVec * part; }
  __device__ __forceinline__ static int second(const RopePlan& p) { return kAlone ? 1 : p.pairs; }
  __device__ __forceinline__ void load(const RopePlan& p, const T* from) {
    a = read<kVec>(from), b = read<kVec>(from + second(p));
  }
  __device__ __forceinline__ void store(const RopePlan& p, T* to) const {
    write<kVec>(to, a), write<kVec>(to + second(p), b);
  }
  // The turns [pairs] of a token that part `part` of its heads takes.
  __device__ __forceinline__ static void load_turns(const RopePlan& p, const float2* turns, int part,
                                                    float2 (&by)[kVec]) {
    constexpr int kRun = kInterleaved && !kAlone ? kVec / 2 : kVec;  // neighbours
    constexpr int kTwo = kRun > 1 ? 2 : 1;                           // turns of a 16-byte access
#pragma unroll
    for (int e = 0; e < kVec; e += kTwo) {
      const float2* from = turns + part * kRun + (e < kRun ? e : p.pairs / 2 + e - kRun);
      const Vec<float, 2 * kTwo> v = read<2 * kTwo>(&from->x);
      by[e] = {v.at[0], v.at[1]}, by[e + kTwo - 1] = {v.at[2 * kTwo - 2], v.at[2 * kTwo - 1]};
    }
  }
  __device__ __forceinline__ void turn_by(const float2 (&by)[kVec]) {
    float v[2][kVec];
    widen(a, v[0]), widen(b, v[1]);
    if constexpr (kInterleaved) {
#pragma unroll
      for (int e = 0; e < 2 * kVec; e += 2) {
        float &first = v[e / kVec][e % kVec], &other = v[(e + 1) / kVec][(e + 1) % kVec];
        const float2 r = rotated(first, other, by[e / 2]);
        first = r.x, other = r.y;
      }
    } else {
      unroll<kVec>([&](int e) {
        const float2 r = rotated(v[0][e], v[1][e], by[e]);
        v[0][e] = r.x, v[1][e] = r.y;
      });
    }
    a = narrow<T>(v[0]), b = narrow<T>(v[1]);
  }
};

// `lanes` threads take a token: some of its kVec pairs, of every slots-th head. kVec divides pairs and dim - 2 pairs,
// so that every access is aligned.
template <typename T, int kVec, bool kInterleaved>
__global__ void __launch_bounds__(kThreads, 4) rope_kernel(const __grid_constant__ RopePlan p, int lanes, const T* x,
                                                           const int32_t* positions, T* y, uint32_t* amaxes) {
  extern __shared__ __align__(16) float2 turns[];  // [tokens of the block, pairs]
  __shared__ uint32_t scratch[32];
  griddep_wait();
  griddep_launch_dependents();
  using Held = Pairs<T, kVec, kInterleaved>;
  const int thread = static_cast<int>(threadIdx.x), tokens = kThreads / lanes, lane = thread % lanes;
  const int work = p.pairs / kVec, width = min(work, lanes), slots = lanes / width, slot = lane / width;
  const int first = static_cast<int>(blockIdx.x) * tokens, token = first + thread / lanes;
  const int64_t row = int64_t{token} * p.heads * p.dim;
  const bool turns_some = token < p.tokens && slot < slots && work > 0;
  int head = slot, part = lane % width;
  const auto place = [&](int h) { return row + h * p.dim + Held::place(part); };
  Held held[kHeadsAhead];
  Amax<T> amax{};
  const auto fetch = [&] {
    unroll<kHeadsAhead>([&](int h) {
      if (head + h * slots < p.heads) held[h].load(p, x + place(head + h * slots));
    });
  };
  if (turns_some) fetch();
  for (int i = thread; i < tokens * p.pairs; i += kThreads) {
    const int of = first + i / p.pairs;
    if (of >= p.tokens) break;
    const float2 t = turn(p.frequencies[i % p.pairs], positions[of]);
    turns[i] = {t.x, p.sign * t.y};
  }
  __syncthreads();
  if (turns_some) {
    const float2* own = turns + thread / lanes * p.pairs;
    for (;;) {
      float2 by[kVec];
      Held::load_turns(p, own, part, by);
      for (;;) {
#pragma unroll
        for (int h = 0; h < kHeadsAhead; ++h) {
          if (head + h * slots >= p.heads) break;
          held[h].turn_by(by);
          amax.see(held[h].a), amax.see(held[h].b);
          if (y != nullptr) held[h].store(p, y + place(head + h * slots));
        }
        head += kHeadsAhead * slots;
        if (head >= p.heads) break;
        fetch();
      }
      head = slot, part += width;
      if (part >= work) break;
      fetch();
    }
  }
  const int rest = (p.dim - 2 * p.pairs) / kVec;
  if (rest > 0 && (x != y || amaxes != nullptr) && token < p.tokens) {  // what passes unturned
    for (int i = lane; i < p.heads * rest; i += lanes) {
      const int64_t at = row + static_cast<int64_t>(i / rest) * p.dim + 2 * p.pairs + i % rest * kVec;
      const Vec<T, kVec> v = read<kVec>(x + at);
      amax.see(v);
      if (y != nullptr) write<kVec>(y + at, v);
    }
  }
  if (amaxes == nullptr) return;
  const uint32_t most = block_max(amax.bits(), scratch);
  if (thread == 0) amaxes[blockIdx.x] = most;
}

// As many threads a token as leave each kHeadsAhead heads, more where tokens are few.
int lanes_of(const RopePlan& p, int work, int sm_count) {
  const auto ceil2 = [](int n) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(n, 1)))); };
  int lanes = std::max(ceil2(work), ceil2(p.heads * work / kHeadsAhead));
  while (lanes < kThreads && int64_t{p.tokens} * lanes < int64_t{4} * sm_count * kThreads) lanes *= 2;
  return std::min(lanes, kThreads);
}

}  // namespace

void launch_rope(DType dtype, const RopePlan& p, const void* x, const int32_t* positions, void* y, float* amax,
                 uint32_t* amaxes, int sm_count, cudaStream_t stream) {
  if (p.tokens == 0 || (y == nullptr && amax == nullptr)) return;
  with_float_type(dtype, [&]<typename T>(T) {
    constexpr int kWide = kVecOf<T>;
    const bool wide = p.pairs % kWide == 0 && p.dim % kWide == 0;
    const auto kernel = p.interleaved ? (wide ? rope_kernel<T, kWide, true> : rope_kernel<T, 1, true>)
                                      : (wide ? rope_kernel<T, kWide, false> : rope_kernel<T, 1, false>);
    const int lanes = lanes_of(p, p.pairs / (wide ? kWide : 1), sm_count), tokens = kThreads / lanes;
    const Grid grid{static_cast<unsigned>((p.tokens + tokens - 1) / tokens), kThreads,
                    static_cast<size_t>(tokens * p.pairs) * sizeof(float2)};
    launch_overlapped(kernel, grid, stream, p, lanes, static_cast<const T*>(x), positions, static_cast<T*>(y),
                      amax != nullptr ? amaxes : nullptr);
    // Blocks are many and short: what each would wait for to count its arrival costs more than this kernel.
    if (amax != nullptr) launch_finish_rows<SumOf>(nullptr, nullptr, 0, 0, stream, {amaxes, grid.blocks.x, amax});
  });
}

}  // namespace octet::cuda
