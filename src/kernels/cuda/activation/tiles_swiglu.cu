// silu, mul, quantize.
#include "kernels/cuda/activation/tiles.cuh"
#include "kernels/cuda/common/activation.cuh"

namespace octet::cuda {
namespace {

struct SwigluTiles {
  static constexpr int kMatrices = 1, kBlocks = 3;
  const bf16 *gate, *up;
  bf16 *silu, *y;

  __device__ __forceinline__ void make(TilePart<bf16>& part, const Spot& spot, int) const {
    TilePart<bf16> factor;
#pragma unroll
    for (int i = 0; i < kPartRows; ++i) load_run(part, i, gate, spot), load_run(factor, i, up, spot);
#pragma unroll
    for (int i = 0; i < kPartRows; ++i) {
#pragma unroll
      for (int k = 0; k < kPartCols; k += 2) part.set(i, k, Silu{}(part.value(i, k)), Silu{}(part.value(i, k + 1)));
      store_run(part, i, silu, spot);
#pragma unroll
      for (int k = 0; k < kPartCols; k += 2)
        part.set(i, k, part.value(i, k) * factor.value(i, k), part.value(i, k + 1) * factor.value(i, k + 1));
      store_run(part, i, y, spot);
    }
  }
};

}  // namespace

void launch_swiglu_tiles(const Swiglu& job, const TileEnd& end, cudaStream_t stream) {
  const SwigluTiles tiles{static_cast<const bf16*>(job.gate), static_cast<const bf16*>(job.up),
                          static_cast<bf16*>(job.silu), static_cast<bf16*>(job.y)};
  launch_forward(tiles, end, stream);
}

}  // namespace octet::cuda
