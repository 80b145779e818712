// The gradient of silu and mul, quantize of both its results.
#include "kernels/cuda/activation/tiles.cuh"
#include "kernels/cuda/common/activation.cuh"

namespace octet::cuda {
namespace {

struct SwigluGradTiles {
  static constexpr int kParts = 2;  // dgate, dup
  const bf16 *gate, *up, *dy, *silu;
  bf16 *dsilu, *dgate, *dup, *silu_out;

  // Two rows at a time: eight 32-byte reads in flight, and two blocks' registers fit a processor.
  __device__ __forceinline__ void make(TilePart<bf16> (&parts)[2], const Spot& spot) const {
#pragma unroll
    for (int half = 0; half < kPartRows; half += 2) {
      TilePart<bf16> factor, gradient;
#pragma unroll
      for (int i = half; i < half + 2; ++i) {
        load_run(parts[0], i, gate, spot), load_run(factor, i, up, spot), load_run(gradient, i, dy, spot);
        if (silu != nullptr) load_run(parts[1], i, silu, spot);
      }
#pragma unroll
      for (int i = half; i < half + 2; ++i) {
        if (silu == nullptr) {
#pragma unroll
          for (int k = 0; k < kPartCols; k += 2)
            parts[1].set(i, k, Silu{}(parts[0].value(i, k)), Silu{}(parts[0].value(i, k + 1)));
        }
        store_run(parts[1], i, silu_out, spot);
#pragma unroll
        for (int k = 0; k < kPartCols; k += 2) {
          factor.set(i, k, gradient.value(i, k) * factor.value(i, k),
                     gradient.value(i, k + 1) * factor.value(i, k + 1));
          parts[1].set(i, k, gradient.value(i, k) * parts[1].value(i, k),
                       gradient.value(i, k + 1) * parts[1].value(i, k + 1));
        }
        store_run(factor, i, dsilu, spot);
        store_run(parts[1], i, dup, spot);
#pragma unroll
        for (int k = 0; k < kPartCols; k += 2)
          parts[0].set(i, k, factor.value(i, k) * SiluSlope{}(parts[0].value(i, k)),
                       factor.value(i, k + 1) * SiluSlope{}(parts[0].value(i, k + 1)));
        store_run(parts[0], i, dgate, spot);
      }
    }
  }
};

}  // namespace

void launch_swiglu_grad_tiles(const SwigluGrad& job, const TileEnd& dgate, const TileEnd& dup, cudaStream_t stream) {
  const SwigluGradTiles tiles{static_cast<const bf16*>(job.gate), static_cast<const bf16*>(job.up),
                              static_cast<const bf16*>(job.dy),   static_cast<const bf16*>(job.silu),
                              static_cast<bf16*>(job.dsilu),      static_cast<bf16*>(job.dgate),
                              static_cast<bf16*>(job.dup),        static_cast<bf16*>(job.silu_out)};
  launch_gradient(tiles, dgate, dup, stream);
}

}  // namespace octet::cuda
