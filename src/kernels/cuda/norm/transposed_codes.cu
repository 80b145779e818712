// Codes of the transposed matrix of a norm's result, in tiles of 128 rows by 64 columns: y is made again from x and the
// statistics (or read where it was stored), scaled per tensor or per column of the tile, and turned around in shared
// memory so that whole runs of 128 codes are written.
#include "kernels/cuda/norm/forward.cuh"

namespace octet::cuda {
namespace {

constexpr int kTileRows = 128, kTileCols = 64, kThreads = 256;
constexpr int kPitch = kTileRows / 4 + 1;  // words a column of the tile takes

// Eight threads a row; each thread has four neighbouring rows.
template <typename T, bool kLayer>
__global__ void __launch_bounds__(kThreads) norm_transposed_codes_kernel(const NormForward p) {
  __shared__ uint32_t tile[kTileCols * kPitch];
  __shared__ uint32_t amax[kThreads / 32][kTileCols];
  __shared__ float column_scale[kTileCols];
  const NormQuantize& q = p.quantize;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int local_column = (threadIdx.x & 7) * kGroup, local_row = (threadIdx.x >> 3) * 4;
  const int64_t column = int64_t{blockIdx.x} * kTileCols + local_column;
  const int64_t first_row = int64_t{blockIdx.y} * kTileRows, row_tiles = gridDim.y;
  float v[4][kGroup];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int64_t row = first_row + local_row + r, at = row * p.cols + column;
#pragma unroll
    for (float& value : v[r]) value = 0;
    if (row >= p.rows || column >= p.cols) continue;
    if (p.y != nullptr) {
      load(static_cast<const T*>(p.y) + at, v[r]);
      continue;
    }
    if (p.addend == nullptr) {
      load(static_cast<const T*>(p.x) + at, v[r]);
    } else if (p.sum != nullptr) {
      load(static_cast<const T*>(p.sum) + at, v[r]);
    } else {
      float other[kGroup];
      load(static_cast<const T*>(p.x) + at, v[r]);
      load(static_cast<const T*>(p.addend) + at, other);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) v[r][i] = rounded<T>(v[r][i] + other[i]);
    }
    normalise<kLayer>(p, column, kLayer ? p.mean[row] : 0.0f, p.rstd[row], v[r]);
#pragma unroll
    for (float& value : v[r]) value = rounded<T>(value);
  }

  if (q.scaling == CodeScaling::kRow128) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      uint32_t bits = 0;
#pragma unroll
      for (int r = 0; r < 4; ++r) bits = max(bits, magnitude_bits(v[r][i]));
      bits = max(bits, __shfl_xor_sync(kWholeWarp, bits, 8));
      bits = max(bits, __shfl_xor_sync(kWholeWarp, bits, 16));
      if (lane < 8) amax[warp][local_column + i] = bits;
    }
    __syncthreads();
    if (threadIdx.x < kTileCols) {
      uint32_t bits = 0;
#pragma unroll
      for (int w = 0; w < kThreads / 32; ++w) bits = max(bits, amax[w][threadIdx.x]);
      const float scale = ScaleFormula{q.format_max, q.margin, q.pow2}(bits);
      column_scale[threadIdx.x] = scale;
      const int64_t c = int64_t{blockIdx.x} * kTileCols + threadIdx.x;
      if (q.scale_inv_t != nullptr && c < p.cols) q.scale_inv_t[c * row_tiles + blockIdx.y] = __fdiv_rn(1.0f, scale);
    }
    __syncthreads();
  }
  if (q.codes_t == nullptr) return;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const float scale = q.scaling == CodeScaling::kRow128 ? column_scale[local_column + i] : *q.scale;
    uint32_t word = 0;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float scaled = v[r][i] * scale;
      const uint32_t code = q.format == DType::kE4M3 ? from_float<e4m3>(scaled).bits : from_float<e5m2>(scaled).bits;
      word |= code << (8 * r);
    }
    tile[(local_column + i) * kPitch + local_row / 4] = word;
  }
  __syncthreads();
  auto* codes = static_cast<uint8_t*>(q.codes_t);
  for (int c = warp; c < kTileCols; c += kThreads / 32) {
    const int64_t to_column = int64_t{blockIdx.x} * kTileCols + c, to_row = first_row + lane * 4;
    if (to_column >= p.cols) break;
    uint8_t* to = codes + to_column * p.rows + to_row;
    const uint32_t word = tile[c * kPitch + lane];
    if (p.rows % 4 == 0) {
      if (to_row < p.rows) *reinterpret_cast<uint32_t*>(to) = word;
    } else {
      for (int r = 0; r < 4 && to_row + r < p.rows; ++r) to[r] = static_cast<uint8_t>(word >> (8 * r));
    }
  }
}

template <typename T>
void launch(const NormForward& call, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((call.cols + kTileCols - 1) / kTileCols),
                  static_cast<unsigned>((call.rows + kTileRows - 1) / kTileRows));
  if (call.layer) {
    norm_transposed_codes_kernel<T, true><<<grid, kThreads, 0, stream>>>(call);
  } else {
    norm_transposed_codes_kernel<T, false><<<grid, kThreads, 0, stream>>>(call);
  }
}

}  // namespace

void launch_norm_transposed_codes(const NormForward& call, cudaStream_t stream) {
  call.dtype == DType::kBF16 ? launch<bf16>(call, stream) : launch<float>(call, stream);
}

}  // namespace octet::cuda
