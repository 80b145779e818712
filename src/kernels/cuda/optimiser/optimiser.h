// Launchers of the optimiser's kernels. Nothing here reads device memory on the host: the clip factor, the finite flag,
// the learning rate and the step are read where they are used.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace octet::cuda {

// One parameter of `count` elements, float32 but for the gradient. Results may be null, or in the place of their input.
struct AdamwEntry {
  const float *param = nullptr, *m = nullptr, *v = nullptr;
  const void* grad = nullptr;
  float *new_param = nullptr, *new_m = nullptr, *new_v = nullptr;
  void* copy = nullptr;   // the refreshed parameter in bf16
  float* amax = nullptr;  // [1], of the refreshed parameter
  int64_t count = 0;
  double weight_decay = 0;
  int32_t first_chunk = 0;  // this and `vector` are set by launch_adamw
  bool grad_bf16 = false;   // else float32
  bool vector = false;      // 16-byte accesses fit
};

inline constexpr int kAdamwEntries = 32;  // of one launch: a table in its parameters

struct AdamwTable {
  AdamwEntry entries[kAdamwEntries];
  int32_t count = 0, chunks = 0;
  const float *lr = nullptr, *step = nullptr, *clip = nullptr, *finite = nullptr;  // [1] each
  double beta1 = 0, beta2 = 0, eps = 0;
};
void launch_adamw(AdamwTable table, cudaStream_t stream);

// One gradient of a global norm.
struct NormInput {
  const void* data = nullptr;
  int64_t count = 0;
  int32_t first_piece = 0;  // of the launch
  bool bf16 = false;        // else float32
};

inline constexpr int kNormInputs = 160;  // of one launch: a table in its parameters
inline constexpr int kNormBlocks = 660;  // of one launch, whatever the device: 5 for each of an H200's 132 processors
inline constexpr int64_t kNormPiece = 16 * 1024;

// Workspace: a sum and a flag for each block of each launch.
struct NormPartial {
  double squares;
  double finite;  // 1 or 0
};
struct NormTable {
  NormInput inputs[kNormInputs];
  int32_t count = 0, pieces = 0;
};
// Squares are summed in float32 within 64 elements of a thread, in float64 beyond, in an order fixed by shapes.
void launch_norm_partials(const NormTable& table, NormPartial* partials, cudaStream_t stream);
// partials [launches * kNormBlocks]; results may be null. max_norm 0: no clipping.
void launch_norm_finish(const NormPartial* partials, int64_t launches, double max_norm, float* norm, float* clip,
                        float* finite, cudaStream_t stream);

}  // namespace octet::cuda
