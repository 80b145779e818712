// The results of op tensor_stats by number: how well FP8 holds one tensor. docs/numerics.md defines each.
#pragma once

#include <cstdint>

namespace octet {

enum TensorStat : int32_t {
  kStatAmax = 0,      // largest finite |x|
  kStatNotFinite,     // share of elements that are NaN or infinite; they count as 0 below
  kStatBinades,       // powers of two from the smallest non-zero |x| to amax, 0 when x is all zeros
  kStatBlockBinades,  // the same within one 128-block, mean over the blocks that are not all zeros
  // Three ways to quantize, kStatsPerScaling results each: one scale; blocks; blocks of the transpose.
  kStatTensor,
  kStatBlock = kStatTensor + 3,
  kStatBlockT = kStatBlock + 3,
  kTensorStatCount = kStatBlockT + 3
};

// Within each of the three.
inline constexpr int32_t kUnderflow = 0;   // share of non-zero elements whose code is zero
inline constexpr int32_t kSaturation = 1;  // share of non-zero elements whose code is the format's largest
inline constexpr int32_t kNoise = 2;       // error power over signal power, mean over runs of 128

}  // namespace octet
