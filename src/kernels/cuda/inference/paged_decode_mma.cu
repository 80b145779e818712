// Decode over the paged cache on tensor cores: queries of bf16, a cache of bf16 or FP8 codes. Bound by reading the
// cache.
//
// A block takes one piece of the context of one (sequence, key head) and 16 rows: (query, head of the group) pairs. Its
// warps take 16 keys in turn, straight from memory into fragments. Elements of the contraction may stand in any order
// as long as both operands agree: lane (g, c) of 8 x 4 reads elements 8 c .. 8 c + 7 of every 32 of key g as one
// access, which are its share of two products; of values it reads elements 8 g .. 8 g + 7 of every 64 of four keys,
// pairs of keys become pairs of a fragment, and column g of product i is element 8 g + i.
#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/inference/paged_decode.cuh"

namespace octet::cuda {
namespace {

constexpr int kRows = 16, kKeys = 16;

// 8 elements as they lie in the cache, and as four pairs of bf16.
template <typename T>
struct Raw {
  using Bits = std::conditional_t<sizeof(T) == 2, uint4, uint2>;
  Bits bits;

  __device__ __forceinline__ void read(const Operand& x, int slot, int64_t row_elements, int64_t at, bool exists) {
    bits = {};
    if (exists && slot >= 0) {
      bits = *reinterpret_cast<const Bits*>(static_cast<const T*>(x.data) + slot * row_elements + at);
    }
  }
  __device__ __forceinline__ void pairs(uint32_t (&to)[4]) const {
    if constexpr (sizeof(T) == 2) {
      to[0] = bits.x, to[1] = bits.y, to[2] = bits.z, to[3] = bits.w;
    } else {
      constexpr auto kFormat = std::is_same_v<T, e4m3> ? __NV_E4M3 : __NV_E5M2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t word = i < 2 ? bits.x : bits.y;
        const auto codes = static_cast<__nv_fp8x2_storage_t>(i % 2 == 0 ? word & 0xffffu : word >> 16);
        const float2 pair = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, kFormat)));
        to[i] = mma::pack(pair.x, pair.y);
      }
    }
  }
};

template <typename T, int kDim>
__global__ void __launch_bounds__(32 * kDecodeWarps)
    paged_decode_mma_kernel(PagedProblem p, PagedOperands x, int splits, float* piece_sums, Partial* pieces) {
  constexpr int kKeyReads = kDim / 32, kValueReads = kDim / 64;
  constexpr float kLog2e = 1.44269504088896341f;
  __shared__ float warp_sums[kDecodeWarps][kRows][kDim];
  __shared__ Partial warp_parts[kDecodeWarps][kRows];
  clear_padding(p, x);
  const DecodeRows rows = DecodeRows::of(p, x, kRows);
  if (!rows.exists(0)) return;
  const PagedSequence& sequence = rows.sequence;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, c = lane % 4;  // rows g and g + 8 of the block
  const int64_t row_elements = static_cast<int64_t>(p.kv_heads) * p.dim,
                head_at = static_cast<int64_t>(rows.kv_head) * p.dim;

  uint32_t q[kKeyReads][2][4] = {};  // of rows g and g + 8
  int low[2] = {}, high[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int r = g + 8 * i;
    if (!rows.exists(r)) continue;
    low[i] = sequence.first_key(p, rows.query(p, r)), high[i] = sequence.position(rows.query(p, r)) + 1;
#pragma unroll
    for (int j = 0; j < kKeyReads; ++j) {
      const int d = 32 * j + 8 * c;
      if (d >= p.dim) continue;
      const uint4 bits =
          *reinterpret_cast<const uint4*>(static_cast<const bf16*>(x.q.data) + rows.row(p, r) * p.dim + d);
      q[j][i][0] = bits.x, q[j][i][1] = bits.y, q[j][i][2] = bits.z, q[j][i][3] = bits.w;
    }
  }
  const int oldest = rows.oldest(p), newest = rows.newest(p, kRows);
  // Pieces are whole blocks of keys.
  const int blocks = (newest - oldest + kKeys - 1) / kKeys, each = (blocks + splits - 1) / splits;
  const int first_block = static_cast<int>(blockIdx.z) * each, end_block = min(first_block + each, blocks);

  const float steps = p.scale * kLog2e;  // scores as powers of two
  float sums[8 * kValueReads][4] = {}, largest[2] = {-INFINITY, -INFINITY}, denominator[2] = {0, 0};
  // Lane l looks up key l % kKeys of a block, one block ahead.
  const auto look_up = [&](int block) {
    const int key = oldest + block * kKeys + lane % kKeys;
    return block < end_block && key < newest ? sequence.slot(p, key) : -1;
  };
  int next_slot = look_up(first_block + warp);
  for (int block = first_block + warp; block < end_block; block += kDecodeWarps) {
    const int first = oldest + block * kKeys, own_slot = next_slot;
    Raw<T> k[2][kKeyReads], v[4][kValueReads];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int slot = __shfl_sync(kWholeWarp, own_slot, 8 * t + g);
#pragma unroll
      for (int j = 0; j < kKeyReads; ++j) {
        const int d = 32 * j + 8 * c;
        k[t][j].read(x.k, slot, row_elements, head_at + d, d < p.dim);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int slot = __shfl_sync(kWholeWarp, own_slot, 2 * c + n % 2 + 8 * (n / 2));
#pragma unroll
      for (int j = 0; j < kValueReads; ++j) {
        const int d = 64 * j + 8 * g;
        v[n][j].read(x.v, slot, row_elements, head_at + d, d < p.dim);
      }
    }
    next_slot = look_up(block + kDecodeWarps);
    const uint32_t exists = __ballot_sync(kWholeWarp, own_slot >= 0);

    float scores[2][4] = {};  // keys 8 t + 2 c and the next, of rows g (elements 0, 1) and g + 8
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int j = 0; j < kKeyReads; ++j) {
        uint32_t b[4];
        k[t][j].pairs(b);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t a[4] = {q[j][0][2 * half], q[j][1][2 * half], q[j][0][2 * half + 1], q[j][1][2 * half + 1]};
          mma::multiply_add(scores[t], a, b[2 * half], b[2 * half + 1]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = largest[i];
#pragma unroll
      for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = 8 * t + 2 * c + e, key = first + at;
          float& score = scores[t][2 * i + e];
          if (key < low[i] || key >= high[i] || (exists >> at & 1) == 0) score = -INFINITY;
          top = fmaxf(top, score);
        }
      }
      top = mma::quad_max(top);
      const float anchor = top == -INFINITY ? 0.0f : top * steps;
      const float shrink = mma::power_of_two(fmaf(largest[i], steps, -anchor));
      largest[i] = top;
      float added = 0;
#pragma unroll
      for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int e = 2 * i; e < 2 * i + 2; ++e) {
          scores[t][e] = mma::power_of_two(fmaf(scores[t][e], steps, -anchor));
          added += scores[t][e];
        }
      }
      denominator[i] = fmaf(denominator[i], shrink, added);
