// (bias,) gelu, quantize.
#include "kernels/cuda/activation/tiles.cuh"
#include "kernels/cuda/common/activation.cuh"

namespace octet::cuda {
namespace {

template <typename Gelu>
struct GeluTiles {
  static constexpr int kMatrices = 1, kBlocks = 3;
  const bf16* x;
  const void* bias;
  bool bias_f32;
  bf16 *biased, *y;

  __device__ __forceinline__ void load_bias(float (&to)[kPartCols], const Spot& spot) const {
    if (spot.col() >= spot.cols) return;
#pragma unroll
    for (int k = 0; k < kPartCols; k += 8) {
      float few[8];
      if (bias_f32) {
        load(static_cast<const float*>(bias) + spot.col() + k, few);
      } else {
        load(static_cast<const bf16*>(bias) + spot.col() + k, few);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) to[k + j] = few[j];
    }
  }
  __device__ __forceinline__ void make(TilePart<bf16>& part, const Spot& spot, int) const {
#pragma unroll
    for (int i = 0; i < kPartRows; ++i) load_run(part, i, x, spot);
    if (bias != nullptr) {
      float b[kPartCols] = {};
      load_bias(b, spot);
#pragma unroll
      for (int i = 0; i < kPartRows; ++i) {
#pragma unroll
        for (int k = 0; k < kPartCols; k += 2) part.set(i, k, part.value(i, k) + b[k], part.value(i, k + 1) + b[k + 1]);
        store_run(part, i, biased, spot);
      }
    }
#pragma unroll
    for (int i = 0; i < kPartRows; ++i) {
#pragma unroll
      for (int k = 0; k < kPartCols; k += 2) {
        const float y0 = Gelu{}(part.value(i, k)), y1 = Gelu{}(part.value(i, k + 1));
        part.set(i, k, y0, y1);
      }
      if (bias != nullptr && spot.row() + i >= spot.rows) {  // not gelu(bias)
#pragma unroll
        for (uint32_t& word : part.at[i]) word = 0;
      }
      store_run(part, i, y, spot);
    }
  }
};

}  // namespace

bool takes_codes(bool gradient, Grouping grouping, DType format) {
  if (grouping == Grouping::kTensor) return format == (gradient ? DType::kE5M2 : DType::kE4M3);
  return grouping == Grouping::kRow128 && format == DType::kE4M3;
}

void launch_gelu_tiles(const BiasGelu& job, const TileEnd& end, cudaStream_t stream) {
  const auto launch = [&]<typename Gelu>(Gelu) {
    const GeluTiles<Gelu> tiles{static_cast<const bf16*>(job.x), job.bias, job.bias_type == DType::kF32,
                                static_cast<bf16*>(job.biased), static_cast<bf16*>(job.y)};
    launch_forward(tiles, end, stream);
  };
  job.tanh_form ? launch(GeluTanh{}) : launch(GeluErf{});
}

}  // namespace octet::cuda
