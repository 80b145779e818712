#include "kernels/cuda/common/tensor_map.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "kernels/cuda/context.h"

namespace octet::cuda {
namespace {

auto encode_tiled() {
  static const auto encode =
      reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(driver_function("cuTensorMapEncodeTiled"));
  return encode;
}

CUtensorMap encode(const void* data, DType dtype, int64_t groups, int64_t rows, int64_t cols, int tile_rows,
                   cuuint32_t rank) {
  const auto bytes = static_cast<uint64_t>(dtype_bytes(dtype));
  const cuuint64_t dims[] = {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows), static_cast<uint64_t>(groups)};
  const cuuint64_t strides[] = {dims[0] * bytes, dims[0] * dims[1] * bytes};
  const cuuint32_t box[] = {static_cast<uint32_t>(128 / bytes), static_cast<uint32_t>(tile_rows), 1};
  const cuuint32_t steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode_tiled()(&map,
                     bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                     : bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                  : CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                     rank, const_cast<void*>(data), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, ErrorCode::kUnsupported,
        "no tensor map of {} x [{}, {}] {} in tiles of {} rows: CUDA error {}", groups, rows, cols, dtype_name(dtype),
        tile_rows, static_cast<int>(result));
  return map;
}

}  // namespace

CUtensorMap row_tiles(const void* data, DType dtype, int64_t rows, int64_t cols, int tile_rows) {
  return encode(data, dtype, 1, rows, cols, tile_rows, 2);
}

CUtensorMap group_tiles(const void* data, DType dtype, int64_t groups, int64_t rows, int64_t cols, int tile_rows) {
  return encode(data, dtype, groups, rows, cols, tile_rows, 3);
}

}  // namespace octet::cuda
