// The KV cache on the device: rows into slots, and attention of new queries over a paged cache.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/operand.h"
#include "kernels/cuda/inference/choose.h"

namespace octet::cuda {

// cache[slots[t]] = rows[t], times *scale unless that is null; slots outside [0, cache_rows) write nowhere. Two tokens
// of one slot: either may win.
void launch_scatter_rows(const Operand& cache, int64_t cache_rows, const Operand& rows, const int32_t* slots,
                         const float* scale, int tokens, int width, cudaStream_t stream);
// codes [cache_rows, groups width] and scale_inv [cache_rows, groups] of slot slots[t] from rows[t], bf16 or float32:
// each group by its own amax. Either may be null.
void launch_scatter_codes(int8_t* codes, float* scale_inv, int64_t cache_rows, const Operand& rows,
                          const int32_t* slots, int tokens, int groups, int width, cudaStream_t stream);
// Rows that are copied as they are, of any type.
void launch_scatter_copy(void* table, int64_t table_rows, const void* rows, const int32_t* slots, int tokens,
                         int64_t row_bytes, cudaStream_t stream);
// Block pairs[p][1] of the cache becomes block pairs[p][0], for `count` pairs; pairs outside the cache copy nothing.
void launch_copy_blocks(void* cache, int64_t block_bytes, int64_t blocks, const int32_t* pairs, int count,
                        cudaStream_t stream);

// q, out [tokens, heads D]; k, v [slots, kv_heads D]; segments i32[S+1]; lengths i32[S]; table i32[S, blocks].
struct PagedOperands {
  Operand q, k, v, out;
  const int32_t *segments = nullptr, *lengths = nullptr, *table = nullptr;
  const float *k_scale = nullptr, *v_scale = nullptr;    // f32[1] each or null: what keys and values are multiplied by
  const float *k_scales = nullptr, *v_scales = nullptr;  // the same of an int8 cache, [slots, kv_heads]
};

inline constexpr int kLargestPagedDim = 256;

// Also clears the rows of out beyond the last sequence.
void launch_paged_decode(const PagedProblem& problem, const PagedOperands& operands, const SplitDecodePlan& plan,
                         void* scratch, cudaStream_t stream);
void launch_paged_prefill(const PagedProblem& problem, const PagedOperands& operands, cudaStream_t stream);
// On tensor cores: q bf16, the cache bf16, FP8 or int8 in blocks of a power of two >= 16, dim up to 256 with heads of
// whole 16 bytes, scale > 0.
inline constexpr int kDecodeCounters = 1 << 14;
DecodeKernelFacts decode_kernel_facts(const PagedProblem& problem, DType cache);
// The choice with these facts and the occupancy of the kernel for this problem.
DecodePlan plan_paged_decode_mma(const PagedProblem& problem, DType cache, const DeviceFacts& device);
// Also clears the rows of out beyond the last sequence.
void launch_paged_decode_mma(const PagedProblem& problem, const PagedOperands& operands, const DecodePlan& plan,
                             void* scratch, cudaStream_t stream);
int64_t prefill_scratch_bytes(const PagedProblem& problem);
void launch_paged_prefill_wgmma(const PagedProblem& problem, const PagedOperands& operands, void* scratch, int sm_count,
                                cudaStream_t stream);

}  // namespace octet::cuda
