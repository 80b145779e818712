// Launcher of tensor_stats (docs/numerics.md).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/precision/scales.h"

namespace octet::cuda {

struct StatsJob {
  const void* x = nullptr;  // [rows, cols] f32 or bf16
  int64_t rows = 0, cols = 0;
  bool tiles = false;      // blocks of 128x128 instead of 1x128
  ScaleAttrs tensor;       // of the one scale
  ScaleAttrs block;        // e4m3, powers of two
  float* stats = nullptr;  // [kTensorStatCount], ir/tensor_stats.h
};

int64_t tensor_stats_workspace(int64_t rows, int64_t cols);  // bytes
void launch_tensor_stats(const StatsJob& job, DType type, DType format, void* workspace, cudaStream_t stream);

}  // namespace octet::cuda
