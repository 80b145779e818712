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

// The tiles of at most kMax rows; where that is more than 32, those of an expert are as even as multiples of 32 allow.
// Lists in shared memory, [experts + 1] each: where the rows of the experts begin, and the row tiles in front of each.
template <int kMax>
struct GroupedRows {
  int *begin, *tiles, experts;

  static __device__ __forceinline__ int rows_of_tile(int n) {
    if (kMax <= 32) return kMax;
    const int count = (n + kMax - 1) / kMax, even = (n + count - 1) / count;
    return (even + 31) / 32 * 32;
  }
  // Rounded up, a last tile can be empty: as many tiles as begin within the rows.
  static __device__ __forceinline__ int tiles_of(int n) {
    return n > 0 ? (n + rows_of_tile(n) - 1) / rows_of_tile(n) : 0;
  }

  // By one warp: a lane's run of experts.
  struct Run {
    const int32_t* offsets;
    int experts, first, count, before, until;  // the tiles in front of its own, and with them

    __device__ __forceinline__ Run(const int32_t* offsets, int experts, int lane) : offsets(offsets), experts(experts) {
      count = (experts + 31) / 32, first = lane * count;
      int own = 0;
#pragma unroll 4
      for (int i = 0; i < count; ++i) own += tiles_of(begin(i + 1) - begin(i));
      until = own;
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes <<= 1) {
        const int other = __shfl_up_sync(kWholeWarp, until, lanes);
        if (lane >= lanes) until += other;
      }
      before = until - own;
    }
    __device__ __forceinline__ int begin(int i) const { return offsets[min(first + i, experts)]; }
  };
  __device__ __forceinline__ void list(const int32_t* offsets, int lane) const {
    const Run run(offsets, experts, lane);
    int before = run.before;
#pragma unroll 4
    for (int i = 0; i < run.count && run.first + i < experts; ++i) {
      begin[run.first + i] = run.begin(i), tiles[run.first + i] = before;
      before += tiles_of(run.begin(i + 1) - run.begin(i));
    }
    if (lane == 31) begin[experts] = offsets[experts], tiles[experts] = run.until;
  }
  // Tile t without lists, by one warp for all its lanes; beyond the last, one of no rows.
  static __device__ __forceinline__ GroupedTile find(const int32_t* offsets, int experts, int t, int lane) {
    const Run run(offsets, experts, lane);
    const bool mine = t >= run.before && t < run.until;
    const unsigned has = __ballot_sync(kWholeWarp, mine);
    if (has == 0) return {};
    GroupedTile found{};
    if (mine) {
      int i = 0, before = run.before, rows = run.begin(1) - run.begin(0);
      while (t >= before + tiles_of(rows)) before += tiles_of(rows), ++i, rows = run.begin(i + 1) - run.begin(i);
      const int size = rows_of_tile(rows), from = (t - before) * size;
      found = {run.first + i, run.begin(i) + from, min(size, rows - from), 0};
    }
    const int from = __ffs(static_cast<int>(has)) - 1;
    const auto of = [&](int value) { return __shfl_sync(kWholeWarp, value, from); };
    return {of(found.expert), of(found.row), of(found.rows), 0};
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
