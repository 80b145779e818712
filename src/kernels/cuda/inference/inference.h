// The KV cache on the device: rows into slots, and attention of new queries over a paged cache.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/operand.h"

namespace octet::cuda {

// cache[slots[t]] = rows[t]; slots outside [0, cache_rows) write nowhere. Two tokens of one slot: either may win.
void launch_kv_append(const Operand& cache, int64_t cache_rows, const Operand& rows, const int32_t* slots, int tokens,
                      int width, cudaStream_t stream);

struct PagedProblem {
  int tokens = 0, sequences = 0, heads = 0, kv_heads = 0, dim = 0;
  int window = 0, block_size = 0, blocks = 0, slots = 0;  // blocks: of the table, a sequence; slots: of the cache
  float scale = 1;

  __host__ __device__ int group() const { return heads / kv_heads; }
};

// q, out [tokens, heads D]; k, v [slots, kv_heads D]; segments i32[S+1]; lengths i32[S]; table i32[S, blocks].
struct PagedOperands {
  Operand q, k, v, out;
  const int32_t *segments = nullptr, *lengths = nullptr, *table = nullptr;
};

// Sequences of up to this many queries are decoded (memory-bound: all heads of a key head share one walk over its
// keys, cut over the context); longer ones are prefilled (tiles of 64 queries).
inline constexpr int kDecodeQueries = 4;
inline constexpr int kLargestPagedDim = 256;

// How many pieces decode cuts the context into, and its scratch: sums, maxima and denominators of every piece.
int decode_splits(const PagedProblem& problem, int sm_count);
int64_t decode_scratch_bytes(const PagedProblem& problem, int splits);

// Also clears the rows of out beyond the last sequence.
void launch_paged_decode(const PagedProblem& problem, const PagedOperands& operands, int splits, void* scratch,
                         cudaStream_t stream);
void launch_paged_prefill(const PagedProblem& problem, const PagedOperands& operands, cudaStream_t stream);
// On tensor cores: q bf16, the cache bf16 or FP8, dim up to 128 with rows of whole 16 bytes.
void launch_paged_decode_mma(const PagedProblem& problem, const PagedOperands& operands, int splits, void* scratch,
                             cudaStream_t stream);
void launch_paged_prefill_mma(const PagedProblem& problem, const PagedOperands& operands, cudaStream_t stream);

}  // namespace octet::cuda
