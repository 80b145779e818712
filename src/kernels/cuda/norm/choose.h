// Which kernel a norm or its gradient takes, and how it is launched: pure functions of the shape and of the device.
// No CUDA here: tests run them without a GPU, profiles print them (to_string). R rows (tokens), C columns (hidden).
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "kernels/cuda/choose.h"

namespace octet::cuda {

inline constexpr int kGroup = 8;        // neighbouring elements of a row that a thread takes at once
inline constexpr int kMaxStages = 8;    // of a ring of rows in shared memory
inline constexpr int kRowsPerTurn = 2;  // that share barriers and reductions in norm_multi_row_persistent_kernel
// norm_warp_persistent_kernel: warps of a block, blocks of an SM. norm_warp_per_row_kernel: warps of a block.
inline constexpr int kPersistentWarps = 4, kPersistentWarpBlocks = 4, kWarpRows = 4;
inline constexpr int kRingThreads = 512;             // of an SM, by the registers of the persistent kernels
inline constexpr int kMaxTeams = 8, kTeamWarps = 8;  // of norm_gradient_teams_kernel: teams of a block, warps of a team
inline constexpr int64_t kMaxTeamCols = 4096;        // up to these columns gradients run by teams

enum class NormKernel : uint8_t {
  kElementwise,         // any C, a block a row, no fusions
  kWarpPerRow,          // C up to 512
  kWarpPersistent,      // C up to 768: each warp has rows and a ring of its own
  kMultiRowPersistent,  // C up to 4096: rows by a dynamic scheduler, several at once
  kRowPersistent,       // wider
  kBlockPerRow,         // too few rows for a persistent kernel
};

struct NormDesc {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::kBF16;  // of x and the addend
  bool adds = false;           // x + addend is normalised
};

struct NormPlan {
  NormKernel kernel = NormKernel::kElementwise;
  int64_t grid = 0;
  int threads = 0;          // of a block
  int groups = 1;           // of kGroup columns a thread holds
  int stages = 0;           // of the ring; 0: none
  int unit_rows = 1;        // rows of a stage
  bool whole_warp = false;  // kWarpPersistent: no thread has groups past the end, and there is no addend
  int64_t shared = 0;       // bytes of dynamic shared memory
};

// Whether a row fits the registers of a block: every kernel but kElementwise, and all fusions, need that.
bool norm_fits_registers(int64_t cols);
std::vector<NormPlan> candidates(const NormDesc& desc, const DeviceFacts& device);
std::string to_string(const NormPlan& plan);

enum class NormGradientKernel : uint8_t {
  kElementwise,    // any C, no fusions
  kTeams,          // C up to kMaxTeamCols: teams of a block have rows, a ring and a barrier of their own
  kRowPersistent,  // wider
};

struct NormGradientPlan {
  NormGradientKernel kernel = NormGradientKernel::kElementwise;
  int blocks = 0;   // each sums up dweight, dbias and column sums of its rows
  int threads = 0;  // of a block
  int groups = 1;   // of kGroup columns a thread holds
  int teams = 1, stages = 0;
  bool shared_weights = false;  // kRowPersistent: float32 weights lie in shared memory
  int64_t shared = 0;           // bytes of dynamic shared memory
};

NormGradientPlan choose_norm_gradient(const NormDesc& desc, const DeviceFacts& device);
std::string to_string(const NormGradientPlan& plan);

}  // namespace octet::cuda
