// (bias,) activation (, gate), quantize.
#include "kernels/cuda/activation/groups.cuh"
#include "kernels/cuda/activation/tiles.cuh"

namespace octet::cuda {
namespace {

using Form = ActivationForm;

template <typename Fn, Form kForm>
struct ForwardTiles {
  static constexpr int kMatrices = 1, kBlocks = 3;
  const bf16 *x, *up;
  const void* bias;
  bool bias_f32;
  bf16 *biased, *a, *y;

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
      unroll<8>([&](int j) { to[k + j] = few[j]; });
    }
  }
  __device__ __forceinline__ void make(TilePart<bf16>& part, const Spot& spot, int) const {
    Run runs[kPartRows], factors[kForm == Form::kGated ? kPartRows : 1];
    unroll<kPartRows>([&](int i) {
      runs[i] = load_run(i, x, spot);
      if constexpr (kForm == Form::kGated) factors[i] = load_run(i, up, spot);
    });
    const bool biases = kForm != Form::kGated && bias != nullptr;
    if (biases) {
      float b[kPartCols] = {};
      load_bias(b, spot);
      unroll<kPartRows>([&](int i) {
        runs[i] = plus(runs[i], b);
        store_run(runs[i], i, biased, spot);
      });
    }
    unroll<kPartRows>([&](int i) {
      const Run act = activate<Fn>(runs[i]);
      if constexpr (kForm != Form::kPlain) store_run(act, i, a, spot);
      Run made = of_form<kForm>(act, factors[kForm == Form::kGated ? i : 0]);
      if (biases && spot.row() + i >= spot.rows) made = {};  // not fn(bias)
      store_run(made, i, y, spot);
      set_run(part, i, made);
    });
  }
};

}  // namespace

void launch_activation_tiles(const ActivationForward& job, const TileEnd& end, cudaStream_t stream) {
  with_activation_form(job.fn, job.form, [&]<typename Fn, Form kForm>(Fn, std::integral_constant<Form, kForm>) {
    const ForwardTiles<Fn, kForm> tiles{
        static_cast<const bf16*>(job.x), static_cast<const bf16*>(job.up), job.bias,
        job.bias_type == DType::kF32,    static_cast<bf16*>(job.biased),   static_cast<bf16*>(job.a),
        static_cast<bf16*>(job.y)};
    launch_code_tiles<false>(tiles, end, {}, stream);
  });
}

}  // namespace octet::cuda
