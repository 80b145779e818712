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

}  // namespace

CUtensorMap row_tiles(const void* data, DType dtype, int64_t rows, int64_t cols, int tile_rows) {
  const auto bytes = static_cast<uint64_t>(dtype_bytes(dtype));
  const cuuint64_t dims[] = {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<uint64_t>(cols) * bytes};
  const cuuint32_t box[] = {static_cast<uint32_t>(128 / bytes), static_cast<uint32_t>(tile_rows)}, steps[] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encode_tiled()(&map, bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16, 2,
                     const_cast<void*>(data), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, ErrorCode::kUnsupported,
        "no tensor map of [{}, {}] {} in tiles of {} rows: CUDA error {}", rows, cols, dtype_name(dtype), tile_rows,
        static_cast<int>(result));
  return map;
}

}  // namespace octet::cuda
