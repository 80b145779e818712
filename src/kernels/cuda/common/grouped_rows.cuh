// Rows of x that lie expert by expert, in tiles: every block lists for itself, from the offsets on the device, which
// tiles there are.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/reduce.cuh"

namespace octet::cuda {

// Rows [row, row + rows) of an expert, by the columns of y from `column` on.
struct GroupedTile {
  int expert, row, rows, column;
};

// The tiles of at most kMost rows; where that is more than 32, those of an expert are as even as multiples of 32 allow.
// Lists in shared memory, [experts + 1] each: where the rows of the experts begin, and the row tiles in front of each.
template <int kMost>
struct GroupedRows {
  int *begin, *tiles, experts;

  static __device__ __forceinline__ int rows_of_tile(int n) {
    if (kMost <= 32) return kMost;
    const int count = (n + kMost - 1) / kMost, even = (n + count - 1) / count;
    return (even + 31) / 32 * 32;
  }
  // Rounded up, a last tile can be empty: as many tiles as begin within the rows.
  static __device__ __forceinline__ int tiles_of(int n) {
    return n > 0 ? (n + rows_of_tile(n) - 1) / rows_of_tile(n) : 0;
  }

  // By one warp: body(expert, its first row, its rows, the tiles in front). Returns the last lane's count of all tiles.
  template <typename Body>
  static __device__ __forceinline__ int for_experts(const int32_t* offsets, int experts, int lane, const Body& body) {
    const int each = (experts + 31) / 32;
    const auto first = [&](int i) { return offsets[min(lane * each + i, experts)]; };
    int own = 0;
#pragma unroll 4
    for (int i = 0; i < each; ++i) own += tiles_of(first(i + 1) - first(i));
    int until = own;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes <<= 1) {
      const int other = __shfl_up_sync(kWholeWarp, until, lanes);
      if (lane >= lanes) until += other;
    }
    int before = until - own;
#pragma unroll 4
    for (int i = 0; i < each && lane * each + i < experts; ++i) {
      const int rows = first(i + 1) - first(i);
      body(lane * each + i, first(i), rows, before);
      before += tiles_of(rows);
    }
    return until;
  }
  __device__ __forceinline__ void list(const int32_t* offsets, int lane) const {
    const int all = for_experts(offsets, experts, lane, [&](int expert, int first, int, int before) {
      begin[expert] = first, tiles[expert] = before;
    });
    if (lane == 31) begin[experts] = offsets[experts], tiles[experts] = all;
  }
  // Tile t without lists; beyond the last, one of no rows.
  static __device__ __forceinline__ void find(const int32_t* offsets, int experts, int t, int lane,
                                              GroupedTile& found) {
    if (lane == 0) found.rows = 0;
    __syncwarp();
    for_experts(offsets, experts, lane, [&](int expert, int first, int rows, int before) {
      if (t < before || t >= before + tiles_of(rows)) return;
      const int size = rows_of_tile(rows), from = (t - before) * size;
      found = {expert, first + from, min(size, rows - from), 0};
    });
  }

  // Tile t of all by `column_tiles` of so many columns: those of one expert and the same columns follow each other.
  __device__ GroupedTile at(int t, int column_tiles, int columns) const {
    int low = 0, high = experts;  // the expert is in [low, high)
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      tiles[middle]* column_tiles <= t ? low = middle : high = middle;
    }
    const int of_expert = t - tiles[low] * column_tiles, row_tiles = tiles[low + 1] - tiles[low];
    const int end = begin[low + 1], size = rows_of_tile(end - begin[low]);
    const int row = begin[low] + of_expert % row_tiles * size;
    return {low, row, min(size, end - row), of_expert / row_tiles * columns};
  }
};

}  // namespace octet::cuda
