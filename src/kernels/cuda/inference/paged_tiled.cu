// Attention over the paged cache in float32, for every type and head dim. Decode: a few queries a sequence, all heads
// of a key head share one walk over its keys. Prefill: the tiles of dense attention, keys gathered through the block
// table.
//
// A block takes one piece of the context of one (sequence, key head) and kRows rows. Its warps take blocks of 32 keys
// in turn: kLanes lanes read a key, 8 elements each, and the warp keeps an online softmax per row.
#include "kernels/cuda/attention/tiles.cuh"
#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/inference/paged.cuh"

namespace octet::cuda {
namespace {

// --- decode
constexpr int kKeys = kDecodeKeys, kEach = 8, kRows = kDecodeRows;

// The largest score and the denominator over some keys, of one row; a weighted sum of values goes with it.
struct Partial {
  float largest, sum;
};
// Weight of a part in a whole whose largest score is `top`; parts without keys weigh nothing.
__device__ __forceinline__ float part_weight(float largest, float top) {
  return largest == -INFINITY && top == -INFINITY ? 0.0f : exponential(largest - top);
}

// The rows of a decode block: (query, head of the group) pairs of one sequence and key head, kRows of them a block.
struct DecodeRows {
  PagedSequence sequence;
  int kv_head, first_row, count;  // count: rows of the sequence and key head in all

  __device__ static DecodeRows of(const PagedProblem& p, const PagedOperands& x, int rows) {
    const PagedSequence sequence = PagedSequence::of(p, x, static_cast<int>(blockIdx.x));
    const int chunk = static_cast<int>(blockIdx.y) / p.kv_heads;
    const int count = sequence.queries <= kDecodeQueries ? sequence.queries * p.group : 0;
    return {sequence, static_cast<int>(blockIdx.y) % p.kv_heads, chunk * rows, count};
  }
  __device__ bool exists(int r) const { return first_row + r < count; }
  __device__ int query(const PagedProblem& p, int r) const { return (first_row + r) / p.group; }
  __device__ int64_t row(const PagedProblem& p, int r) const {  // of [tokens x heads]
    return static_cast<int64_t>(sequence.begin + query(p, r)) * p.heads + kv_head * p.group + (first_row + r) % p.group;
  }
  // Keys that any of the block's rows sees.
  __device__ int oldest(const PagedProblem& p) const { return sequence.first_key(p, query(p, 0)); }
  __device__ int newest(const PagedProblem& p, int rows) const {
    return sequence.position(query(p, min(rows, count - first_row) - 1)) + 1;
  }
};

// Rows of out [tokens, heads, dim] beyond the last sequence become 0: spread over the first blocks of the sequences.
__device__ __forceinline__ void clear_padding(const PagedProblem& p, const PagedOperands& x) {
  if (blockIdx.y != 0 || blockIdx.z != 0) return;
  const int64_t width = static_cast<int64_t>(p.heads) * p.dim;
  for (int64_t token = x.segments[p.sequences] + static_cast<int>(blockIdx.x); token < p.tokens; token += gridDim.x) {
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) store(x.out, token * width + i, 0.0f);
  }
}

// Joins the warps of a block and writes the result, or the block's piece of it when the context is cut.
template <int kRows, int kDim>
__device__ __forceinline__ void write_rows(const PagedProblem& p, const PagedOperands& x, const DecodeRows& rows,
                                           const float (&sums)[kDecodeWarps][kRows][kDim],
                                           const Partial (&parts)[kDecodeWarps][kRows], int splits, float* piece_sums,
                                           Partial* pieces) {
  const float v_scale = factor(x.v_scale);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kDim; i += 32 * kDecodeWarps) {
    const int r = i / kDim, d = i % kDim;
    if (!rows.exists(r) || d >= p.dim) continue;
    float top = -INFINITY, total = 0, value = 0;
    for (int w = 0; w < kDecodeWarps; ++w) top = fmaxf(top, parts[w][r].largest);
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float weight = part_weight(parts[w][r].largest, top);
      total = fmaf(weight, parts[w][r].sum, total);
      value = fmaf(weight, sums[w][r][d], value);
    }
    const int64_t row = rows.row(p, r);
    if (splits == 1) {
      store(x.out, row * p.dim + d, value / total * v_scale);
    } else {
      const int64_t at = row * splits + static_cast<int>(blockIdx.z);
      piece_sums[at * p.dim + d] = value;
      if (d == 0) pieces[at] = {top, total};
    }
  }
}

