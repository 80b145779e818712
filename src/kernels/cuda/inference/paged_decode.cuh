// Split-K over a context: joins the warps of a decode block, then the blocks that share a row, both in order.
#pragma once

#include "kernels/cuda/common/operand.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/inference/paged.cuh"

namespace octet::cuda {

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

}  // namespace octet::cuda
