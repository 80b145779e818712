// cast, scale, and the activations with their gradients, on float32 and bf16: one pass, computed in float32.
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

using simd::Floats;

constexpr float kSqrt2OverPi = 0.79788456f, kInvSqrt2 = 0.70710678f, kInvSqrt2Pi = 0.39894228f, kCubic = 0.044715f;

// tanh form: x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
OCTET_SIMD Floats gelu_tanh(Floats x) {
  const Floats u2 = 2 * kSqrt2OverPi * x * simd::fma(kCubic * x, x, simd::broadcast(1.0f));
  return x * simd::sigmoid(u2);
}

// With s = sigmoid(2u): s + 2 x s (1 - s) du/dx. Beyond +-20 it is exactly 1 and 0 and x^2 may overflow.
OCTET_SIMD Floats gelu_tanh_slope(Floats x) {
  x = x > 20.0f ? simd::broadcast(20.0f) : x;
  x = x < -20.0f ? simd::broadcast(-20.0f) : x;
  const Floats square = x * x;
  const Floats s = simd::sigmoid(2 * kSqrt2OverPi * x * simd::fma(square, kCubic, simd::broadcast(1.0f)));
  const Floats du = kSqrt2OverPi * simd::fma(square, 3 * kCubic, simd::broadcast(1.0f));
  return simd::fma(2 * x * s * (1.0f - s), du, s);
}

OCTET_SIMD Floats gelu_erf(Floats x) { return 0.5f * x * simd::erfc(-kInvSqrt2 * x); }

OCTET_SIMD Floats gelu_erf_slope(Floats x) {
  return simd::fma(kInvSqrt2Pi * x, simd::exp(-0.5f * x * x), 0.5f * simd::erfc(-kInvSqrt2 * x));
}

OCTET_SIMD Floats silu(Floats x) { return x * simd::sigmoid(x); }

OCTET_SIMD Floats silu_slope(Floats x) {
  const Floats s = simd::sigmoid(x);
  return s * simd::fma(x, 1.0f - s, simd::broadcast(1.0f));
}

OCTET_SIMD Floats relu(Floats x) { return x < 0.0f ? Floats{} : x; }
OCTET_SIMD Floats relu_slope(Floats x) { return x > 0.0f ? simd::broadcast(1.0f) : Floats{}; }

// y = fn(x)
template <typename Fn>
std::optional<RowKernel> map(const Graph& graph, const Node& node, RowUse use, Fn fn) {
  const DType dtype = node.results[0].dtype;
  if (graph.dtype(node.inputs[0]) != dtype || !is_f32_or_bf16(dtype)) return std::nullopt;
  const ElementRows at(node.results[0].shape, use, false);
  RowKernel kernel{at.rows, {OperandMapping::kRows}, {OperandMapping::kRows}, {}, 0, at.alignment};
  with_float_type(dtype, [&]<typename T>(T) {
    kernel.run = [fn, cols = at.cols](const RowCall& call) {
      const T* x = static_cast<const T*>(call.in[0]);
      T* y = static_cast<T*>(call.out[0]);
      simd::for_lanes(call.rows * cols,
                      [&](int64_t i, auto lanes) { simd::store(y + i, fn(simd::load(x + i, lanes)), lanes); });
    };
  });
  return kernel;
}

// dx = dy slope(x)
template <typename Fn>
std::optional<RowKernel> map_gradient(const Graph& graph, const Node& node, RowUse use, Fn slope) {
  const DType dtype = node.results[0].dtype;
  if (graph.dtype(node.inputs[0]) != dtype || graph.dtype(node.inputs[1]) != dtype || !is_f32_or_bf16(dtype)) {
    return std::nullopt;
  }
  const ElementRows at(node.results[0].shape, use, false);
  RowKernel kernel{at.rows,     {OperandMapping::kRows, OperandMapping::kRows}, {OperandMapping::kRows}, {}, 0,
                   at.alignment};
  with_float_type(dtype, [&]<typename T>(T) {
    kernel.run = [slope, cols = at.cols](const RowCall& call) {
      const T *x = static_cast<const T*>(call.in[0]), *dy = static_cast<const T*>(call.in[1]);
      T* dx = static_cast<T*>(call.out[0]);
      simd::for_lanes(call.rows * cols, [&](int64_t i, auto lanes) {
        simd::store(dx + i, simd::load(dy + i, lanes) * slope(simd::load(x + i, lanes)), lanes);
      });
    };
  });
  return kernel;
}

std::optional<RowKernel> cast(const Graph& graph, const Node& node, RowUse use) {
  const DType from = graph.dtype(node.inputs[0]), to = node.results[0].dtype;
  if (!is_float(from) || !is_float(to)) return std::nullopt;
  const ElementRows at(node.results[0].shape, use, false);
  const auto run = [=, cols = at.cols](const RowCall& call) {
    convert(from, call.in[0], to, call.out[0], call.rows * cols);
  };
  return RowKernel{at.rows, {OperandMapping::kRows}, {OperandMapping::kRows}, run, 0, at.alignment};
}

}  // namespace

std::optional<RowKernel> unary_row_kernel(const Graph& graph, const Node& node, RowUse use) {
  const bool gelu = node.op == Op::kGelu || node.op == Op::kGeluGrad;
  const bool tanh_form = gelu && node.attr<bool>("approximate");
  switch (node.op) {
    case Op::kCast: return cast(graph, node, use);
    case Op::kScale: {
      const auto factor = static_cast<float>(node.attr<double>("value"));
      return map(graph, node, use, [factor](Floats x) { return x * factor; });
    }
    case Op::kGelu:
      return tanh_form ? map(graph, node, use, [](Floats x) { return gelu_tanh(x); })
                       : map(graph, node, use, [](Floats x) { return gelu_erf(x); });
    case Op::kGeluGrad:
      return tanh_form ? map_gradient(graph, node, use, [](Floats x) { return gelu_tanh_slope(x); })
                       : map_gradient(graph, node, use, [](Floats x) { return gelu_erf_slope(x); });
    case Op::kSilu: return map(graph, node, use, [](Floats x) { return silu(x); });
    case Op::kSiluGrad: return map_gradient(graph, node, use, [](Floats x) { return silu_slope(x); });
    case Op::kRelu: return map(graph, node, use, [](Floats x) { return relu(x); });
    case Op::kReluGrad: return map_gradient(graph, node, use, [](Floats x) { return relu_slope(x); });
    default: return std::nullopt;
  }
}

}  // namespace octet::cpu
