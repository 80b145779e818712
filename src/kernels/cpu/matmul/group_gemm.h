// Products of int8 rows by weights of 4 bits with a scale a group, codes in order rows16 (kernels/common/code_order.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/matmul/gemm.h"

namespace octet::cpu {

struct GroupedWeights {
  const void* codes = nullptr;                // i4 [N, K] in order rows16: N a multiple of 16, K and `group` of 8
  int64_t outputs = 0, depth = 0, group = 0;  // `group` divides K
  const float* scales = nullptr;              // [K / group, N], rows `stride` apart
  const int8_t* zero = nullptr;               // the same, or null
  int64_t stride = outputs;
};

// out [M, N] = x [M, K] times the weights' values. The sum of a group is an integer, exact; those of groups are added
// in order in float32: a row's results do not depend on how many there are. Scratch holds as many rows of x as go in at
// once, at least 8: group_gemm_scratch_bytes(8, ...).
void group_gemm(const int8_t* x, int64_t rows, const GroupedWeights& weights, const GemmOutput& out,
                std::span<std::byte> scratch);
int64_t group_gemm_scratch_bytes(int64_t rows, const GroupedWeights& weights);

}  // namespace octet::cpu
