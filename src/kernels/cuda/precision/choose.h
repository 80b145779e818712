// Which kernels quantize a matrix and how they are launched: pure functions of the shape and of what is wanted, tested
// without a GPU and printed in profiles (to_string).
#pragma once

#include <cstdint>
#include <string>

#include "ir/scale_layout.h"

namespace octet::cuda {

inline constexpr int kRowGroup = 8;      // neighbours that a thread of quantize_per_row_kernel takes at once
inline constexpr int kMaxRowBlocks = 8;  // of a cluster that shares a row
inline constexpr int kStreamThreads = 256, kStreamRuns = 2, kStreamRun = 16;  // elements of a run, runs of a thread
inline constexpr int64_t kQuantizeTile = 128;                                 // rows and columns of a tile

// One scale per row, in one pass: a block, or the blocks of a cluster, per row. The result does not depend on it.
struct PerRowPlan {
  int64_t grid = 0;
  int threads = 0;
  int cluster = 1;
  int held = 4;         // groups of a row that a thread keeps in registers; wider rows are computed a second time
  bool vector = false;  // every group is one access
};
PerRowPlan choose_quantize_per_row(int64_t rows, int64_t cols, bool vector);

struct QuantizeDesc {
  int64_t rows = 0, cols = 0;
  ScaleLayout grouping = ScaleLayout::kTensor;
  bool plain = true, transposed = false;  // codes or scales of the matrix, of the transposed matrix
  bool row_vector = false;                // whether every group of a row is one access
};
enum class QuantizeKernel : uint8_t { kStream, kTiles, kPerRow };
struct QuantizePlan {
  QuantizeKernel kernel = QuantizeKernel::kTiles;
  int64_t grid = 0;    // kStream, kTiles
  int64_t across = 0;  // tiles of a row of tiles
  PerRowPlan per_row;  // kPerRow: the plain codes; transposed ones are made by tiles after the columns' amaxes
};
QuantizePlan choose_quantize(const QuantizeDesc& desc);
std::string to_string(const QuantizeDesc& desc, const QuantizePlan& plan);

}  // namespace octet::cuda