// 8 elements from d on of the row that starts at element `row`; zeros beyond dim.
__device__ __forceinline__ void read_piece(const Operand& x, int64_t row, int d, int dim, float (&to)[kEach]) {
  if (dim % kEach == 0) {
    if (d >= dim) return;
    float low[4], high[4];
    load<4>(x, row + d, low);
    load<4>(x, row + d + 4, high);
    unroll<4>([&](int e) { to[e] = low[e], to[e + 4] = high[e]; });
    return;
  }
#pragma unroll 1
  for (int e = 0; e < kEach; ++e) {
    const float value = d + e < dim ? load(x, row + d + e) : 0.0f;
    unroll<kEach>([&](int i) { to[i] = i == e ? value : to[i]; });
  }
}

template <int kLanes>
__global__ void __launch_bounds__(32 * kDecodeWarps)
    paged_decode_kernel(PagedProblem p, PagedOperands x, int splits, float* piece_sums, Partial* pieces) {
  constexpr int kDim = kLanes * kEach;
  __shared__ float warp_sums[kDecodeWarps][kRows][kDim];
  __shared__ Partial warp_parts[kDecodeWarps][kRows];
  griddep_wait();
  griddep_launch_dependents();
  clear_padding(p, x);
  const DecodeRows rows = DecodeRows::of(p, x, kRows);
  if (!rows.exists(0)) return;
  const PagedSequence& sequence = rows.sequence;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int part = lane % kLanes * kEach, sub = lane / kLanes;  // this lane's elements; its key of those read at once

  const float scale = p.scale * factor(x.k_scale);
  float biases[kRows] = {};
  float q[kRows][kEach], sums[kRows][kEach], largest[kRows], denominator[kRows];
  int low[kRows], high[kRows];
  unroll<kRows>([&](int r) {
    largest[r] = -INFINITY, denominator[r] = 0, low[r] = high[r] = 0;
    unroll<kEach>([&](int e) { sums[r][e] = q[r][e] = 0; });
    if (!rows.exists(r)) return;
    low[r] = sequence.first_key(p, rows.query(p, r)), high[r] = sequence.position(rows.query(p, r)) + 1;
    if (p.alibi != 0) biases[r] = alibi_bias(p, static_cast<int>(rows.row(p, r) % p.heads));
    read_piece(x.q, rows.row(p, r) * p.dim, part, p.dim, q[r]);
    unroll<kEach>([&](int e) { q[r][e] *= scale; });
  });
  const int oldest = rows.oldest(p), newest = rows.newest(p, kRows);
  // Pieces are whole blocks of keys.
  const int blocks = (newest - oldest + kKeys - 1) / kKeys, each = (blocks + splits - 1) / splits;
  const int first_block = static_cast<int>(blockIdx.z) * each, end_block = min(first_block + each, blocks);

  for (int block = first_block + warp; block < end_block; block += kDecodeWarps) {
    const int own_key = oldest + block * kKeys + lane;  // this lane's key
    const int own_slot = own_key < newest ? sequence.slot(p, own_key) : -1;
    const float k_factor = own_slot >= 0 ? row_factor(x.k_scales, p, own_slot, rows.kv_head) : 0.0f;
    const float v_factor = own_slot >= 0 ? row_factor(x.v_scales, p, own_slot, rows.kv_head) : 0.0f;
    float scores[kRows];
    unroll<kRows>([&](int r) { scores[r] = -INFINITY; });
#pragma unroll 2
    for (int i = 0; i < kLanes; ++i) {
      // Keys sub kLanes + i: lane sub kLanes + i keeps the score.
      const int slot = __shfl_sync(kWholeWarp, own_slot, sub * kLanes + i);
      float k[kEach] = {};
      if (slot >= 0) read_piece(x.k, (static_cast<int64_t>(slot) * p.kv_heads + rows.kv_head) * p.dim, part, p.dim, k);
      unroll<kRows>([&](int r) {
        float score = 0;
        unroll<kEach>([&](int e) { score = fmaf(q[r][e], k[e], score); });
        score = warp_reduce<Sum, kLanes / 2>(score);
        if (lane % kLanes == i) scores[r] = score;
      });
    }
    unroll<kRows>([&](int r) {
      const bool sees = own_slot >= 0 && own_key >= low[r] && own_key < high[r];
      if (!__any_sync(kWholeWarp, sees)) {
        scores[r] = 0;
        return;
      }
      const float score =
          sees ? fmaf(biases[r], static_cast<float>(own_key - high[r] + 1), scores[r] * k_factor) : -INFINITY;
      const float top = fmaxf(largest[r], warp_reduce<Max>(fmaxf(score, Max::kIdentity)));
      const float shrink = part_weight(largest[r], top);
      scores[r] = sees ? exponential(score - top) : 0.0f;
      denominator[r] = fmaf(denominator[r], shrink, warp_reduce<Sum>(scores[r]));
      largest[r] = top;
      scores[r] *= v_factor;
      unroll<kEach>([&](int e) { sums[r][e] *= shrink; });
    });
#pragma unroll 2
    for (int i = 0; i < kLanes; ++i) {
      const int slot = __shfl_sync(kWholeWarp, own_slot, sub * kLanes + i);
      float v[kEach] = {};
      if (slot >= 0) read_piece(x.v, (static_cast<int64_t>(slot) * p.kv_heads + rows.kv_head) * p.dim, part, p.dim, v);
      unroll<kRows>([&](int r) {
        const float weight = __shfl_sync(kWholeWarp, scores[r], sub * kLanes + i);
        unroll<kEach>([&](int e) { sums[r][e] = fmaf(weight, v[e], sums[r][e]); });
      });
    }
  }
  unroll<kRows>([&](int r) {
    unroll<kEach>([&](int e) {
    // Lanes with the same elements.
#pragma unroll
      for (int lanes = kLanes; lanes < 32; lanes <<= 1) sums[r][e] += __shfl_xor_sync(kWholeWarp, sums[r][e], lanes);
      if (sub == 0) warp_sums[warp][r][part + e] = sums[r][e];
    });
    if (lane == 0) warp_parts[warp][r] = {largest[r], denominator[r]};
  });
  write_rows(p, x, rows, warp_sums, warp_parts, splits, piece_sums, pieces);
}

