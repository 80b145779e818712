// Gradients of activations with column sums, an amax, codes; of gates with codes of both results.
#include "kernels/cuda/activation/groups.cuh"
#include "kernels/cuda/activation/tiles.cuh"

namespace octet::cuda {
namespace {

using Form = ActivationForm;

template <typename Fn, Form kForm>
struct GradientTiles {
  static constexpr int kMatrices = kForm == Form::kGated ? 2 : 1, kBlocks = 3;  // dx, dup
  // Rows at a time: what is read of all four rows of three operands would not fit the registers of three CTAs.
  static constexpr int kRows = kForm == Form::kPlain ? kPartRows : 2;
  const bf16 *x, *up, *dy, *a;
  bf16* dx;

  __device__ __forceinline__ void make(TilePart<bf16>& part, const Spot& spot, int which) const {
    which == 0 ? make_dx(part, spot) : make_dup(part, spot);
  }

  __device__ __forceinline__ void make_dx(TilePart<bf16>& part, const Spot& spot) const {
#pragma unroll
    for (int first = 0; first < kPartRows; first += kRows) {
      Run xs[kRows], dys[kRows], factors[kForm == Form::kPlain ? 1 : kRows];
      unroll<kRows>([&](int r) {
        xs[r] = load_run(first + r, x, spot), dys[r] = load_run(first + r, dy, spot);
        if constexpr (kForm == Form::kGated) factors[r] = load_run(first + r, up, spot);
        if constexpr (kForm == Form::kSquared) {
          if (a != nullptr) factors[r] = load_run(first + r, a, spot);
        }
      });
      unroll<kRows>([&](int r) {
        Run& factor = factors[kForm == Form::kPlain ? 0 : r];
        if (kForm == Form::kSquared && a == nullptr) factor = activate<Fn>(xs[r]);
        const Run made = times_slope<Fn>(gradient_of_a<kForm>(dys[r], factor), xs[r]);
        if constexpr (kForm != Form::kGated) store_run(made, first + r, dx, spot);
        set_run(part, first + r, made);
      });
    }
  }

  __device__ __forceinline__ void make_dup(TilePart<bf16>& part, const Spot& spot) const {
    Run dys[kPartRows], acts[kPartRows];
    unroll<kPartRows>(
        [&](int i) { dys[i] = load_run(i, dy, spot), acts[i] = load_run(i, a != nullptr ? a : x, spot); });
    unroll<kPartRows>([&](int i) { set_run(part, i, times(dys[i], a != nullptr ? acts[i] : activate<Fn>(acts[i]))); });
  }
};

}  // namespace

void launch_activation_grad_tiles(const ActivationGradient& job, const TileEnd& dx, const TileEnd& dup,
                                  cudaStream_t stream) {
  with_activation_form(job.fn, job.form, [&]<typename Fn, Form kForm>(Fn, std::integral_constant<Form, kForm>) {
    const GradientTiles<Fn, kForm> tiles{static_cast<const bf16*>(job.x), static_cast<const bf16*>(job.up),
                                         static_cast<const bf16*>(job.dy), static_cast<const bf16*>(job.a),
                                         static_cast<bf16*>(job.dx)};
    if (dx.quantizes) return launch_code_tiles<true>(tiles, dx, dup, stream);
    if constexpr (kForm != Form::kGated) launch_tiles<Grouping::kTensor, NoCodes>(tiles, dx, dup, stream);
  });
}

}  // namespace octet::cuda
