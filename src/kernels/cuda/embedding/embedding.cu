// Table lookup: a copy of rows in 16-byte pieces, every thread several of them.
//
// The table's gradient without atomics on floats. Tokens are gathered by id: counted per row of the table, given a
// segment of a list each row, filled in, and put in token order; then a row's tokens are summed in that order on top of
// c, so the bits do not depend on the order in which threads ran.
//
// Integer atomics assign positions in the list; they do not affect the result. Rows without tokens are written by a
// kernel of their own, and cost nothing where the result is c itself.
#include <limits>

#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/embedding/embedding.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kPieces = 4;  // pieces of a row that a thread holds at once, or writes

// kVec elements a piece; row_pieces = H / kVec, pieces = T row_pieces
template <typename From, typename To, int kVec>
__global__ void __launch_bounds__(kThreads)
    embedding_kernel(const int32_t* ids, const From* table, To* out, int64_t pieces, uint32_t row_pieces, int64_t rows,
                     int32_t first_row, float elsewhere) {
  griddep_wait();
  griddep_launch_dependents();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kPieces + threadIdx.x;
  float held[kPieces][kVec];
  unroll<kPieces>([&](int p) {
    const int64_t piece = first + p * kThreads;
    if (piece >= pieces) return;
    const int64_t token = piece / row_pieces, at = piece - token * row_pieces;
    const int32_t id = ids[token] - first_row;
    if (id >= 0 && id < rows) {
      load<kVec>(table + (id * static_cast<int64_t>(row_pieces) + at) * kVec, held[p]);
    } else {
      unroll<kVec>([&](int i) { held[p][i] = elsewhere; });
    }
  });
  unroll<kPieces>([&](int p) {
    const int64_t piece = first + p * kThreads;
    if (piece < pieces) store<kVec>(out + piece * kVec, held[p]);
  });
}

template <typename From, typename To, int kVec>
void launch(const EmbeddingArgs& args, cudaStream_t stream) {
  const int64_t row_pieces = args.cols / kVec, pieces = args.tokens * row_pieces;
  const auto blocks = static_cast<unsigned>((pieces + kThreads * kPieces - 1) / (kThreads * kPieces));
  launch_overlapped(embedding_kernel<From, To, kVec>, {blocks, kThreads}, stream, args.ids,
                    static_cast<const From*>(args.table), static_cast<To*>(args.out), pieces,
                    static_cast<uint32_t>(row_pieces), args.rows, args.first,
                    args.is_part ? 0.0f : std::numeric_limits<float>::quiet_NaN());
}

// --- gradient
constexpr int kSumThreads = 128;  // small blocks: rows differ much in their tokens

struct Lists {
  int2* segments;                // [T]: {start, count} of the row at its first token, {0, 0} at others
  int32_t *count, *cursor;       // [V], [1]: zeroed together
  int32_t* start;                // [V]: first place of the row's segment, where count > 0
  int32_t* arrival;              // [T]: place of the token in its segment while unordered, -1: id outside the table
  int32_t *unordered, *ordered;  // [T]: tokens by row
  int32_t first;                 // the id of row 0
};

Lists lists_of(const EmbeddingGradArgs& args) {
  Lists lists{.segments = reinterpret_cast<int2*>(args.workspace)};
  lists.count = args.workspace + 2 * args.tokens;
  lists.cursor = lists.count + args.rows;
  lists.start = lists.cursor + 1;
  lists.arrival = lists.start + args.rows;
  lists.unordered = lists.arrival + args.tokens;
  lists.ordered = lists.unordered + args.tokens;
  lists.first = args.first;
  return lists;
}

__global__ void __launch_bounds__(kThreads)
    embedding_grad_count_kernel(const int32_t* __restrict__ ids, Lists lists, int tokens, int rows) {
  const int t = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (t >= tokens) return;
  const int id = ids[t] - lists.first;
  lists.arrival[t] = id >= 0 && id < rows ? atomicAdd(lists.count + id, 1) : -1;
}

// The token that came first takes the row's segment: one atomic a warp.
__global__ void __launch_bounds__(kThreads)
    embedding_grad_segments_kernel(const int32_t* __restrict__ ids, Lists lists, int tokens) {
  const int t = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const bool first = t < tokens && lists.arrival[t] == 0;
  const int id = first ? ids[t] - lists.first : 0, wanted = first ? lists.count[id] : 0;
  int end = wanted;  // of the lane's segment among the warp's
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const int before = __shfl_up_sync(kWholeWarp, end, step);
    if (lane >= step) end += before;
  }
  int base = lane == 31 && end > 0 ? atomicAdd(lists.cursor, end) : 0;
  base = __shfl_sync(kWholeWarp, base, 31);
  if (first) lists.start[id] = base + end - wanted;
}

__global__ void __launch_bounds__(kThreads)
    embedding_grad_fill_kernel(const int32_t* __restrict__ ids, Lists lists, int tokens) {
  const int t = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (t < tokens && lists.arrival[t] >= 0) lists.unordered[lists.start[ids[t] - lists.first] + lists.arrival[t]] = t;
}

// A token's place is the number of earlier tokens of its row.
__global__ void __launch_bounds__(kThreads)
    embedding_grad_order_kernel(const int32_t* __restrict__ ids, Lists lists, int tokens) {
  const int t = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (t >= tokens) return;
  int2 segment = {0, 0};
  if (lists.arrival[t] >= 0) {
    const int row_of = ids[t] - lists.first, start = lists.start[row_of], count = lists.count[row_of];
    const int32_t* __restrict__ row = lists.unordered + start;
    int earlier = 0;
#pragma unroll 8
    for (int i = 0; i < count; ++i) earlier += row[i] < t;
    lists.ordered[start + earlier] = t;
    if (earlier == 0) segment = {start, count};
  }
  lists.segments[t] = segment;
}

