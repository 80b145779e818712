// Fast rows of compute_scale and update_scales, a few values each, and of dequantize, in runs with one scale.
#include <algorithm>
#include <cstring>

#include "base/threads.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/matmul/matrix_view.h"
#include "kernels/cpu/precision/scale_formula.h"

namespace octet::cpu {
namespace {

void store_scale(const ScaleFormula& formula, uint32_t amax, const Tensor& scale_out, const Tensor& inverse_out) {
  const float scale = formula(amax);
  if (scale_out.data != nullptr) *scale_out.as<float>() = scale;
  if (inverse_out.data != nullptr) *inverse_out.as<float>() = 1.0f / scale;
}

BoundKernel bind_compute_scale(const Graph&, const Node& node) {
  return [formula = ScaleFormula(node)](const KernelArgs& args) {
    store_scale(formula, std::bit_cast<uint32_t>(*args.in[0].as<float>()), args.out[0], args.out[1]);
  };
}

BoundKernel bind_update_scales(const Graph&, const Node& node) {
  const bool newest_only = node.attr<std::string>("algo") != "max";
  return [formula = ScaleFormula(node), newest_only](const KernelArgs& args) {
    const float* old = args.in[0].as<float>();
    const int64_t length = args.in[0].elements();
    const float newest = *args.in[1].as<float>();
    uint32_t amax = magnitude_bits(newest);
    for (int64_t i = 0; !newest_only && i + 1 < length; ++i) amax = std::max(amax, magnitude_bits(old[i]));
    if (float* history = args.out[0].as<float>(); history != nullptr) {
      std::memmove(history + 1, old, static_cast<size_t>(length - 1) * sizeof(float));  // may alias
      history[0] = newest;
    }
    store_scale(formula, amax, args.out[1], args.out[2]);
  };
}

// bf16 of code * scale with one rounding: the float32 product is first made odd where it is inexact.
uint16_t product_to_bf16(float code, float scale) {
  const float product = code * scale, error = __builtin_fmaf(code, scale, -product);
  auto bits = std::bit_cast<uint32_t>(product);
  const bool inexact = error != 0, above = (std::bit_cast<uint32_t>(error) ^ bits) >> 31 != 0;
  bits -= inexact && above ? 1 : 0;
  return codec::encode_bf16(std::bit_cast<float>(bits | (inexact ? 1u : 0u)));
}

BoundKernel bind_dequantize(const Graph& graph, const Node& node) {
  if (!is_f32_or_bf16(node.results[0].dtype)) return nullptr;
  return [](const KernelArgs& args) {
    MatrixView view{.data = args.in[0].data,
                    .dtype = args.in[0].dtype(),
                    .rows = args.in[0].shape().rows(),
                    .cols = args.in[0].shape().cols()};
    MatrixView scales = view;
    scales.set_scales(args.in[1].as<float>(), args.in[1].shape());
    const int64_t grain = std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, view.cols));
    parallel_for(view.rows, grain, [&](int64_t begin, int64_t end) {
      float run[kScaleBlock];
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t c = 0; c < view.cols; c += kScaleBlock) {  // one scale per run with every scaling
          const int64_t count = std::min(kScaleBlock, view.cols - c);
          const float scale = scales.scale(r, c);
          load_run(view, r, c, count, run);
          if (args.out[0].dtype() == DType::kF32) {
            float* to = args.out[0].as<float>() + r * view.cols + c;
            for (int64_t i = 0; i < count; ++i) to[i] = run[i] * scale;
          } else {
            BF16* to = args.out[0].as<BF16>() + r * view.cols + c;
            for (int64_t i = 0; i < count; ++i) to[i].bits = product_to_bf16(run[i], scale);
          }
        }
      }
    });
  };
}

}  // namespace

std::vector<KernelEntry> scale_kernels() {
  return {{Op::kComputeScale, "compute_scale", bind_compute_scale},
          {Op::kUpdateScales, "update_scales", bind_update_scales},
          {Op::kDequantize, "dequantize_runs", bind_dequantize}};
}

}  // namespace octet::cpu
