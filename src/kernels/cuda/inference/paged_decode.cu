// Decode over the paged cache: a few queries a sequence, bound by reading keys and values once.
//
// A block takes one piece of the context of one (sequence, key head) and kRows rows: (query, head of the group) pairs,
// which share the keys. Its warps take blocks of 32 keys in turn: kLanes lanes read a key, 8 elements each, and the
// warp keeps an online softmax per row. Warps, then pieces, are joined in order: the same bits every run.
#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/inference/paged.cuh"

namespace octet::cuda {
namespace {

constexpr int kWarps = 4, kKeys = 32, kEach = 8;

// The largest score, its denominator and weighted sum of values over some keys, of one row.
struct Partial {
  float largest, sum;
};
// Weight of a part in a whole whose largest score is `top`; parts without keys weigh nothing.
__device__ __forceinline__ float part_weight(float largest, float top) {
  return largest == -INFINITY && top == -INFINITY ? 0.0f : exponential(largest - top);
}

// 8 elements of a row of keys or values, from d on; zeros beyond dim.
template <typename T>
struct WholePieces {  // dim is a multiple of 8
  static constexpr int kUnroll = 4;
  const T* data;
  __device__ explicit WholePieces(const Operand& x) : data(static_cast<const T*>(x.data)) {}
  __device__ __forceinline__ void read(int64_t row, int d, int dim, float (&to)[kEach]) const {
    if (d < dim) load<kEach>(data + row + d, to);
  }
};
struct AnyPieces {
  static constexpr int kUnroll = 1;
  Operand x;
  __device__ explicit AnyPieces(const Operand& operand) : x(operand) {}
  __device__ __forceinline__ void read(int64_t row, int d, int dim, float (&to)[kEach]) const {
#pragma unroll 1
    for (int e = 0; e < kEach; ++e) {
      const float value = d + e < dim ? load(x, row + d + e) : 0.0f;
#pragma unroll
      for (int i = 0; i < kEach; ++i) to[i] = i == e ? value : to[i];
    }
  }
};

template <typename Cache, int kLanes, int kRows>
__global__ void __launch_bounds__(32 * kWarps)
    paged_decode_kernel(PagedProblem p, PagedOperands x, int splits, float* piece_sums, Partial* pieces) {
  constexpr int kDim = kLanes * kEach, kUnroll = Cache::kUnroll;
  __shared__ float warp_sums[kWarps][kRows][kDim];
  __shared__ Partial warp_parts[kWarps][kRows];
  const int s = static_cast<int>(blockIdx.x), piece = static_cast<int>(blockIdx.z);
  const int kv_head = static_cast<int>(blockIdx.y) % p.kv_heads,
            first_row = static_cast<int>(blockIdx.y) / p.kv_heads * kRows;
  const PagedSequence sequence = PagedSequence::of(p, x, s);
  const int row_count = sequence.queries * p.group();
  if (sequence.queries > kDecodeQueries || first_row >= row_count) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int part = lane % kLanes * kEach, sub = lane / kLanes;  // this lane's elements; its key of kAtOnce
  const Cache keys(x.k);
  const Cache values(x.v);

  // Row r: query (first_row + r) / group, head of the group (first_row + r) % group.
  float q[kRows][kEach], sums[kRows][kEach], largest[kRows], denominator[kRows];
  int low[kRows], high[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    largest[r] = -INFINITY, denominator[r] = 0, low[r] = high[r] = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) sums[r][e] = q[r][e] = 0;
    if (first_row + r >= row_count) continue;
    const int query = (first_row + r) / p.group(), head = kv_head * p.group() + (first_row + r) % p.group();
    low[r] = sequence.first_key(p, query), high[r] = sequence.position(query) + 1;
    const int64_t row = (static_cast<int64_t>(sequence.begin + query) * p.heads + head) * p.dim;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (part + e < p.dim) q[r][e] = p.scale * load(x.q, row + part + e);
    }
  }
  const int oldest = sequence.first_key(p, first_row / p.group());
  const int newest = sequence.position((min(first_row + kRows, row_count) - 1) / p.group()) + 1;
  // Pieces are whole blocks of 32 keys.
  const int blocks = (newest - oldest + kKeys - 1) / kKeys, each = (blocks + splits - 1) / splits;
  const int first_block = piece * each, end_block = min(first_block + each, blocks);

