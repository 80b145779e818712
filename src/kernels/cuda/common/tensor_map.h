// Tensor maps: what TMA knows of a matrix in device memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/dtype.h"

namespace octet::cuda {

// Of a row-major matrix [rows, cols] of codes or 16-bit numbers, whose rows are whole 16-byte pieces: tiles of
// `tile_rows` rows, at most 256, of 128 bytes, in shared memory as rows of 128 bytes with the hardware's 128-byte
// swizzle. Elements that do not exist become zeros. Throws kUnsupported where the driver refuses.
CUtensorMap row_tiles(const void* data, DType dtype, int64_t rows, int64_t cols, int tile_rows);
// The same of `groups` matrices behind each other, float32 ones too: a tile ends with its group's rows.
CUtensorMap group_tiles(const void* data, DType dtype, int64_t groups, int64_t rows, int64_t cols, int tile_rows);

}  // namespace octet::cuda
