// Launchers of the optimiser's kernels. Nothing here reads device memory on the host: the clip factor, the finite flag,
// the learning rate and the step are read where they are used.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "ir/target_limits.h"

namespace octet::cuda {

// One parameter of `count` elements, float32 but for the gradient. Results may be null, or in the place of their input.
// SGD has no v, and no m without momentum.
struct UpdateEntry {
  const float *param = nullptr, *m = nullptr, *v = nullptr;
  const void* grad = nullptr;
  float *new_param = nullptr, *new_m = nullptr, *new_v = nullptr;
  void* copy = nullptr;       // the refreshed parameter in bf16
  float* amax = nullptr;      // [1], of the refreshed parameter
  const float* lr = nullptr;  // [1]; adam_direction has none
  int64_t count = 0;
  double weight_decay = 0;
  int32_t first_chunk = 0;  // set, like `vector`, by the launchers
  bool grad_bf16 = false;   // else float32
  bool vector = false;      // 16-byte accesses fit
};

inline constexpr int kUpdateEntries = TargetLimits{}.update_params;  // of one launch: a table in its parameters

struct UpdateTable {
  UpdateEntry entries[kUpdateEntries];
  int32_t count = 0, chunks = 0;
  const float *step = nullptr, *clip = nullptr, *finite = nullptr;  // [1] each
  double beta1 = 0, beta2 = 0, eps = 0;                             // beta1: also SGD's momentum
  bool nesterov = false, rate_inside = false;                       // of SGD
};
void launch_adamw(const UpdateTable& table, cudaStream_t stream);
void launch_sgd(const UpdateTable& table, cudaStream_t stream);
void launch_adam_direction(const UpdateTable& table, cudaStream_t stream);  // new_param: the direction

// One gradient of a sum of squares.
struct SquareInput {
  const void* data = nullptr;
  int64_t count = 0;
  int32_t first_piece = 0;  // of the launch
  bool bf16 = false;        // else float32
};

inline constexpr int kSquareInputs = 160;  // of one launch: a table in its parameters
inline constexpr int kSquareBlocksPerSm = 5;
inline constexpr int kSquareBlocks = 132 * kSquareBlocksPerSm;  // of one launch, whatever the device: an H200's 132 SMs
inline constexpr int64_t kSquarePiece = 16 * 1024;

struct SquareTable {
  SquareInput inputs[kSquareInputs];
  int32_t count = 0, pieces = 0;
};
// A sum a block: partials [kSquareBlocks]. Squares are summed in float32 within 64 elements of a thread, in float64
// beyond, in an order fixed by shapes.
void launch_square_partials(const SquareTable& table, double* partials, cudaStream_t stream);
// partials [launches * kSquareBlocks] -> sum [1]
void launch_square_join(const double* partials, int64_t launches, double* sum, cudaStream_t stream);
// Sums of their own: of each input into sums[i] [1]; partials [pieces], an input without elements has one.
inline constexpr int kNormInputs = 2 * kUpdateEntries;  // of one launch
struct NormTable {
  SquareInput inputs[kNormInputs];
  double* sums[kNormInputs];
  int32_t count = 0, pieces = 0;
};
void launch_norms(const NormTable& table, double* partials, cudaStream_t stream);

// rate = lr coefficient sqrt(params) / (clip sqrt(updates) + weight_decay sqrt(params) + eps), lr where either is 0.
struct RatioEntry {
  const double *params = nullptr, *updates = nullptr;  // [1] each
  const float *lr = nullptr, *clip = nullptr;          // [1]; no clip: 1
  float* rate = nullptr;                               // [1]
  double weight_decay = 0;
};
struct RatioTable {
  RatioEntry entries[kUpdateEntries];
  int32_t count = 0;
  double coefficient = 1, eps = 0;
};
void launch_trust_ratios(const RatioTable& table, cudaStream_t stream);

// squares [1] -> [1] each, which may be null. max_norm 0: no clipping.
void launch_clip_factor(const double* squares, double max_norm, float* norm, float* clip, float* finite,
                        cudaStream_t stream);

}  // namespace octet::cuda