  for (int block = first_block + warp; block < end_block; block += kWarps) {
    const int own_key = oldest + block * kKeys + lane;  // this lane's key
    const int own_slot = own_key < newest ? sequence.slot(p, own_key) : -1;
    float scores[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) scores[r] = -INFINITY;
#pragma unroll kUnroll
    for (int i = 0; i < kLanes; ++i) {
      // Keys sub kLanes + i: lane sub kLanes + i keeps the score.
      const int slot = __shfl_sync(kWholeWarp, own_slot, sub * kLanes + i);
      float k[kEach] = {};
      if (slot >= 0) keys.read((static_cast<int64_t>(slot) * p.kv_heads + kv_head) * p.dim, part, p.dim, k);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float score = 0;
#pragma unroll
        for (int e = 0; e < kEach; ++e) score = fmaf(q[r][e], k[e], score);
#pragma unroll
        for (int lanes = kLanes / 2; lanes > 0; lanes >>= 1) score += __shfl_xor_sync(kWholeWarp, score, lanes);
        if (lane % kLanes == i) scores[r] = score;
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool sees = own_slot >= 0 && own_key >= low[r] && own_key < high[r];
      const float score = sees ? scores[r] : -INFINITY;
      const float top = fmaxf(largest[r], warp_reduce<Max>(fmaxf(score, Max::kIdentity)));
      const bool any = __any_sync(kWholeWarp, sees);
      if (!any) {
        scores[r] = 0;
        continue;
      }
      const float shrink = part_weight(largest[r], top);
      scores[r] = sees ? exponential(score - top) : 0.0f;
      denominator[r] = fmaf(denominator[r], shrink, warp_reduce<Sum>(scores[r]));
      largest[r] = top;
#pragma unroll
      for (int e = 0; e < kEach; ++e) sums[r][e] *= shrink;
    }
#pragma unroll kUnroll
    for (int i = 0; i < kLanes; ++i) {
      const int slot = __shfl_sync(kWholeWarp, own_slot, sub * kLanes + i);
      float v[kEach] = {};
      if (slot >= 0) values.read((static_cast<int64_t>(slot) * p.kv_heads + kv_head) * p.dim, part, p.dim, v);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float weight = __shfl_sync(kWholeWarp, scores[r], sub * kLanes + i);
#pragma unroll
        for (int e = 0; e < kEach; ++e) sums[r][e] = fmaf(weight, v[e], sums[r][e]);
      }
    }
  }
  // Lanes with the same elements, then warps.
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
#pragma unroll
      for (int lanes = kLanes; lanes < 32; lanes <<= 1) sums[r][e] += __shfl_xor_sync(kWholeWarp, sums[r][e], lanes);
      if (sub == 0) warp_sums[warp][r][part + e] = sums[r][e];
    }
    if (lane == 0) warp_parts[warp][r] = {largest[r], denominator[r]};
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kDim; i += 32 * kWarps) {
    const int r = i / kDim, d = i % kDim;
    if (first_row + r >= row_count || d >= p.dim) continue;
    float top = -INFINITY, total = 0, value = 0;
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, warp_parts[w][r].largest);
    for (int w = 0; w < kWarps; ++w) {
      const float weight = part_weight(warp_parts[w][r].largest, top);
      total = fmaf(weight, warp_parts[w][r].sum, total);
      value = fmaf(weight, warp_sums[w][r][d], value);
    }
    const int query = (first_row + r) / p.group(), head = kv_head * p.group() + (first_row + r) % p.group();
    const int64_t row = static_cast<int64_t>(sequence.begin + query) * p.heads + head;
    if (splits == 1) {
      store(x.out, row * p.dim + d, value / total);
    } else {
      const int64_t at = row * splits + piece;
      piece_sums[at * p.dim + d] = value;
      if (d == 0) pieces[at] = {top, total};
    }
  }
}

// Pieces of a row joined in order: one warp a row.
__global__ void join_pieces_kernel(PagedProblem p, PagedOperands x, int splits, const float* piece_sums,
                                   const Partial* pieces) {
  const int s = static_cast<int>(blockIdx.x);
  const PagedSequence sequence = PagedSequence::of(p, x, s);
  if (sequence.queries > kDecodeQueries) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int r = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) / 32;
  if (r >= sequence.queries * p.heads) return;
  const int64_t row = static_cast<int64_t>(sequence.begin) * p.heads + r;
  float top = -INFINITY, total = 0;
  for (int i = 0; i < splits; ++i) top = fmaxf(top, pieces[row * splits + i].largest);
  for (int i = 0; i < splits; ++i) {
    const Partial part = pieces[row * splits + i];
    total = fmaf(part_weight(part.largest, top), part.sum, total);
  }
  for (int d = lane; d < p.dim; d += 32) {
    float value = 0;
    for (int i = 0; i < splits; ++i) {
      const float weight = part_weight(pieces[row * splits + i].largest, top);
      value = fmaf(weight, piece_sums[(row * splits + i) * p.dim + d], value);
    }
    store(x.out, row * p.dim + d, value / total);
  }
}

