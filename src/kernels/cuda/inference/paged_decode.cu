// Decode over the paged cache in float32, for every type and head dim: a few queries a sequence, all heads of a key
// head share one walk over its keys.
//
// A block takes one piece of the context of one (sequence, key head) and kRows rows. Its warps take blocks of 32 keys
// in turn: kLanes lanes read a key, 8 elements each, and the warp keeps an online softmax per row.
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/inference/paged_decode.cuh"

namespace octet::cuda {
namespace {

constexpr int kKeys = kDecodeKeys, kEach = 8, kRows = kDecodeRows;

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
      const float score = sees ? fmaf(biases[r], static_cast<float>(own_key - high[r] + 1), scores[r]) : -INFINITY;
      const float top = fmaxf(largest[r], warp_reduce<Max>(fmaxf(score, Max::kIdentity)));
      const float shrink = part_weight(largest[r], top);
      scores[r] = sees ? exponential(score - top) : 0.0f;
      denominator[r] = fmaf(denominator[r], shrink, warp_reduce<Sum>(scores[r]));
      largest[r] = top;
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

}  // namespace octet::cuda
