// What tensor-core decoding's kernels and their launcher share: how work is cut, and the pieces of shared items.
#pragma once

#include "kernels/cuda/inference/inference.h"

namespace octet::cuda::decode {

inline constexpr int kUnitKeys = 16, kWarps = 4, kThreads = 32 * kWarps;

// What a kernel knows of the cut beside the problem.
struct Cut {
  int head_shift = 0;  // log2 of head_warps; the other factor of kWarps are tiles of keys
  int groups = 1;      // of head_warps key heads
  int rows = 8;        // (query, head of the group) pairs of a chunk

  __host__ __device__ int head_warps() const { return 1 << head_shift; }
  __host__ __device__ int key_warps() const { return kWarps >> head_shift; }
};

// An item that begins in a block's run and ends in another's; the pieces are the second piece of the block and the
// first of those behind it, up to `last`.
struct SharedItem {
  int exists, begin, chunk, group, rows, last;
};

// What one warp or block has seen of a row's keys: the largest score as a power of two, and the denominator over it.
struct Partial {
  float anchor, sum;
};

struct Pieces {
  SharedItem* items;  // [blocks]
  Partial* parts;     // [blocks, 2, head_warps, rows]: of an item begun before the run, of one begun in it
  float* sums;        // [blocks, 2, head_warps, rows, dim]
};

// block_shift: log2 of the size of the cache's blocks.
using Kernel = void (*)(PagedProblem p, PagedOperands x, Cut cut, int block_shift, Pieces pieces);

struct Instance {
  Kernel kernel;
  int rows, dim, ring_bytes;  // the most rows of a chunk; elements of a head, padded
};
// For a head of `dim` elements; `wide`: for more than 8 rows.
Instance instance_bf16(int dim, bool wide);
Instance instance_e4m3(int dim, bool wide);
Instance instance_e5m2(int dim, bool wide);

}  // namespace octet::cuda::decode