__global__ void clear_padding_kernel(PagedProblem p, PagedOperands x) {
  const int token = static_cast<int>(blockIdx.x);
  if (token < x.segments[p.sequences]) return;
  const int64_t width = static_cast<int64_t>(p.heads) * p.dim;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) store(x.out, token * width + i, 0.0f);
}

template <typename Cache, int kLanes>
void launch_rows(const PagedProblem& p, const PagedOperands& x, int splits, float* sums, Partial* pieces,
                 cudaStream_t stream) {
  const auto launch = [&](auto kernel, int rows) {
    const int chunks = (kDecodeQueries * p.group() + rows - 1) / rows;
    const dim3 grid(static_cast<unsigned>(p.sequences), static_cast<unsigned>(p.kv_heads * chunks),
                    static_cast<unsigned>(splits));
    kernel<<<grid, 32 * kWarps, 0, stream>>>(p, x, splits, sums, pieces);
  };
  if constexpr (Cache::kUnroll > 1 && kLanes == 16) {
    if (p.group() % 8 == 0) return launch(paged_decode_kernel<Cache, kLanes, 8>, 8);
  }
  launch(paged_decode_kernel<Cache, kLanes, 4>, 4);
}

template <typename Cache>
void launch_lanes(const PagedProblem& p, const PagedOperands& x, int splits, float* sums, Partial* pieces,
                  cudaStream_t stream) {
  if (p.dim <= 64) {
    launch_rows<Cache, 8>(p, x, splits, sums, pieces, stream);
  } else if (p.dim <= 128) {
    launch_rows<Cache, 16>(p, x, splits, sums, pieces, stream);
  } else {
    launch_rows<Cache, 32>(p, x, splits, sums, pieces, stream);
  }
}

}  // namespace

int decode_splits(const PagedProblem& p, int sm_count) {
  const int blocks = p.sequences * p.kv_heads, context = p.blocks * p.block_size;
  const int wanted = (6 * sm_count + blocks - 1) / blocks;               // some blocks an SM
  const int useful = (context + kKeys * kWarps - 1) / (kKeys * kWarps);  // one block of keys a warp at least
  return max(1, min(min(wanted, useful), 128));
}

int64_t decode_scratch_bytes(const PagedProblem& p, int splits) {
  if (splits == 1) return 0;
  const int64_t rows = static_cast<int64_t>(p.tokens) * p.heads * splits;
  return rows * (static_cast<int64_t>(sizeof(Partial)) + p.dim * static_cast<int64_t>(sizeof(float)));
}

void launch_paged_decode(const PagedProblem& p, const PagedOperands& x, int splits, void* scratch,
                         cudaStream_t stream) {
  auto* pieces = static_cast<Partial*>(scratch);
  auto* sums = reinterpret_cast<float*>(pieces + static_cast<int64_t>(p.tokens) * p.heads * splits);
  if (p.dim % kEach == 0 && x.k.dtype == DType::kBF16) {
    launch_lanes<WholePieces<bf16>>(p, x, splits, sums, pieces, stream);
  } else if (p.dim % kEach == 0 && x.k.dtype == DType::kE4M3) {
    launch_lanes<WholePieces<e4m3>>(p, x, splits, sums, pieces, stream);
  } else {
    launch_lanes<AnyPieces>(p, x, splits, sums, pieces, stream);
  }
  if (splits == 1) return;
  const dim3 grid(static_cast<unsigned>(p.sequences), static_cast<unsigned>((kDecodeQueries * p.heads + 3) / 4));
  join_pieces_kernel<<<grid, 128, 0, stream>>>(p, x, splits, sums, pieces);
}

void launch_clear_padding(const PagedProblem& p, const PagedOperands& x, cudaStream_t stream) {
  clear_padding_kernel<<<static_cast<unsigned>(p.tokens), 128, 0, stream>>>(p, x);
}

}  // namespace octet::cuda
