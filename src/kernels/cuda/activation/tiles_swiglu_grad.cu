// The gradient of silu and mul, quantize of both its results.
#include "kernels/cuda/activation/tiles.cuh"
#include "kernels/cuda/common/activation.cuh"

namespace octet::cuda {
namespace {

struct SwigluGradTiles {
  static constexpr int kMatrices = 2, kBlocks = 3;  // dgate, dup
  const bf16 *gate, *up, *dy, *silu;

  __device__ __forceinline__ void make(TilePart<bf16>& part, const Spot& spot, int which) const {
    which == 0 ? make_dgate(part, spot) : make_dup(part, spot);
  }

  // Two rows at a time: what is read of all four would not fit the registers of three blocks.
  __device__ __forceinline__ void make_dgate(TilePart<bf16>& part, const Spot& spot) const {
#pragma unroll
    for (int half = 0; half < kPartRows; half += 2) {
      TilePart<bf16> factor, gradient;
#pragma unroll
      for (int i = half; i < half + 2; ++i)
        load_run(part, i, gate, spot), load_run(gradient, i, dy, spot), load_run(factor, i, up, spot);
#pragma unroll
      for (int i = half; i < half + 2; ++i) {
#pragma unroll
        for (int k = 0; k < kPartCols; k += 2)
          factor.set(i, k, gradient.value(i, k) * factor.value(i, k),
                     gradient.value(i, k + 1) * factor.value(i, k + 1));
#pragma unroll
        for (int k = 0; k < kPartCols; k += 2)
          part.set(i, k, factor.value(i, k) * SiluSlope{}(part.value(i, k)),
                   factor.value(i, k + 1) * SiluSlope{}(part.value(i, k + 1)));
      }
    }
  }

  __device__ __forceinline__ void make_dup(TilePart<bf16>& part, const Spot& spot) const {
    TilePart<bf16> gradient;
#pragma unroll
    for (int i = 0; i < kPartRows; ++i)
      load_run(gradient, i, dy, spot), load_run(part, i, silu != nullptr ? silu : gate, spot);
#pragma unroll
    for (int i = 0; i < kPartRows; ++i) {
      if (silu == nullptr) {
#pragma unroll
        for (int k = 0; k < kPartCols; k += 2) part.set(i, k, Silu{}(part.value(i, k)), Silu{}(part.value(i, k + 1)));
      }
#pragma unroll
      for (int k = 0; k < kPartCols; k += 2)
        part.set(i, k, gradient.value(i, k) * part.value(i, k), gradient.value(i, k + 1) * part.value(i, k + 1));
    }
  }
};

}  // namespace

void launch_swiglu_grad_tiles(const SwigluGrad& job, const TileEnd& dgate, const TileEnd& dup, cudaStream_t stream) {
  const SwigluGradTiles tiles{static_cast<const bf16*>(job.gate), static_cast<const bf16*>(job.up),
                              static_cast<const bf16*>(job.dy), static_cast<const bf16*>(job.silu)};
  launch_gradient(tiles, dgate, dup, stream);
}

}  // namespace octet::cuda
