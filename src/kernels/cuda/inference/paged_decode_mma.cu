// Decode over the paged cache on tensor cores: queries of bf16, a cache of bf16 or FP8 codes. Bound by reading the
// cache.
//
// A block takes one piece of the context of one (sequence, key head) and 16 rows: (query, head of the group) pairs.
// Each warp takes 16 keys in turn through its own ring of stages in shared memory, so that warps never wait for each
// other.
//
// FP8 codes become f16, exactly, between shared memory and the fragments. Elements of the contraction may stand in any
// order as long as both operands agree: lane (g, c) of 8 x 4 takes elements 8 c .. 8 c + 7 of every 32 of key g, which
// are its share of two products; of values it takes elements 8 g .. 8 g + 7 of every 64 of four keys, pairs of keys
// become pairs of a fragment, and column g of product i is element 8 g + i.
#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/inference/paged_decode.cuh"

namespace octet::cuda {
namespace {

constexpr int kRows = 16, kKeys = 16, kStages = 3;

// A stage: 16 keys, then their values, rows of kDim elements in pieces of 16 bytes, swizzled as in mma.cuh.
template <typename T, int kDim>
struct Stage {
  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(T)), kPieces = kRowBytes / 16;
  static constexpr int kBytes = 2 * kKeys * kRowBytes;

  __device__ static uint32_t offset(int row, int piece) {
    return static_cast<uint32_t>(row * kRowBytes + ((piece ^ (row & (kPieces < 8 ? kPieces - 1 : 7))) << 4));
  }
};

__device__ __forceinline__ uint2 load8(uint32_t address) {
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];\n" : "=r"(value.x), "=r"(value.y) : "r"(address));
  return value;
}
// Two codes in the low half of `codes` as f16.
template <typename T>
__device__ __forceinline__ uint32_t halves(uint32_t codes) {
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes),
                                                      std::is_same_v<T, e4m3> ? __NV_E4M3 : __NV_E5M2);
  return static_cast<uint32_t>(pair.x) | static_cast<uint32_t>(pair.y) << 16;
}
// bf16 as f16; beyond its range the largest number.
__device__ __forceinline__ uint32_t halves_of_bf16(uint32_t pair) {
  const float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000u);
  return mma::pack<f16>(fminf(fmaxf(low, -65504.0f), 65504.0f), fminf(fmaxf(high, -65504.0f), 65504.0f));
}

