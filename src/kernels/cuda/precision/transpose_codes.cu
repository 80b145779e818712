// Codes of one byte from rows to columns: where both directions share their scale, the transposed codes are those of
// the rows, and reading these again costs half of what reading what they were made from would.
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/quantize_tile.cuh"

namespace octet::cuda {
namespace {

template <bool kVector>
__global__ void __launch_bounds__(kTileThreads)
    transpose_codes_kernel(const uint8_t* codes, uint8_t* codes_t, int64_t rows, int64_t cols, unsigned across) {
  __shared__ TileScratch scratch;
  griddep_wait();
  griddep_launch_dependents();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t r0 = int64_t{blockIdx.x / across} * kTile, c0 = int64_t{blockIdx.x % across} * kTile;
  const int64_t r = r0 + (thread >> 3) * kPartRows, c = c0 + (thread & 7) * kPartCols;
  uint32_t held[kPartRows][kPartCols / 4] = {};
  const uint8_t* from = codes + r * cols + c;
#pragma unroll
  for (int i = 0; i < kPartRows; ++i, from += cols) {
    if (r + i >= rows || c >= cols) continue;
    if constexpr (kVector) {
      const uint4 four = *reinterpret_cast<const uint4*>(from);
      held[i][0] = four.x, held[i][1] = four.y, held[i][2] = four.z, held[i][3] = four.w;
    } else {
      unroll<kPartCols>([&](int j) {
        if (c + j < cols) held[i][j / 4] |= uint32_t{from[j]} << (j % 4 * 8);
      });
    }
  }
  uint32_t* mine = turned_codes_of_thread(scratch);
  unroll<kPartCols / 4>([&](int q) {
    uint32_t columns[4];
    turn_codes({held[0][q], held[1][q], held[2][q], held[3][q]}, columns);
    unroll<4>([&](int j) { mine[(4 * q + j) * (kTile / 4)] = columns[j]; });
  });
  store_turned_codes<kVector>(scratch, codes_t, r0, c0, rows, cols);
}

}  // namespace

void launch_transpose_codes(const void* codes, void* codes_t, int64_t rows, int64_t cols, cudaStream_t stream) {
  const int64_t down = (rows + kTile - 1) / kTile, across = (cols + kTile - 1) / kTile;
  const auto bits = reinterpret_cast<uintptr_t>(codes) | reinterpret_cast<uintptr_t>(codes_t);
  const bool vector = rows % 16 == 0 && cols % 16 == 0 && bits % 16 == 0;
  const auto kernel = vector ? transpose_codes_kernel<true> : transpose_codes_kernel<false>;
  launch_overlapped(kernel, {static_cast<unsigned>(down * across), kTileThreads}, stream,
                    static_cast<const uint8_t*>(codes), static_cast<uint8_t*>(codes_t), rows, cols,
                    static_cast<unsigned>(across));
}

}  // namespace octet::cuda
