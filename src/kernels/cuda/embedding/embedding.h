// Launchers of table lookup and its gradient. T tokens, V rows of the table, H columns.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace octet::cuda {

// out[t] = table[ids[t] - first]; an id outside the table gives a row of NaN, outside a part of it zeros. Float types
// of 16 or 32 bits.
struct EmbeddingArgs {
  const int32_t* ids = nullptr;  // [T]
  const void* table = nullptr;   // [V, H] of table_type
  void* out = nullptr;           // [T, H] of out_type
  int64_t tokens = 0, rows = 0, cols = 0;
  int32_t first = 0;
  bool is_part = false;
  DType table_type = DType::kF32, out_type = DType::kF32;
};
void launch_embedding(const EmbeddingArgs& args, cudaStream_t stream);

// dtable[v] = c[v] (or 0) + dy[t] of every t with ids[t] - first = v, added in token order in float32; tokens whose id
// is outside the table count for nothing.
struct EmbeddingGradArgs {
  const int32_t* ids = nullptr;  // [T]
  const void* dy = nullptr;      // [T, H] f32 | bf16
  const float* c = nullptr;      // [V, H], null: 0; may be dtable
  float* dtable = nullptr;       // [V, H]
  int32_t* workspace = nullptr;  // embedding_grad_workspace() bytes
  int64_t tokens = 0, rows = 0, cols = 0;
  int32_t first = 0;
  DType dy_type = DType::kF32;
};
void launch_embedding_grad(const EmbeddingGradArgs& args, cudaStream_t stream);
int64_t embedding_grad_workspace(int64_t tokens, int64_t rows);

}  // namespace octet::cuda