template <typename T, int kDim>
__global__ void __launch_bounds__(32 * kDecodeWarps)
    paged_decode_mma_kernel(PagedProblem p, PagedOperands x, int splits, float* piece_sums, Partial* pieces) {
  using S = Stage<T, kDim>;
  using Number = std::conditional_t<sizeof(T) == 2, bf16, f16>;  // of the products
  constexpr float kLog2e = 1.44269504088896341f;
  extern __shared__ uint4 shared_pieces[];
  __shared__ Partial warp_parts[kDecodeWarps][kRows];
  clear_padding(p, x);
  const DecodeRows rows = DecodeRows::of(p, x, kRows);
  if (!rows.exists(0)) return;
  const PagedSequence& sequence = rows.sequence;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, c = lane % 4;  // rows g and g + 8 of the block
  const int64_t row_bytes = static_cast<int64_t>(p.kv_heads) * p.dim * static_cast<int64_t>(sizeof(T));
  const int64_t head_bytes = static_cast<int64_t>(rows.kv_head) * p.dim * static_cast<int64_t>(sizeof(T));

  // q[k]: the left operand of product k.
  uint32_t q[kDim / 16][4] = {};
  int low[2] = {}, high[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int r = g + 8 * i;
    if (!rows.exists(r)) continue;
    low[i] = sequence.first_key(p, rows.query(p, r)), high[i] = sequence.position(rows.query(p, r)) + 1;
    const bf16* from = static_cast<const bf16*>(x.q.data) + rows.row(p, r) * p.dim;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int d = sizeof(T) == 2 ? 16 * k + 8 * half + 2 * c : k / 2 * 32 + 8 * c + k % 2 * 4 + 2 * half;
        if (d >= p.dim) continue;
        const uint32_t pair = *reinterpret_cast<const uint32_t*>(from + d);
        q[k][2 * half + i] = sizeof(T) == 2 ? pair : halves_of_bf16(pair);
      }
    }
  }
  const int oldest = rows.oldest(p), newest = rows.newest(p, kRows);
  // Pieces are whole blocks of keys.
  const int blocks = (newest - oldest + kKeys - 1) / kKeys, each = (blocks + splits - 1) / splits;
  const int first_block = static_cast<int>(blockIdx.z) * each, end_block = min(first_block + each, blocks);

  const uint32_t ring = mma::shared_address(shared_pieces) + static_cast<uint32_t>(warp * kStages * S::kBytes);
  // Lane l looks up key l % 16 of a block, one block before it is copied.
  const auto look_up = [&](int block) {
    const int key = oldest + block * kKeys + lane % kKeys;
    return block < end_block && key < newest ? sequence.slot(p, key) : -1;
  };
  const auto copy = [&](int slots, int stage) {
    const int piece = lane % S::kPieces;
    const bool within = piece * 16 < p.dim * static_cast<int>(sizeof(T));
    const uint32_t to = ring + static_cast<uint32_t>(stage * S::kBytes);
#pragma unroll
    for (int n = 0; n < kKeys * S::kPieces / 32; ++n) {
      const int row = lane / S::kPieces + n * (32 / S::kPieces);
      const int slot = __shfl_sync(kWholeWarp, slots, row);
      const bool exists = within && slot >= 0;
      const int64_t at = exists ? slot * row_bytes + head_bytes + piece * 16 : 0;
      mma::copy16_async(to + S::offset(row, piece), static_cast<const char*>(x.k.data) + at, exists);
      mma::copy16_async(to + S::offset(row, piece) + S::kBytes / 2, static_cast<const char*>(x.v.data) + at, exists);
    }
  };

  const float steps = p.scale * kLog2e;  // scores as powers of two
  float sums[kDim / 8][4] = {}, largest[2] = {-INFINITY, -INFINITY}, denominator[2] = {0, 0};
  int ahead = first_block + warp;  // the next block to be copied
  int slots = look_up(ahead);
  const auto copy_next = [&](int stage) {
    if (ahead < end_block) {
      copy(slots, stage);
      ahead += kDecodeWarps;
      slots = look_up(ahead);
    }
    mma::commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) copy_next(stage);
  int stage = 0;
  for (int block = first_block + warp; block < end_block; block += kDecodeWarps) {
    mma::wait_copies<kStages - 2>();
    __syncwarp();
    copy_next((stage + kStages - 1) % kStages);  // into what the step before has read
    const uint32_t keys = ring + static_cast<uint32_t>(stage * S::kBytes), values = keys + S::kBytes / 2;
    stage = (stage + 1) % kStages;

    float scores[2][4] = {};  // keys 8 t + 2 c and the next, of rows g (elements 0, 1) and g + 8
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
        uint32_t b[4];
        mma::load_fragments(keys + S::offset(lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2), b);
        mma::multiply_add(scores[0], q[k], b[0], b[1]);
        mma::multiply_add(scores[1], q[k], b[2], b[3]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kDim / 32; ++j) {
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          const uint2 codes = load8(keys + S::offset(8 * t + g, 2 * j + c / 2) + c % 2 * 8);
          mma::multiply_add<f16>(scores[t], q[2 * j], halves<T>(codes.x), halves<T>(codes.x >> 16));
          mma::multiply_add<f16>(scores[t], q[2 * j + 1], halves<T>(codes.y), halves<T>(codes.y >> 16));
        }
      }
    }
    const int first = oldest + block * kKeys;
    float shrink[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = largest[i];
#pragma unroll
      for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = first + 8 * t + 2 * c + e;
          float& score = scores[t][2 * i + e];
          if (key < low[i] || key >= high[i]) score = -INFINITY;
          top = fmaxf(top, score);
        }
      }
      top = mma::quad_max(top);
      const float anchor = top == -INFINITY ? 0.0f : top * steps;
      shrink[i] = mma::power_of_two(fmaf(largest[i], steps, -anchor));
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
      denominator[i] = fmaf(denominator[i], shrink[i], added);
    }
    if (__any_sync(kWholeWarp, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[n][e] *= shrink[e / 2];
      }
    }
    const uint32_t a[4] = {mma::pack<Number>(scores[0][0], scores[0][1]), mma::pack<Number>(scores[0][2], scores[0][3]),
                           mma::pack<Number>(scores[1][0], scores[1][1]),
                           mma::pack<Number>(scores[1][2], scores[1][3])};
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int n = 0; n < kDim / 8; n += 2) {
        uint32_t b[4];
        mma::load_fragments_transposed(values + S::offset(lane % 16, n + lane / 16), b);
        mma::multiply_add(sums[n], a, b[0], b[1]);
        mma::multiply_add(sums[n + 1], a, b[2], b[3]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kDim / 64; ++j) {
        uint32_t codes[4][2];  // of keys 2 c, 2 c + 1, 2 c + 8, 2 c + 9
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const uint2 eight = load8(values + S::offset(2 * c + n % 2 + n / 2 * 8, 4 * j + g / 2) + g % 2 * 8);
          codes[n][0] = eight.x, codes[n][1] = eight.y;
        }
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
          const uint32_t select = i % 4 == 0 ? 0x5140 : 0x7362;  // elements i and i + 1 of both keys, pair by pair
          const uint32_t near = __byte_perm(codes[0][i / 4], codes[1][i / 4], select);
          const uint32_t far = __byte_perm(codes[2][i / 4], codes[3][i / 4], select);
          mma::multiply_add<f16>(sums[8 * j + i], a, halves<T>(near), halves<T>(far));
          mma::multiply_add<f16>(sums[8 * j + i + 1], a, halves<T>(near >> 16), halves<T>(far >> 16));
        }
      }
    }
    __syncwarp();
  }

  mma::wait_copies<0>();
  __syncthreads();  // the ring becomes the sums of the warps
  auto& warp_sums = *reinterpret_cast<float(*)[kDecodeWarps][kRows][kDim]>(shared_pieces);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float total = mma::quad_sum(denominator[i]);
    if (c == 0) warp_parts[warp][g + 8 * i] = {largest[i] * p.scale, total};
    if (!rows.exists(g + 8 * i)) continue;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int d = sizeof(T) == 2 ? 8 * n + 2 * c + e : n / 8 * 64 + 8 * (2 * c + e) + n % 8;
        warp_sums[warp][g + 8 * i][d] = sums[n][2 * i + e];
      }
    }
  }
  write_rows(p, x, rows, warp_sums, warp_parts, splits, piece_sums, pieces);
}

template <typename T>
void launch(const PagedProblem& p, const PagedOperands& x, int splits, float* sums, Partial* pieces,
            cudaStream_t stream) {
  const auto launch_dim = [&](auto width) {
    constexpr int kDim = decltype(width)::value;
    constexpr size_t kSums = sizeof(float) * kDecodeWarps * kRows * kDim;
    constexpr size_t kBytes = std::max(static_cast<size_t>(kDecodeWarps * kStages * Stage<T, kDim>::kBytes), kSums);
    allow_shared(paged_decode_mma_kernel<T, kDim>, kBytes);
    paged_decode_mma_kernel<T, kDim>
        <<<decode_grid(p, kRows, splits), 32 * kDecodeWarps, kBytes, stream>>>(p, x, splits, sums, pieces);
  };
  if (p.dim <= 64) {
    launch_dim(Width<64>{});
  } else {
    launch_dim(Width<128>{});
  }
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
