// Elementwise ops on float32 and bf16: one pass, computed in float32. b of the binary ops has the shape of a, or is [C]
// against the last dim, or [1]. dropout divides kept elements by 1 - p; each element has its own random word, so
// results do not depend on the split.
#include "kernels/common/keep_rule.h"
#include "kernels/common/parts.h"
#include "kernels/cpu/random_words.h"
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {
namespace {

using simd::Floats;

constexpr float kSqrt2OverPi = 0.79788456f, kInvSqrt2 = 0.70710678f, kInvSqrt2Pi = 0.39894228f, kCubic = 0.044715f;
constexpr int64_t kPiece = 512;  // elements whose random words fit the level 1 cache

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

OCTET_SIMD Floats gelu_erf_slope(Floats x) {
  return simd::fma(kInvSqrt2Pi * x, simd::exp(-0.5f * x * x), 0.5f * simd::erfc(-kInvSqrt2 * x));
}

// Near zero 2 sigmoid(2 x) - 1 cancels: there x (1 - x^2 / 3 + 2 x^4 / 15 - 17 x^6 / 315).
OCTET_SIMD Floats tanh_of(Floats x) {
  const Floats square = x * x;
  Floats series = simd::fma(square, -17.0f / 315, simd::broadcast(2.0f / 15));
  series = simd::fma(square, series, simd::broadcast(-1.0f / 3));
  series = simd::fma(x * square, series, x);
  return simd::abs(x) < 0.15f ? series : 2.0f * simd::sigmoid(2.0f * x) - 1.0f;
}

OCTET_SIMD Floats silu_slope(Floats x) {
  const Floats s = simd::sigmoid(x);
  return s * simd::fma(x, 1.0f - s, simd::broadcast(1.0f));
}

// A kernel whose first result has the rows of its operands; run(call, cols) computes call.rows rows of `cols` elements:
// those of the shape or, if it runs alone without broadcasts along rows, every element is a row, so that [1, N] is
// split as well as [N, 1].
template <typename Run>
RowKernel element_kernel(const Node& node, RowUse use, std::vector<OperandMapping> in, bool row_broadcast, Run run) {
  const Shape& shape = node.results[0].shape;
  const bool flat = use == RowUse::kAlone && !row_broadcast;
  const int64_t cols = flat ? 1 : shape.cols();
  return {.rows = flat ? shape.elements() : shape.rows(),
          .in = std::move(in),
          .out = {OperandMapping::kRows},
          .run = [run = std::move(run), cols](const RowCall& call) { run(call, cols); },
          .row_alignment = flat ? 64 : 1};
}

template <typename X, typename Y, typename Fn>
void map(const X* x, Y* y, int64_t count, const Fn& fn) {
  simd::for_lanes(count, [&](int64_t i, auto lanes) { simd::store(y + i, fn(simd::load(x + i, lanes)), lanes); });
}

template <typename A, typename B, typename Y, typename Fn>
void zip(const A* a, const B* b, Y* y, int64_t count, const Fn& fn) {
  simd::for_lanes(count, [&](int64_t i, auto lanes) {
    simd::store(y + i, fn(simd::load(a + i, lanes), simd::load(b + i, lanes)), lanes);
  });
}

// y = fn(x)
template <typename Fn>
std::optional<RowKernel> mapped(const Node& node, RowUse use, Fn fn) {
  if (!is_f32_or_bf16(node.results[0].dtype)) return std::nullopt;
  return with_float_type(node.results[0].dtype, [&]<typename T>(T) {
    return element_kernel(node, use, {OperandMapping::kRows}, false, [fn](const RowCall& call, int64_t cols) {
      map(static_cast<const T*>(call.in[0]), static_cast<T*>(call.out[0]), call.rows * cols, fn);
    });
  });
}

// dx = dy slope(x)
template <typename Fn>
std::optional<RowKernel> gradient(const Graph& graph, const Node& node, RowUse use, Fn slope) {
  const DType dtype = node.results[0].dtype;
  if (!is_f32_or_bf16(dtype) || graph.dtype(node.inputs[1]) != dtype) return std::nullopt;
  return with_float_type(dtype, [&]<typename T>(T) {
    return element_kernel(
        node, use, {OperandMapping::kRows, OperandMapping::kRows}, false, [slope](const RowCall& call, int64_t cols) {
          zip(static_cast<const T*>(call.in[0]), static_cast<const T*>(call.in[1]), static_cast<T*>(call.out[0]),
              call.rows * cols, [&](Floats x, Floats dy) { return dy * slope(x); });
        });
  });
}

enum class Broadcast : uint8_t { kNone, kRow, kScalar };

// y = fn(a, b), in the type of a.
template <typename Fn>
std::optional<RowKernel> combined(const Graph& graph, const Node& node, RowUse use, Fn fn) {
  const TensorType &a = graph.type(node.inputs[0]), &b = graph.type(node.inputs[1]);
  if (!is_f32_or_bf16(a.dtype) || !is_f32_or_bf16(b.dtype)) return std::nullopt;
  const int64_t others = b.shape.elements();
  const Broadcast broadcast = others == a.shape.elements() ? Broadcast::kNone
                              : others == 1                ? Broadcast::kScalar
                                                           : Broadcast::kRow;
  const OperandMapping follow = broadcast == Broadcast::kNone ? OperandMapping::kRows : OperandMapping::kWhole;
  const auto kernel = [&]<typename A, typename B>() {
    return element_kernel(node, use, {OperandMapping::kRows, follow}, broadcast == Broadcast::kRow,
                          [broadcast, fn](const RowCall& call, int64_t cols) {
                            const A* from = static_cast<const A*>(call.in[0]);
                            const B* with = static_cast<const B*>(call.in[1]);
                            A* to = static_cast<A*>(call.out[0]);
                            if (broadcast == Broadcast::kNone) return zip(from, with, to, call.rows * cols, fn);
                            if (broadcast == Broadcast::kScalar) {
                              const Floats value = simd::broadcast(simd::load(with, simd::Part{1})[0]);
                              return map(from, to, call.rows * cols, [&](Floats v) { return fn(v, value); });
                            }
                            for (int64_t row = 0; row < call.rows; ++row)
                              zip(from + row * cols, with, to + row * cols, cols, fn);
                          });
  };
  return with_float_type(a.dtype, [&]<typename A>(A) {
    return with_float_type(b.dtype, [&]<typename B>(B) { return kernel.template operator()<A, B>(); });
  });
}

// Elements first, first + 1, .. of the site.
template <typename T>
void drop(const RandomStream& stream, const T* x, T* y, int64_t count, int64_t first, const KeepRule& rule) {
  alignas(64) uint32_t buffer[kPiece + kRandomGroup + simd::kLanes];
  const uint32_t threshold = rule.threshold;
  const auto factor = static_cast<float>(rule.factor);
  if (rule.bytes) {
    for (int64_t done = 0; done < count; done += kPiece) {
      const int64_t piece = std::min(kPiece, count - done), skip = (first + done) % 16;
      random_words(stream, static_cast<uint64_t>(first + done) / 16 * 4, (piece + skip + 15) / 16 * 4, buffer);
      const auto* bytes = reinterpret_cast<const uint8_t*>(buffer) + skip;
      simd::for_lanes(piece, [&](int64_t i, auto lanes) {
        simd::Words bits;
        for (int64_t lane = 0; lane < simd::kLanes; ++lane) bits[lane] = bytes[i + lane];
        const Floats kept = simd::load(x + done + i, lanes) * factor;
        simd::store(y + done + i, bits >= threshold ? kept : Floats{}, lanes);
      });
    }
    return;
  }
  for (int64_t done = 0; done < count; done += kPiece) {
    const int64_t piece = std::min(kPiece, count - done);
    const uint32_t* words = random_words(stream, static_cast<uint64_t>(first + done), piece, buffer);
    simd::for_lanes(piece, [&](int64_t i, auto lanes) {
      simd::Words bits;
      std::memcpy(&bits, words + i, sizeof bits);
      const Floats kept = simd::load(x + done + i, lanes) * factor;
      simd::store(y + done + i, (bits >> 8) >= threshold ? kept : Floats{}, lanes);
    });
  }
}

}  // namespace

std::optional<RowKernel> cast_row_kernel(const Graph& graph, const Node& node, RowUse use) {
  const DType from = graph.dtype(node.inputs[0]), to = node.results[0].dtype;
  if (!is_float(from) || !is_float(to)) return std::nullopt;
  return element_kernel(node, use, {OperandMapping::kRows}, false, [=](const RowCall& call, int64_t cols) {
    convert(from, call.in[0], to, call.out[0], call.rows * cols);
  });
}

std::optional<RowKernel> unary_row_kernel(const Graph& graph, const Node& node, RowUse use) {
  const bool gelu = node.op == Op::kGelu || node.op == Op::kGeluGrad;
  const bool tanh_form = gelu && node.attr<bool>("approximate");
  switch (node.op) {
    case Op::kScale: {
      const auto factor = static_cast<float>(node.attr<double>("value"));
      return mapped(node, use, [factor](Floats x) { return x * factor; });
    }
    case Op::kGelu:
      return tanh_form ? mapped(node, use, [](Floats x) { return gelu_tanh(x); })
                       : mapped(node, use, [](Floats x) { return 0.5f * x * simd::erfc(-kInvSqrt2 * x); });
    case Op::kGeluGrad:
      return tanh_form ? gradient(graph, node, use, [](Floats x) { return gelu_tanh_slope(x); })
                       : gradient(graph, node, use, [](Floats x) { return gelu_erf_slope(x); });
    case Op::kSilu: return mapped(node, use, [](Floats x) { return x * simd::sigmoid(x); });
    case Op::kSiluGrad: return gradient(graph, node, use, [](Floats x) { return silu_slope(x); });
    case Op::kTanh: return mapped(node, use, [](Floats x) { return tanh_of(x); });
    case Op::kRelu: return mapped(node, use, [](Floats x) { return x < 0.0f ? Floats{} : x; });
    case Op::kReluGrad:
      return gradient(graph, node, use, [](Floats x) { return x > 0.0f ? simd::broadcast(1.0f) : Floats{}; });
    default: return std::nullopt;
  }
}

std::optional<RowKernel> binary_row_kernel(const Graph& graph, const Node& node, RowUse use) {
  switch (node.op) {
    case Op::kAdd: return combined(graph, node, use, [](Floats a, Floats b) { return a + b; });
    case Op::kSub: return combined(graph, node, use, [](Floats a, Floats b) { return a - b; });
    case Op::kMul: return combined(graph, node, use, [](Floats a, Floats b) { return a * b; });
    case Op::kMaximum: return combined(graph, node, use, [](Floats a, Floats b) { return simd::maximum(a, b); });
    default: return std::nullopt;
  }
}

std::optional<RowKernel> dropout_row_kernel(const Graph&, const Node& node, RowUse use) {
  if (!is_f32_or_bf16(node.results[0].dtype)) return std::nullopt;
  const double p = node.attr<double>("p");
  const auto key = static_cast<uint32_t>(node.attr<int64_t>("key"));
  const KeepRule rule(node, p);
  const MatrixPart part(node, node.results[0].shape.cols());
  const bool whole_rows = part.stride == node.results[0].shape.cols();
  return with_float_type(node.results[0].dtype, [&]<typename T>(T) {
    const auto run = [=](const RowCall& call, int64_t cols) {
      const RandomStream stream = RandomStream::of(static_cast<const int64_t*>(call.in[1]), key);
      const T* x = static_cast<const T*>(call.in[0]);
      T* y = static_cast<T*>(call.out[0]);
      const int64_t first = part.first + call.first_row * (whole_rows ? cols : part.stride);
      if (whole_rows) return drop(stream, x, y, call.rows * cols, first, rule);
      for (int64_t row = 0; row < call.rows; ++row)
        drop(stream, x + row * cols, y + row * cols, cols, first + row * part.stride, rule);
    };
    return element_kernel(node, use, {OperandMapping::kRows, OperandMapping::kWhole}, !whole_rows, run);
  });
}

}  // namespace octet::cpu