// Rows without tokens: c or 0. pieces = V row_pieces, of kVec columns each
template <int kVec>
__global__ void __launch_bounds__(kThreads)
    embedding_grad_rest_kernel(const int32_t* __restrict__ count, const float* __restrict__ c,
                               float* __restrict__ dtable, int64_t pieces, uint32_t row_pieces) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kPieces + threadIdx.x;
  float held[kPieces][kVec] = {};
  bool mine[kPieces];
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int64_t piece = first + p * kThreads;
    mine[p] = piece < pieces && count[piece / row_pieces] == 0;
    if (mine[p] && c != nullptr) load<kVec>(c + piece * kVec, held[p]);
  }
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    if (mine[p]) store<kVec>(dtable + (first + p * kThreads) * kVec, held[p]);
  }
}

// Block (token, chunk of columns): the first token of a row does the row.
template <typename T, int kVec>
__global__ void __launch_bounds__(kSumThreads)
    embedding_grad_sum_kernel(const int32_t* __restrict__ ids, const T* __restrict__ dy, const float* c, float* dtable,
                              Lists lists, int64_t cols) {
  constexpr int kAhead = 8;  // tokens loaded before the first is added
  const int2 segment = lists.segments[blockIdx.x];
  const int count = segment.y;
  const int64_t col = (static_cast<int64_t>(blockIdx.y) * kSumThreads + threadIdx.x) * kVec;
  if (count == 0 || col >= cols) return;
  const int64_t row = ids[blockIdx.x] - lists.first;
  const int32_t* __restrict__ tokens = lists.ordered + segment.x;
  float sum[kVec] = {}, own[kVec];
  load<kVec>(dy + blockIdx.x * cols + col, own);
  if (c != nullptr) load<kVec>(c + row * cols + col, sum);
#pragma unroll
  for (int k = 0; k < kVec; ++k) sum[k] += own[k];
  int i = 1;
  for (; i + kAhead <= count; i += kAhead) {
    float next[kAhead][kVec];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) load<kVec>(dy + tokens[i + a] * cols + col, next[a]);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) sum[k] += next[a][k];
    }
  }
  for (; i < count; ++i) {
    load<kVec>(dy + tokens[i] * cols + col, own);
#pragma unroll
    for (int k = 0; k < kVec; ++k) sum[k] += own[k];
  }
  store<kVec>(dtable + row * cols + col, sum);
}

template <typename T, int kVec>
void launch_sums(const EmbeddingGradArgs& args, const Lists& lists, cudaStream_t stream) {
  if (args.c != args.dtable) {
    const int64_t pieces = args.rows * (args.cols / kVec), block = kThreads * kPieces;
    embedding_grad_rest_kernel<kVec><<<static_cast<unsigned>((pieces + block - 1) / block), kThreads, 0, stream>>>(
        lists.count, args.c, args.dtable, pieces, static_cast<uint32_t>(args.cols / kVec));
  }
  if (args.tokens == 0) return;
  const int64_t chunk = kSumThreads * kVec;
  const dim3 grid(static_cast<unsigned>(args.tokens), static_cast<unsigned>((args.cols + chunk - 1) / chunk));
  embedding_grad_sum_kernel<T, kVec><<<grid, kSumThreads, 0, stream>>>(args.ids, static_cast<const T*>(args.dy), args.c,
                                                                       args.dtable, lists, args.cols);
}

}  // namespace

void launch_embedding(const EmbeddingArgs& args, cudaStream_t stream) {
  if (args.tokens == 0 || args.cols == 0) return;
  with_float_type(args.table_type, [&]<typename From>(From) {
    with_float_type(args.out_type, [&]<typename To>(To) {
      constexpr int kVec = kVecOf<From> < kVecOf<To> ? kVecOf<From> : kVecOf<To>;
      args.cols % kVec == 0 ? launch<From, To, kVec>(args, stream) : launch<From, To, 1>(args, stream);
    });
  });
}

int64_t embedding_grad_workspace(int64_t tokens, int64_t rows) {
  return (2 * rows + 1 + 5 * tokens) * static_cast<int64_t>(sizeof(int32_t));
}

void launch_embedding_grad(const EmbeddingGradArgs& args, cudaStream_t stream) {
  const Lists lists = lists_of(args);
  cudaMemsetAsync(lists.count, 0, static_cast<size_t>(args.rows + 1) * sizeof(int32_t), stream);
  const int tokens = static_cast<int>(args.tokens);
  if (const auto blocks = static_cast<unsigned>((tokens + kThreads - 1) / kThreads); blocks > 0) {
    embedding_grad_count_kernel<<<blocks, kThreads, 0, stream>>>(args.ids, lists, tokens, static_cast<int>(args.rows));
    embedding_grad_segments_kernel<<<blocks, kThreads, 0, stream>>>(args.ids, lists, tokens);
    embedding_grad_fill_kernel<<<blocks, kThreads, 0, stream>>>(args.ids, lists, tokens);
    embedding_grad_order_kernel<<<blocks, kThreads, 0, stream>>>(args.ids, lists, tokens);
  }
  if (args.cols == 0) return;
  with_f32_or_bf16(args.dy_type, [&]<typename T>(T) {
    args.cols % 4 == 0 ? launch_sums<T, 4>(args, lists, stream) : launch_sums<T, 1>(args, lists, stream);
  });
}

}  // namespace octet::cuda
