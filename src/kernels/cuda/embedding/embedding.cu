// Table lookup: a copy of rows in 16-byte pieces, every thread several of them.
#include "kernels/cuda/common/numbers.cuh"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/embedding/embedding.h"

namespace octet::cuda {
namespace {

constexpr int kThreads = 256, kPieces = 4;  // pieces of a row a thread holds at once

// kVec elements a piece; row_pieces = H / kVec, pieces = T row_pieces
template <typename From, typename To, int kVec>
__global__ void __launch_bounds__(kThreads) embedding_kernel(const int32_t* ids, const From* table, To* out,
                                                             int64_t pieces, uint32_t row_pieces, int64_t rows) {
  griddep_wait();
  griddep_launch_dependents();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kPieces + threadIdx.x;
  float held[kPieces][kVec];
  unroll<kPieces>([&](int p) {
    const int64_t piece = first + p * kThreads;
    if (piece >= pieces) return;
    const int64_t token = piece / row_pieces, at = piece - token * row_pieces;
    const int32_t id = ids[token];
    if (id >= 0 && id < rows) {
      load<kVec>(table + (id * static_cast<int64_t>(row_pieces) + at) * kVec, held[p]);
    } else {
      unroll<kVec>([&](int i) { held[p][i] = __int_as_float(0x7fc00000); });
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
                    static_cast<uint32_t>(row_pieces), args.rows);
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

}  // namespace octet::cuda
