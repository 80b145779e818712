// What tensor-core decoding's kernels and their launcher share: how the work is split, and the pieces of shared items.
#pragma once

#include "kernels/cuda/inference/inference.h"

namespace octet::cuda::decode {

inline constexpr int kUnitShift = 4, kUnitKeys = 1 << kUnitShift;
static_assert(2 * kMaxBlocks * kWarps * 2 <= kDecodeCounters);

// How the work is split, as the kernel gets it besides the problem (choose_decode_mma).
static_assert(kDecodeQueries == 4);
struct Cut {
  int head_shift = 0;   // log2 of head_warps, which divides the key heads; the other factor of kWarps are tiles of keys
  int groups = 1;       // of head_warps key heads
  int rows = 8;         // (query, head of the group) pairs of a chunk
  int window = 0;       // keys a query sees
  uint64_t chunks = 0;  // of a sequence with n queries: bits 16 n - 16 to 16 n - 1

  __host__ __device__ int head_warps() const { return 1 << head_shift; }
  __host__ __device__ int key_shift() const { return kWarpShift - head_shift; }
  __host__ __device__ int key_warps() const { return 1 << key_shift(); }
  __host__ __device__ int chunks_of(int queries) const {  // none where nothing is to be decoded
    if (queries < 1 || queries > kDecodeQueries) return 0;
    return static_cast<int>(chunks >> (16 * (queries - 1)) & 0xffff);
  }
};

// Softmax state of a row over the keys of one warp or block: the largest score as a power of two, and the denominator.
struct Partial {
  float anchor, sum;
};

// Partial results of items that several blocks share: piece 2 b of an item begun before the run of block b, piece
// 2 b + 1 of one begun in it.
struct Pieces {
  Partial* parts;      // [2 blocks, head_warps, rows]
  float* sums;         // [2 blocks, head_warps, rows, dim]
  uint32_t* arrivals;  // [2 blocks, kWarps, 2], 0 before and after the kernel: counts of teams, by the first piece
};

// block_shift: log2 of the size of the cache's blocks.
using Kernel = void (*)(PagedProblem p, PagedOperands x, Cut cut, int block_shift, Pieces pieces);

struct Instance {
  Kernel kernel;
  DecodeKernelFacts facts;
};
// For a head of `dim` elements; `wide`: for more than 8 rows.
Instance instance_bf16(int dim, bool wide);
Instance instance_e4m3(int dim, bool wide);
Instance instance_e5m2(int dim, bool wide);

}  // namespace octet::cuda::decode
