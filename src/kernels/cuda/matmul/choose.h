// How a product with few rows is split over the device: a pure function of the shape and of the device, tested without
// a GPU and printed in profiles (to_string).
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "kernels/cuda/choose.h"

namespace octet::cuda {

inline constexpr int64_t kGemvRows = 8;                          // M at most
inline constexpr int kGemvTileRows = 16, kGemvChunkBytes = 128;  // weight rows, bytes of K of one step of a warp
inline constexpr int kMinGemvWarps = 4, kMaxGemvWarps = 16, kMaxGemvSplits = 4;

// x [M, K] weights [N, K]^T
struct GemvDesc {
  int64_t n = 0, k = 0;
  DType dtype = DType::kBF16;  // of x and weights
  bool blocks = false;         // scales of 128 x 128 weights
};

struct GemvPlan {
  int64_t grid = 0;  // blocks of tiles * kGemvTileRows weight rows
  int tiles = 1;
  int warps = 8;   // that share a row's K inside a block
  int splits = 1;  // split-K: blocks, one cluster, that share a row's K
};

std::vector<GemvPlan> candidates(const GemvDesc& desc, const DeviceFacts& device);
std::string to_string(const GemvPlan& plan);

// Products of int8 codes with more rows: tiles of pairs of blocks.
inline constexpr int64_t kInt8Columns = 256, kInt8Depth = 128;  // weight rows of a tile, K of a step

struct Int8Desc {
  int64_t m = 0, n = 0, k = 0;
};
struct Int8Plan {
  int tokens = 64;  // rows of x a tile: 64, 128, 192 or 256
  int splits = 1;   // split-K: pairs, one cluster, that share a tile's K; of up to 128 tokens
  int64_t tiles = 0;
  int64_t clusters = 0;  // that go through the tiles
};
std::vector<Int8Plan> candidates(const Int8Desc& desc, const DeviceFacts& device);
std::string to_string(const Int8Plan& plan);

}  // namespace octet::cuda
