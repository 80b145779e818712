// slice, concat, select_rows and transpose: bytes moved, whatever their type.
#include <algorithm>

#include "kernels/cuda/common/pointwise.cuh"
#include "kernels/cuda/shape/shape.h"

namespace octet::cuda {
namespace {

// Element i of the copy is vector i mod per_row of row i / per_row; pitches in vectors.
template <typename V>
struct CopyBlock {
  const V* from;
  V* to;
  int64_t from_pitch, to_pitch;
  Divider per_row;
  template <int kVec>
  struct Held {
    V value;
    int64_t target;
  };
  template <int kVec>
  __device__ __forceinline__ Held<kVec> load(int64_t i) const {
    const int64_t row = per_row.quotient(i), col = i - row * per_row.divisor;
    return {from[row * from_pitch + col], row * to_pitch + col};
  }
  template <int kVec>
  __device__ __forceinline__ void finish(const Held<kVec>& held, int64_t) {
    to[held.target] = held.value;
  }
};

template <typename V>
struct SelectRows {
  const V* x;
  const int32_t* index;
  V* y;
  int64_t rows;
  Divider per_row;
  template <int kVec>
  using Held = V;
  template <int kVec>
  __device__ __forceinline__ V load(int64_t i) const {
    const int64_t at = per_row.quotient(i), row = index[at];
    return row >= 0 && row < rows ? x[row * per_row.divisor + (i - at * per_row.divisor)] : V{};
  }
  template <int kVec>
  __device__ __forceinline__ void finish(const V& held, int64_t i) {
    y[i] = held;
  }
};

// The widest access that all of these (addresses, pitches, widths) are multiples of.
template <typename Body>
void with_width(uint64_t all, Body&& body) {
  if (all % 16 == 0) return body(uint4{});
  if (all % 8 == 0) return body(uint2{});
  if (all % 4 == 0) return body(uint32_t{});
  if (all % 2 == 0) return body(uint16_t{});
  body(uint8_t{});
}
uint64_t bits(const void* p) { return reinterpret_cast<uintptr_t>(p); }
uint64_t bits(int64_t x) { return static_cast<uint64_t>(x); }

constexpr int kTile = 64, kTransposeThreads = 256;

// A tile of 64 x 64 elements; a lane reads and writes words of kPer elements. Rows in shared memory are an odd number
// of words apart, so that reading down a column meets kPer-way conflicts at most.
template <typename V, int kPer>
__global__ void __launch_bounds__(kTransposeThreads) transpose_kernel(const V* x, V* y, int64_t rows, int64_t cols) {
  using Word = Vec<V, kPer>;
  constexpr int kWords = kTile / kPer;
  __shared__ Word tile[kTile][kWords + 1];
  const unsigned across = static_cast<unsigned>((cols + kTile - 1) / kTile);  // one grid dim: others end at 65535
  const int64_t r0 = static_cast<int64_t>(blockIdx.x / across) * kTile;
  const int64_t c0 = static_cast<int64_t>(blockIdx.x % across) * kTile;
  const int word = static_cast<int>(threadIdx.x) % kWords, line = static_cast<int>(threadIdx.x) / kWords;
  constexpr int kLines = kTransposeThreads / kWords;
#pragma unroll
  for (int r = line; r < kTile; r += kLines) {
    if (r0 + r < rows && c0 + word * kPer < cols)
      tile[r][word] = *reinterpret_cast<const Word*>(x + (r0 + r) * cols + c0 + word * kPer);
  }
  __syncthreads();
#pragma unroll
  for (int c = line; c < kTile; c += kLines) {
    if (c0 + c >= cols || r0 + word * kPer >= rows) continue;
    Word out;
#pragma unroll
    for (int k = 0; k < kPer; ++k) out.at[k] = tile[word * kPer + k][c / kPer].at[c % kPer];
    *reinterpret_cast<Word*>(y + (c0 + c) * rows + r0 + word * kPer) = out;
  }
}

template <typename V>
void transpose(const void* x, void* y, int64_t rows, int64_t cols, cudaStream_t stream) {
  constexpr int kPer = sizeof(V) < 4 ? 4 / sizeof(V) : 1;
  const V* from = static_cast<const V*>(x);
  V* to = static_cast<V*>(y);
  const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
  const dim3 grid(tiles(rows) * tiles(cols));
  if (rows % kPer == 0 && cols % kPer == 0) {
    transpose_kernel<V, kPer><<<grid, kTransposeThreads, 0, stream>>>(from, to, rows, cols);
  } else {
    transpose_kernel<V, 1><<<grid, kTransposeThreads, 0, stream>>>(from, to, rows, cols);
  }
}

}  // namespace

void launch_copy_block(const void* from, int64_t from_pitch, void* to, int64_t to_pitch, int64_t rows, int64_t width,
                       cudaStream_t stream) {
  if (rows == 0 || width == 0) return;
  if (width == from_pitch && width == to_pitch) width *= rows, from_pitch = to_pitch = width, rows = 1;
  with_width(bits(from) | bits(from_pitch) | bits(to) | bits(to_pitch) | bits(width), [&]<typename V>(V) {
    constexpr int64_t kSize = sizeof(V);
    const CopyBlock<V> copy{static_cast<const V*>(from), static_cast<V*>(to), from_pitch / kSize, to_pitch / kSize,
                            Divider(width / kSize)};
    launch_pointwise<1, 4>(rows * (width / kSize), copy, stream);
  });
}

void launch_select_rows(const void* x, int64_t rows, const int32_t* index, void* y, int64_t count, int64_t width,
                        cudaStream_t stream) {
  with_width(bits(x) | bits(y) | bits(width), [&]<typename V>(V) {
    const int64_t per_row = width / static_cast<int64_t>(sizeof(V));
    const SelectRows<V> select{static_cast<const V*>(x), index, static_cast<V*>(y), rows, Divider(per_row)};
    launch_pointwise<1, 4>(count * per_row, select, stream);
  });
}

void launch_transpose(const void* x, void* y, int64_t rows, int64_t cols, int64_t element_bytes, cudaStream_t stream) {
  switch (element_bytes) {
    case 1: return transpose<uint8_t>(x, y, rows, cols, stream);
    case 2: return transpose<uint16_t>(x, y, rows, cols, stream);
    case 4: return transpose<uint32_t>(x, y, rows, cols, stream);
    default: return transpose<uint64_t>(x, y, rows, cols, stream);
  }
}

}  // namespace octet::cuda
