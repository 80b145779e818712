// gelu_grad with sums over rows, an amax, codes.
#include "kernels/cuda/activation/tiles.cuh"
#include "kernels/cuda/common/activation.cuh"

namespace octet::cuda {
namespace {

struct GeluGradTiles {
  static constexpr int kMatrices = 1, kBlocks = 3;
  const bf16 *x, *dy;
  bf16* dx;

  __device__ __forceinline__ void make(TilePart<bf16>& part, const Spot& spot, int) const {
    TilePart<bf16> gradient;
#pragma unroll
    for (int i = 0; i < kPartRows; ++i) load_run(part, i, x, spot), load_run(gradient, i, dy, spot);
#pragma unroll
    for (int i = 0; i < kPartRows; ++i) {
#pragma unroll
      for (int k = 0; k < kPartCols; k += 2) {
        part.set(i, k, gradient.value(i, k) * GeluTanhSlope{}(part.value(i, k)),
                 gradient.value(i, k + 1) * GeluTanhSlope{}(part.value(i, k + 1)));
      }
      store_run(part, i, dx, spot);
    }
  }
};

}  // namespace

void launch_gelu_grad_tiles(const GeluGrad& job, const TileEnd& end, cudaStream_t stream) {
  const GeluGradTiles tiles{static_cast<const bf16*>(job.x), static_cast<const bf16*>(job.dy),
                            static_cast<bf16*>(job.dx)};
  if (end.quantizes) {
    launch_gradient(tiles, end, {}, stream);
  } else {
    launch_tiles<Grouping::kTensor, NoCodes>(tiles, end, {}, stream);
  }
}

}  // namespace octet::cuda