#pragma unroll
      for (int n = 0; n < 8 * kValueReads; ++n) sums[n][2 * i] *= shrink, sums[n][2 * i + 1] *= shrink;
    }

    const uint32_t a[4] = {mma::pack(scores[0][0], scores[0][1]), mma::pack(scores[0][2], scores[0][3]),
                           mma::pack(scores[1][0], scores[1][1]), mma::pack(scores[1][2], scores[1][3])};
#pragma unroll
    for (int j = 0; j < kValueReads; ++j) {
      uint32_t pairs[4][4];
#pragma unroll
      for (int n = 0; n < 4; ++n) v[n][j].pairs(pairs[n]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t select = i % 2 == 0 ? 0x5410 : 0x7632;
        mma::multiply_add(sums[8 * j + i], a, __byte_perm(pairs[0][i / 2], pairs[1][i / 2], select),
                          __byte_perm(pairs[2][i / 2], pairs[3][i / 2], select));
      }
    }
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float total = mma::quad_sum(denominator[i]);
    if (c == 0) warp_parts[warp][g + 8 * i] = {largest[i] * p.scale, total};
#pragma unroll
    for (int n = 0; n < 8 * kValueReads; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) warp_sums[warp][g + 8 * i][n / 8 * 64 + 8 * (2 * c + e) + n % 8] = sums[n][2 * i + e];
    }
  }
  write_rows(p, x, rows, warp_sums, warp_parts, splits, piece_sums, pieces);
}

template <typename T>
void launch(const PagedProblem& p, const PagedOperands& x, int splits, float* sums, Partial* pieces,
            cudaStream_t stream) {
  const auto kernel = p.dim <= 64 ? paged_decode_mma_kernel<T, 64> : paged_decode_mma_kernel<T, 128>;
  kernel<<<decode_grid(p, kRows, splits), 32 * kDecodeWarps, 0, stream>>>(p, x, splits, sums, pieces);
}

}  // namespace

void launch_paged_decode_mma(const PagedProblem& p, const PagedOperands& x, int splits, void* scratch,
                             cudaStream_t stream) {
  auto* pieces = static_cast<Partial*>(scratch);
  auto* sums = reinterpret_cast<float*>(pieces + static_cast<int64_t>(p.tokens) * p.heads * splits);
  switch (x.k.dtype) {
    case DType::kE4M3: launch<e4m3>(p, x, splits, sums, pieces, stream); break;
    case DType::kE5M2: launch<e5m2>(p, x, splits, sums, pieces, stream); break;
    default: launch<bf16>(p, x, splits, sums, pieces, stream);
  }
  if (splits > 1) launch_join_pieces(p, x, splits, sums, pieces, stream);
}

}  // namespace octet::cuda