// A block joins the pieces of one row of a sequence.
__global__ void join_pieces_kernel(PagedProblem p, PagedOperands x, int splits, const float* piece_sums,
                                   const Partial* pieces) {
  __shared__ float weights[kMaxDecodeSplits], scratch[32];
  griddep_wait();
  griddep_launch_dependents();
  const PagedSequence sequence = PagedSequence::of(p, x, static_cast<int>(blockIdx.x));
  if (sequence.queries > kDecodeQueries || static_cast<int>(blockIdx.y) >= sequence.queries * p.heads) return;
  const int64_t row = static_cast<int64_t>(sequence.begin) * p.heads + static_cast<int>(blockIdx.y);
  const int i = static_cast<int>(threadIdx.x);
  const Partial part = i < splits ? pieces[row * splits + i] : Partial{-INFINITY, 0};
  const float top = block_reduce<Max>(fmaxf(part.largest, Max::kIdentity), scratch);
  const float weight = part_weight(part.largest, top);
  const float total = block_reduce<Sum>(weight * part.sum, scratch);
  if (i < splits) weights[i] = weight;
  __syncthreads();
  for (int d = i; d < p.dim; d += static_cast<int>(blockDim.x)) {
    float value = 0;
#pragma unroll 8
    for (int n = 0; n < splits; ++n) value = fmaf(weights[n], piece_sums[(row * splits + n) * p.dim + d], value);
    store(x.out, row * p.dim + d, value / total * factor(x.v_scale));
  }
}

