// Products with weights of 4 bits, in an order "wgmma_.." of kernels/common/code_order.h, a scale a group along K.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "kernels/cuda/device_facts.h"
#include "kernels/cuda/matmul/launchers.h"

namespace octet::cuda {

inline constexpr int64_t kInt4Rows = 128, kInt4Depth = 128;  // weight rows and K of a tile; N and K are multiples
inline constexpr int kInt4ManyRows = 64;                     // of x a block, from which on it goes through many tiles
// There: sums of 64 rows of x in shared memory, of each of two warp groups, to be stored.
inline constexpr int64_t kInt4StagingBytes = 2 * 64 * (64 + 4) * 4;
inline constexpr int kInt4Splits = 6;  // the most blocks that share K
inline constexpr int kInt4MostStages = 16;

// y [M, N] = x_scale [M] * sum over groups g of K: scale[g, n] * (x [M, g] . (code[n, g] - zero[g, n])) + c + bias,
// sums in float32, rounded once.
struct Int4Product {
  int64_t m = 0, n = 0, k = 0;
  int64_t group = 128;         // 32, 64, 128, or k: one scale a row
  DType dtype = DType::kBF16;  // of x: bf16, or codes e4m3
  const void* x = nullptr;
  const void* codes = nullptr;
  const float* scales = nullptr;   // [K / group, N]
  const int8_t* zeros = nullptr;   // [K / group, N], -8..8; null: none
  const float* x_scale = nullptr;  // [M] or [1]; null: none
  bool x_scale_rows = false;
  bool weights_ready = false;  // as Gemv's
  const void* c = nullptr;
  const void* bias = nullptr;
  DType bias_dtype = DType::kF32, out_dtype = DType::kBF16;
  GemvPart parts[kGemvParts];
  int part_count = 1;
  // Grouped: codes [experts N, K], scales and zeros [K / group, experts N], of which expert e's multiply rows
  // [offsets[e], offsets[e + 1]) of x; no c or bias, weights_ready is not read.
  const int32_t* offsets = nullptr;
  int experts = 1;
};

// What a block needs, of rows of x at once.
constexpr int int4_blocks_per_sm(int tokens) { return tokens <= 32 ? 2 : 1; }
constexpr int64_t int4_stage_bytes(int tokens, DType x, int64_t group) {  // x, codes, scales and zeros of a tile
  const int64_t bytes = tokens * kInt4Depth * (x == DType::kE4M3 ? 1 : 2) + kInt4Rows * kInt4Depth / 2;
  return (bytes + kInt4Depth / group * kInt4Rows * 5 + 1023) / 1024 * 1024;
}

constexpr int64_t int4_list_bytes(int experts) { return (experts + 1) * 8; }  // GroupedRows

// Tiles of so many rows of x: grouped, as many as any split of the rows among the experts has.
constexpr int64_t int4_row_tiles(const Int4Product& p, int64_t tokens) {
  const int64_t experts = p.experts < p.m ? p.experts : p.m;
  return experts + (p.m - experts) / tokens;
}

struct Int4Plan {
  int tokens = 16;     // rows of x a block: 16, 32, 64, 128; 8 of bf16; 256 of e4m3 in groups of 128 or more
  int splits = 1;      // split-K: blocks of one cluster
  int stages = 4;      // tiles in shared memory
  int64_t blocks = 1;  // of many rows, for each split
};
std::vector<Int4Plan> candidates(const Int4Product& product, const DeviceFacts& device);
std::string to_string(const Int4Plan& plan);

void launch_int4(const Int4Product& product, const Int4Plan& plan, cudaStream_t stream);

}  // namespace octet::cuda
