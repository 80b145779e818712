// From logits to tokens on the device: plain types, no IR.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/common/operand.h"

namespace octet::cuda {

// out[t] = from[t] >= 0 ? sampled[from[t]] : ids[t]; out may be ids. A `from` beyond `sequences` leaves the id.
void launch_select_token_ids(const int32_t* ids, const int32_t* sampled, const int32_t* from, int tokens, int sequences,
                             int32_t* out, cudaStream_t stream);

// In place on logits [R, V], f32 or bf16. Entries of rows or tokens out of range are left out, as are such masks.
struct LogitChanges {
  Operand logits;
  int rows = 0, vocab = 0;
  const int32_t* entries = nullptr;  // [E, 2] row, token
  const float* values = nullptr;     // [E, 3] bias, repetition, penalty
  int count = 0;                     // E
  const uint32_t* masks = nullptr;   // [M, V / 32] or null
  const int32_t* mask_rows = nullptr;
  int mask_count = 0;
};
void launch_adjust_logits(const LogitChanges& changes, cudaStream_t stream);

struct SampleCall {
  Operand logits, raw;             // [R, V] f32 or bf16; raw without data: the logits
  const float* params = nullptr;   // [R, 3] temperature, top_p, min_p
  const int32_t* top_k = nullptr;  // [R]
  const int64_t* seeds = nullptr;  // [R, 3] seed, sequence, position
  int32_t* ids = nullptr;          // [R] or null
  float* logprobs = nullptr;       // [R] or null
  int rows = 0, vocab = 0;
  int blocks_per_row = 1;  // a power of 2 up to 8; results do not depend on it
};
void launch_sample(const SampleCall& call, cudaStream_t stream);

struct TopLogprobsCall {
  Operand logits;             // [R, V] f32 or bf16
  float* logprobs = nullptr;  // [R, k] or null
  int32_t* ids = nullptr;     // [R, k] or null
  int rows = 0, vocab = 0, k = 0, blocks_per_row = 1;
};
void launch_top_logprobs(const TopLogprobsCall& call, cudaStream_t stream);

}  // namespace octet::cuda