// --- prefill
template <int kDim>
__global__ void __launch_bounds__(kTileThreads, 2) paged_prefill_kernel(PagedProblem p, PagedOperands x) {
  constexpr int kOthers = ForwardTiles<kDim>::kOthers;
  extern __shared__ float4 shared_vectors[];
  float* shared = reinterpret_cast<float*>(shared_vectors);
  __shared__ VisibleRows visible;
  __shared__ PagedTile tile;
  griddep_wait();
  griddep_launch_dependents();
  if (!tile.find(p, x, visible)) return;
  const PagedSequence sequence = tile.sequence;
  const int first_query = tile.first_query, head = static_cast<int>(blockIdx.y), kv_head = head / p.group;
  load_tile<kDim, kOwn>(shared, x.q, p.heads, head, p.dim, [&](int row) {
    return first_query + row < sequence.queries ? sequence.begin + first_query + row : -1;
  });
  // Keys in front of the window may lie in freed blocks: they are not read.
  const auto gather = [&](float* to, const Operand& from, const float* scales, int key) {
    load_tile<kDim, kOthers>(
        to, from, p.kv_heads, kv_head, p.dim,
        [&](int row) {
          const int at = key + row;
          return at >= visible.first && at < visible.last ? sequence.slot(p, at) : -1;
        },
        [&](int slot) { return row_factor(scales, p, slot, kv_head); });
  };
  const float scale = p.scale * factor(x.k_scale);
  ForwardRows<kDim> rows;
  forward_walk<kDim>(
      shared, visible, scale, false, rows, [&](float* to, int key) { gather(to, x.k, x.k_scales, key); },
      [&](float* to, int key) { gather(to, x.v, x.v_scales, key); }, [](int, int) { return 1.0f; },
      p.alibi != 0 ? alibi_bias(p, head) / scale : 0.0f);
  const float v_scale = factor(x.v_scale);
  unroll<kRowsOfThread>([&](int i) { rows.sum[i] /= v_scale; });
  put_results<kDim>(shared, rows);
  store_tile<kDim>(shared, x.out, p.heads, head, p.dim, [&](int row) {
    return first_query + row < sequence.queries ? sequence.begin + first_query + row : -1;
  });
}

}  // namespace

void launch_paged_decode(const PagedProblem& p, const PagedOperands& x, const SplitDecodePlan& plan, void* scratch,
                         cudaStream_t stream) {
  static_assert(sizeof(Partial) == kDecodePartialBytes);
  auto* pieces = static_cast<Partial*>(scratch);
  auto* sums = reinterpret_cast<float*>(pieces + static_cast<int64_t>(p.tokens) * p.heads * plan.splits);
  const auto kernel = plan.lanes == 8    ? paged_decode_kernel<8>
                      : plan.lanes == 16 ? paged_decode_kernel<16>
                                         : paged_decode_kernel<32>;
  const auto dim = [&](size_t i) { return static_cast<unsigned>(plan.grid[i]); };
  launch_overlapped(kernel, {{dim(0), dim(1), dim(2)}, 32 * kDecodeWarps}, stream, p, x, plan.splits, sums, pieces);
  if (plan.splits == 1) return;
  const dim3 rows(dim(0), static_cast<unsigned>(min(kDecodeQueries, p.tokens) * p.heads));
  launch_overlapped(join_pieces_kernel, {rows, kMaxDecodeSplits}, stream, p, x, plan.splits, sums, pieces);
}

void launch_paged_prefill(const PagedProblem& p, const PagedOperands& x, cudaStream_t stream) {
  with_tile_width(p.dim, [&](auto width) {
    constexpr int kDim = decltype(width)::value;
    constexpr size_t kBytes = ForwardTiles<kDim>::kFloats * sizeof(float);
    const dim3 blocks(prefill_tiles(p), static_cast<unsigned>(p.heads));
    launch_overlapped(paged_prefill_kernel<kDim>, {blocks, kTileThreads, kBytes}, stream, p, x);
  });
}

}  // namespace octet::cuda
