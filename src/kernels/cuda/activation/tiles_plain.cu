// A gradient's column sums with its amax or codes: no activation, the same tiles.
#include "kernels/cuda/activation/tiles.cuh"
#include "kernels/cuda/common/column_walk.cuh"

namespace octet::cuda {
namespace {

struct PlainTiles {
  static constexpr int kMatrices = 1, kBlocks = 4;
  const bf16* x;

  __device__ __forceinline__ void make(TilePart<bf16>& part, const Spot& spot, int) const {
    unroll<kPartRows>([&](int i) { set_run(part, i, load_run(i, x, spot)); });
  }
};

}  // namespace

int64_t tile_end_scratch(int64_t rows, int64_t cols) {
  return (partial_rows(rows) * cols + tiles_of(rows) * tiles_of(cols)) * static_cast<int64_t>(sizeof(float));
}

bool takes_codes(bool gradient, Grouping grouping, DType format) {
  if (grouping == Grouping::kTensor) return format == (gradient ? DType::kE5M2 : DType::kE4M3);
  return grouping == Grouping::kRow128 && format == DType::kE4M3;
}

void launch_plain_tiles(const void* x, const TileEnd& end, uint32_t* counters, cudaStream_t stream) {
  const PlainTiles tiles{static_cast<const bf16*>(x)};
  const int64_t rows = end.job.rows, cols = end.job.cols;
  if (end.quantizes) {
    launch_code_tiles<true>(tiles, end, {}, stream);
  } else if (end.job.amax != nullptr && walks_columns<bf16>(rows, cols)) {
    launch_column_walk<SumOf, bf16, true>(
        {x, rows, cols, end.scratch, end.column_sums, counters + kAmaxWords, {end.job.amax, counters}}, stream);
  } else {
    launch_tiles<Grouping::kTensor, NoCodes>(tiles, end, {}, stream);
  }
}

}  // namespace octet::cuda
