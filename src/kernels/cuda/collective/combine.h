// Launcher of the reductions that no library makes as they are defined: of rows gathered from all ranks, in their
// order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace octet::cuda {

// y [count] of rows [ranks, count].
struct Combined {
  const void* rows;
  void* y;
  int64_t count;
};

// kMax: a NaN of any rank goes through, which it does not in NCCL; f32, bf16, f16, f64, i32. kLogSumExp: m + log sum
// exp(x - m) in float64, m the largest; f32.
enum class Combination : uint8_t { kMax, kLogSumExp };
void launch_combine(Combination kind, DType dtype, std::span<const Combined> all, int ranks, cudaStream_t stream);

}  // namespace octet::cuda
