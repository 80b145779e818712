// AdamW over float32 parameters, moments and gradients (or bf16 gradients): one in-place pass through memory. The
// order of operations is torch.optim.AdamW's, in float32.
#include <cmath>
#include <cstring>

#include "base/threads.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

using simd::Floats;

constexpr int64_t kGrain = 16 * 1024;

bool accepts(const Graph& graph, const Node& node) {
  for (size_t i : {0, 2, 3, 4, 5, 6, 7}) {
    if (graph.dtype(node.inputs[i]) != DType::kF32) return false;
  }
  for (const TensorType& result : node.results) {
    if (result.dtype != DType::kF32) return false;
  }
  return is_f32_or_bf16(graph.dtype(node.inputs[1]));
}

struct Constants {
  float clip, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, eps;
};

// g = grad clip; p *= 1 - lr wd; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
// p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
template <typename G>
void update(const KernelArgs& args, const Constants& k, int64_t begin, int64_t end) {
  const float *p = args.in[0].as<const float>() + begin, *m = args.in[2].as<const float>() + begin,
              *v = args.in[3].as<const float>() + begin;
  const G* grad = args.in[1].as<const G>() + begin;
  const auto result = [&](size_t i) { return args.out[i].data == nullptr ? nullptr : args.out[i].as<float>() + begin; };
  float *new_p = result(0), *new_m = result(1), *new_v = result(2);
  simd::for_lanes(end - begin, [&](int64_t i, auto lanes) {
    const Floats g = simd::load(grad + i, lanes) * k.clip;
    const Floats m1 = simd::fma(simd::load(m + i, lanes), k.beta1, g * k.one_minus_beta1);
    const Floats v1 = simd::fma(simd::load(v + i, lanes), k.beta2, g * g * k.one_minus_beta2);
    const Floats denominator = simd::sqrt(v1) * k.root_correction + k.eps;
    const Floats p1 = simd::load(p + i, lanes) * k.decay - k.step_size * (m1 / denominator);
    if (new_p != nullptr) simd::store(new_p + i, p1, lanes);
    if (new_m != nullptr) simd::store(new_m + i, m1, lanes);
    if (new_v != nullptr) simd::store(new_v + i, v1, lanes);
  });
}

void copy_unless_same(const Tensor& from, const Tensor& to) {
  if (to.data != nullptr && from.data != to.data)
    std::memcpy(to.data, from.data, static_cast<size_t>(to.type->bytes()));
}

BoundKernel bind(const Graph& graph, const Node& node) {
  const double beta1 = node.attr<double>("beta1"), beta2 = node.attr<double>("beta2");
  const double eps = node.attr<double>("eps"), weight_decay = node.attr<double>("weight_decay");
  const int64_t count = node.results[0].shape.elements();
  const bool bf16 = graph.dtype(node.inputs[1]) == DType::kBF16;
  return [=](const KernelArgs& args) {
    const auto scalar = [&](size_t i) { return static_cast<double>(*args.in[i].as<const float>()); };
    if (scalar(7) == 0) {
      copy_unless_same(args.in[0], args.out[0]);
      copy_unless_same(args.in[2], args.out[1]);
      copy_unless_same(args.in[3], args.out[2]);
      return;
    }
    const double lr = scalar(4), step = scalar(5);
    const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
    const Constants k{static_cast<float>(scalar(6)),
                      static_cast<float>(1 - lr * weight_decay),
                      static_cast<float>(beta1),
                      static_cast<float>(1 - beta1),
                      static_cast<float>(beta2),
                      static_cast<float>(1 - beta2),
                      static_cast<float>(lr / correction1),
                      static_cast<float>(1 / std::sqrt(correction2)),
                      static_cast<float>(eps)};
    parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
      bf16 ? update<BF16>(args, k, begin, end) : update<float>(args, k, begin, end);
    });
  };
}

}  // namespace

std::span<const KernelEntry> adamw_kernels() {
  static const KernelEntry kernels[] = {{Op::kAdamw, "adamw_f32", accepts, bind}};
  return kernels;
}

}  // namespace octet::cpu
