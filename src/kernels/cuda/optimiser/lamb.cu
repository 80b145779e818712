// LAMB in two walks through memory: 16 bytes a parameter for the norms of parameters and updates, 28 for the updates.
// Squares are summed in float64 in an order fixed by shapes.
#include <cstddef>

#include "kernels/cuda/optimiser/adam.cuh"
#include "kernels/cuda/optimiser/block_sum.cuh"

namespace octet::cuda {
namespace {

using update::kThreads, update::kVec;

struct LambRule {
  static constexpr int kMoments = 2;
  struct Constants : update::AdamConstants {
    float unbiased;
  };

  template <bool kTrust = true>  // false: before it is known
  static __device__ __forceinline__ void make(const UpdateTable& table, const UpdateEntry& e, Constants& to) {
    update::make_adam_constants(table, to, [&](double correction) {
      to.decay = static_cast<float>(e.weight_decay);
      to.unbiased = static_cast<float>(1 / correction);
      if (kTrust) to.step_size = static_cast<float>(static_cast<double>(*table.lr) * static_cast<double>(*e.trust));
    });
  }
  // u = m / (1 - b1^t) / (sqrt(v) / sqrt(1 - b2^t) + eps) + wd p
  static __device__ __forceinline__ float direction(const Constants& k, float p, float g, float& m, float& v) {
    const float ratio = update::refresh_moments(k, g, m, v);
    return fmaf(p, k.decay, k.unbiased * ratio);
  }
  static __device__ __forceinline__ void step(const Constants& k, float& p, float g, float& m, float& v) {
    const float u = direction(k, p, g, m, v);
    p -= k.step_size * u;
  }
};

struct Squares {
  double param = 0, update = 0;
};

template <int kCount, typename G>
__device__ __forceinline__ void add_squares(const UpdateEntry& e, int64_t i, const LambRule::Constants& k,
                                            Squares& sums) {
  update::Run<LambRule, kCount, G> run;
  run.read(e, i);
  unroll<kCount>([&](int j) {
    const double p = run.p[j], u = LambRule::direction(k, run.p[j], run.g[j], run.m[j], run.v[j]);
    sums.param = fma(p, p, sums.param), sums.update = fma(u, u, sums.update);
  });
}

template <typename G>
__device__ __forceinline__ Squares squares_of(const UpdateEntry& e, int64_t begin, const LambRule::Constants& k) {
  const int64_t end = min(begin + kLambPiece, e.count);
  Squares sums;
  int64_t i = begin + threadIdx.x * kVec;
  for (; e.vector && i + kVec <= end; i += kThreads * kVec) add_squares<kVec, G>(e, i, k, sums);
  for (; i < end; i += kThreads * kVec) {
    for (int64_t last = i; last < min(i + kVec, end); ++last) add_squares<1, G>(e, last, k, sums);
  }
  return sums;
}

// A block a piece.
__global__ void __launch_bounds__(kThreads)
    lamb_squares_kernel(const __grid_constant__ UpdateTable table, Squares* partials) {
  __shared__ LambRule::Constants shared;
  __shared__ double scratch[kThreads / 32];
  const auto piece = static_cast<int32_t>(blockIdx.x);
  const UpdateEntry& e = table.entries[update::entry_of<&UpdateEntry::first_piece>(table, piece)];
  if (threadIdx.x < 2) LambRule::make<false>(table, e, shared);
  __syncthreads();
  const int64_t begin = (piece - e.first_piece) * kLambPiece;
  Squares sums = e.grad_bf16 ? squares_of<bf16>(e, begin, shared) : squares_of<float>(e, begin, shared);
  sums.param = block_sum<kThreads>(sums.param, scratch);
  sums.update = block_sum<kThreads>(sums.update, scratch);
  if (threadIdx.x == 0) partials[piece] = sums;
}

// A block an entry; an entry without weight decay has no pieces, and a trust ratio of 1.
__global__ void __launch_bounds__(kThreads)
    lamb_trust_kernel(const __grid_constant__ UpdateTable table, const Squares* partials, float* trust) {
  __shared__ double scratch[kThreads / 32];
  const auto entry = static_cast<int32_t>(blockIdx.x);
  const int32_t end = entry + 1 < table.count ? table.entries[entry + 1].first_piece : table.pieces;
  Squares all;
  for (int32_t i = table.entries[entry].first_piece + static_cast<int32_t>(threadIdx.x); i < end; i += kThreads)
    all.param += partials[i].param, all.update += partials[i].update;
  all.param = block_sum<kThreads>(all.param, scratch);
  all.update = block_sum<kThreads>(all.update, scratch);
  if (threadIdx.x == 0)
    trust[entry] = all.param > 0 && all.update > 0 ? static_cast<float>(sqrt(all.param / all.update)) : 1.0f;
}

}  // namespace

void launch_lamb(UpdateTable table, void* workspace, cudaStream_t stream) {
  auto* trust = static_cast<float*>(workspace);
  auto* partials = reinterpret_cast<Squares*>(static_cast<std::byte*>(workspace) + kLambTrustBytes);
  table.pieces = 0;
  for (int i = 0; i < table.count; ++i) {
    UpdateEntry& e = table.entries[i];
    e.trust = trust + i;
    e.vector = update::fits_vectors(e);
    e.first_piece = table.pieces;
    if (e.weight_decay != 0) table.pieces += static_cast<int32_t>((e.count + kLambPiece - 1) / kLambPiece);
  }
  if (table.pieces > 0)
    lamb_squares_kernel<<<static_cast<unsigned>(table.pieces), kThreads, 0, stream>>>(table, partials);
  lamb_trust_kernel<<<static_cast<unsigned>(table.count), kThreads, 0, stream>>>(table, partials, trust);
  update::launch<LambRule>(table, stream);
}

}  // namespace octet::cuda
