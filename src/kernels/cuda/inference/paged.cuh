// Sequences of a paged cache as kernels see them.
#pragma once

#include "kernels/common/alibi.h"
#include "kernels/cuda/attention/tiles.cuh"
#include "kernels/cuda/inference/inference.h"

namespace octet::cuda {

// A factor that may be absent.
__device__ __forceinline__ float factor(const float* scale) { return scale != nullptr ? *scale : 1.0f; }

// The factor of a slot and key head of an int8 cache; 1 of others.
__device__ __forceinline__ float row_factor(const float* scales, const PagedProblem& p, int64_t slot, int kv_head) {
  return scales != nullptr ? scales[slot * p.kv_heads + kv_head] : 1.0f;
}

// Added to a scaled score of `head` for each token of key position minus query position.
__device__ __forceinline__ float alibi_bias(const PagedProblem& p, int head) {
  return static_cast<float>(p.alibi_scale) *
         exp2f(-static_cast<float>(alibi_exponent(p.first_head + head, p.all_heads, p.alibi)));
}

struct PagedSequence {
  int begin, queries, length;  // first query token; keys including the queries' own
  const int32_t* table;

  __device__ static PagedSequence of(const PagedProblem& p, const PagedOperands& x, int s) {
    const int begin = min(max(x.segments[s], 0), p.tokens), end = min(x.segments[s + 1], p.tokens);
    return {begin, max(end - begin, 0), min(x.lengths[s], p.blocks * p.block_size),
            x.table + static_cast<int64_t>(s) * p.blocks};
  }
  // The position of query i among the keys, and the first key it sees.
  __device__ int position(int i) const { return length - queries + i; }
  __device__ int first_key(const PagedProblem& p, int i) const {
    return p.window > 0 ? max(0, position(i) - p.window + 1) : 0;
  }
  // Where a position lies in the cache; -1 where the table has no such slot.
  __device__ int slot(const PagedProblem& p, int key) const {
    const int64_t at = static_cast<int64_t>(table[key / p.block_size]) * p.block_size + key % p.block_size;
    return at >= 0 && at < p.slots ? static_cast<int>(at) : -1;
  }
};

// Block b of the grid takes tile b of the tiles of kOwn queries of all prefilled sequences, one after the other. A warp
// looks for it.
__device__ __forceinline__ bool find_tile(const PagedProblem& p, const PagedOperands& x, int block, int& sequence,
                                          int& first_query) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int base = 0; base < p.sequences; base += 32) {
    const int s = base + lane, queries = s < p.sequences ? x.segments[s + 1] - x.segments[s] : 0;
    const int tiles = queries > kDecodeQueries ? (queries + kOwn - 1) / kOwn : 0;
    int until = tiles;  // tiles up to and with this lane's sequence
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes <<= 1) {
      const int before = __shfl_up_sync(kWholeWarp, until, lanes);
      if (lane >= lanes) until += before;
    }
    const unsigned beyond = __ballot_sync(kWholeWarp, until > block);
    if (beyond != 0) {
      const int owner = __ffs(static_cast<int>(beyond)) - 1;
      const int tile = block - __shfl_sync(kWholeWarp, until - tiles, owner);
      sequence = base + owner;
      // The last queries see most keys: they start first.
      first_query = (__shfl_sync(kWholeWarp, tiles, owner) - 1 - tile) * kOwn;
      return true;
    }
    block -= __shfl_sync(kWholeWarp, until, 31);
  }
  return false;
}

// The kOwn queries of a prefill block, found by its first warp; lives in shared memory.
struct PagedTile {
  PagedSequence sequence;
  int first_query;
  bool exists;

  // Also which positions the queries see. False where the grid has more blocks than there are tiles.
  __device__ bool find(const PagedProblem& p, const PagedOperands& x, VisibleRows& visible) {
    const int i = static_cast<int>(threadIdx.x);
    if (i < 32) {
      int s = 0, query = 0;
      const bool found = find_tile(p, x, static_cast<int>(blockIdx.x), s, query);
      if (i == 0) {
        exists = found, first_query = query;
        if (found) sequence = PagedSequence::of(p, x, s);
        visible.first = p.blocks * p.block_size, visible.last = 0;
      }
    }
    __syncthreads();
    if (!exists) return false;
    if (i < kOwn) {
      int low = 0, high = 0;
      if (first_query + i < sequence.queries) {
        low = sequence.first_key(p, first_query + i), high = sequence.position(first_query + i) + 1;
        if (low < high) {
          atomicMin(&visible.first, low);
          atomicMax(&visible.last, high);
        }
      }
      visible.low[i] = low, visible.high[i] = high;
    }
    __syncthreads();
    return true;
  }
};

// Tiles of kOwn queries there can be.
inline unsigned prefill_tiles(const PagedProblem& p) {
  return static_cast<unsigned>((p.tokens + kOwn - 1) / kOwn + min(p.sequences, p.tokens / (kDecodeQueries + 1)));
}

}  // namespace octet::cuda
