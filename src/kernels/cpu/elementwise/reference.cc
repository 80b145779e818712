// Elementwise ops on doubles. b of the binary ops may be the full shape, [C] against the last dim, or [1].
#include "kernels/cpu/reference.h"
#include "kernels/common/keep_rule.h"

namespace octet::cpu::reference {
namespace {

constexpr double kSqrt2OverPi = 0.79788456080286535587989211986876;  // sqrt(2/pi)
constexpr double kInvSqrt2 = 0.70710678118654752440084436210485;
constexpr double kInvSqrt2Pi = 0.39894228040143267793994605993438;  // 1/sqrt(2 pi)
constexpr double kCubic = 0.044715;

template <typename Fn>
void map(RefInputs in, RefResults out, Fn fn) {
  const auto& x = in[0]->values;
  for (size_t i = 0; i < x.size(); ++i) out[0].values[i] = fn(x[i]);
}

template <typename Fn>
void map_gradient(RefInputs in, RefResults out, Fn slope) {
  const auto& x = in[0]->values;
  const auto& dy = in[1]->values;
  for (size_t i = 0; i < x.size(); ++i) out[0].values[i] = dy[i] * slope(x[i]);
}

template <typename Fn>
void binary(RefInputs in, RefResults out, Fn fn) {
  const auto& a = in[0]->values;
  const auto& b = in[1]->values;
  const size_t period = b.size();  // a.size(), C or 1: b repeats along the rows
  for (size_t i = 0, j = 0; i < a.size(); ++i) {
    out[0].values[i] = fn(a[i], b[j]);
    if (++j == period) j = 0;
  }
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

void cast(const Node&, RefInputs in, RefResults out) { out[0].values = in[0]->values; }

void scale(const Node& node, RefInputs in, RefResults out) {
  const double value = node.attr<double>("value");
  map(in, out, [=](double x) { return x * value; });
}

// gelu(x) = x Phi(x); tanh form: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
void gelu(const Node& node, RefInputs in, RefResults out) {
  if (node.attr<bool>("approximate")) {
    map(in, out, [](double x) { return 0.5 * x * (1 + std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x))); });
  } else {
    map(in, out, [](double x) { return 0.5 * x * std::erfc(-x * kInvSqrt2); });
  }
}

// d/dx x Phi(x) = Phi(x) + x phi(x)
void gelu_grad(const Node& node, RefInputs in, RefResults out) {
  if (node.attr<bool>("approximate")) {
    map_gradient(in, out, [](double x) {
      const double t = std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kSqrt2OverPi * (1 + 3 * kCubic * x * x);
    });
  } else {
    map_gradient(in, out,
                 [](double x) { return 0.5 * std::erfc(-x * kInvSqrt2) + x * kInvSqrt2Pi * std::exp(-0.5 * x * x); });
  }
}

void silu(const Node&, RefInputs in, RefResults out) {
  map(in, out, [](double x) { return x * sigmoid(x); });
}
void silu_grad(const Node&, RefInputs in, RefResults out) {
  map_gradient(in, out, [](double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); });
}
void tanh(const Node&, RefInputs in, RefResults out) {
  map(in, out, [](double x) { return std::tanh(x); });
}
void relu(const Node&, RefInputs in, RefResults out) {
  map(in, out, [](double x) { return x < 0 ? 0.0 : x; });  // NaN propagates
}
void relu_grad(const Node&, RefInputs in, RefResults out) {
  map_gradient(in, out, [](double x) { return x > 0 ? 1.0 : 0.0; });
}

void add(const Node&, RefInputs in, RefResults out) {
  binary(in, out, [](double a, double b) { return a + b; });
}
void sub(const Node&, RefInputs in, RefResults out) {
  binary(in, out, [](double a, double b) { return a - b; });
}
void mul(const Node&, RefInputs in, RefResults out) {
  binary(in, out, [](double a, double b) { return a * b; });
}
void maximum(const Node&, RefInputs in, RefResults out) {
  binary(in, out, [](double a, double b) { return std::isnan(a) || a > b ? a : b; });  // a NaN of either propagates
}

// x * keep / (1 - p); keep = uniform(seed, step, micro-batch, key, element) >= p. Of 8 bits: byte element % 16 of draw
// element / 16 is not below the threshold.
void dropout(const Node& node, RefInputs in, RefResults out) {
  const double p = node.attr<double>("p");
  const auto key = static_cast<uint32_t>(node.attr<int64_t>("key"));
  const KeepRule rule(node, p);
  // A part of a matrix takes the elements of the whole: first row, first column, columns of the whole.
  const int64_t cols = in[0]->cols();
  const auto part = node.attrs.get_or<std::vector<int64_t>>("origin", {0, 0, cols});
  for (int64_t r = 0; r < in[0]->rows(); ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const auto element = static_cast<uint64_t>((part[0] + r) * part[2] + part[1] + c);
      if (rule.bytes) {
        const bool keep =
            byte_of(random_block(*in[1], key, element / 16), static_cast<int>(element % 16)) >= rule.threshold;
        out[0].row(r)[c] = keep ? in[0]->row(r)[c] * rule.factor : 0.0;
        continue;
      }
      const bool keep = uniform_from_bits(random_block(*in[1], key, element / 4)[element % 4]) >= p;
      out[0].row(r)[c] = keep ? in[0]->row(r)[c] / (1 - p) : 0.0;
    }
  }
}

}  // namespace octet::cpu::reference
