// layer_norm and rms_norm, one row at a time, read from memory once (the second and third pass hit the cache), and
// their gradients from the saved statistics. dweight and dbias are sums over rows, which row programs make independent
// of the number of threads.
//
// With h = (x - mean) rstd (rms_norm: mean 0) and g = dy weight:
//   y = h weight + bias (rms_norm: bias 0);
//   dx = rstd (g - mean(g) - h mean(g h)), without mean(g) for rms_norm;  dweight = sum dy h;  dbias = sum dy.
#include <array>
#include <cmath>

#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {
namespace {

using simd::Floats;

// Sums along a row, kCount at a time, in an order that depends on the row's length only. terms(i, lanes) returns kCount
// vectors; the last, partial one is masked here.
template <int kCount, typename Terms>
OCTET_SIMD std::array<float, kCount> row_sums(int64_t cols, const Terms& terms) {
  Floats even[kCount]{}, odd[kCount]{};  // two chains of additions
  int64_t i = 0;
  for (; i + 2 * simd::kLanes <= cols; i += 2 * simd::kLanes) {
    const std::array<Floats, kCount> a = terms(i, simd::Full{}), b = terms(i + simd::kLanes, simd::Full{});
    for (int k = 0; k < kCount; ++k) even[k] += a[k], odd[k] += b[k];
  }
  for (; i + simd::kLanes <= cols; i += simd::kLanes) {
    const std::array<Floats, kCount> a = terms(i, simd::Full{});
    for (int k = 0; k < kCount; ++k) even[k] += a[k];
  }
  if (i < cols) {
    const simd::Part part{cols - i};
    const std::array<Floats, kCount> a = terms(i, part);
    for (int k = 0; k < kCount; ++k) odd[k] += simd::keep(a[k], part, Floats{});
  }
  std::array<float, kCount> sums;
  for (int k = 0; k < kCount; ++k) sums[k] = simd::sum(even[k] + odd[k]);
  return sums;
}

// inputs: x, weight(, bias); results: y, (mean,) rstd
template <typename T, typename W, bool kLayer>
void norm(const RowCall& call, int64_t cols, double eps) {
  const W *weight = static_cast<const W*>(call.in[1]), *bias = kLayer ? static_cast<const W*>(call.in[2]) : nullptr;
  float *means = kLayer ? static_cast<float*>(call.out[1]) : nullptr,
        *rstds = static_cast<float*>(call.out[kLayer ? 2 : 1]);
  const float scale = 1.0f / static_cast<float>(cols);
  for (int64_t row = 0; row < call.rows; ++row) {
    const T* x = static_cast<const T*>(call.in[0]) + row * cols;
    const auto value = [&](int64_t i, auto lanes) { return std::array{simd::load(x + i, lanes)}; };
    const float mean = kLayer ? row_sums<1>(cols, value)[0] * scale : 0.0f;
    const auto square = [&](int64_t i, auto lanes) {
      const Floats d = simd::load(x + i, lanes) - mean;
      return std::array{d * d};
    };
    const float variance = row_sums<1>(cols, square)[0] * scale;
    const auto rstd = static_cast<float>(1 / std::sqrt(static_cast<double>(variance) + eps));
    if (means != nullptr) means[row] = mean;
    if (rstds != nullptr) rstds[row] = rstd;
    if (call.out[0] == nullptr) continue;
    T* y = static_cast<T*>(call.out[0]) + row * cols;
    simd::for_lanes(cols, [&](int64_t i, auto lanes) {
      const Floats h = (simd::load(x + i, lanes) - mean) * rstd, w = simd::load(weight + i, lanes);
      if constexpr (kLayer) {
        simd::store(y + i, simd::fma(h, w, simd::load(bias + i, lanes)), lanes);
      } else {
        simd::store(y + i, h * w, lanes);
      }
    });
  }
}

// inputs: x, weight, (mean,) rstd, dy; results: dx, dweight(, dbias)
template <typename T, typename W, bool kLayer>
void norm_grad(const RowCall& call, int64_t cols) {
  const W* weight = static_cast<const W*>(call.in[1]);
  const float* means = kLayer ? static_cast<const float*>(call.in[2]) : nullptr;
  const float* rstds = static_cast<const float*>(call.in[kLayer ? 3 : 2]);
  float* dweight = static_cast<float*>(call.out[1]);
  float* dbias = kLayer ? static_cast<float*>(call.out[2]) : nullptr;
  const float scale = 1.0f / static_cast<float>(cols);
  for (int64_t row = 0; row < call.rows; ++row) {
    const T* x = static_cast<const T*>(call.in[0]) + row * cols;
    const T* dy = static_cast<const T*>(call.in[kLayer ? 4 : 3]) + row * cols;
    const float mean = kLayer ? means[row] : 0.0f, rstd = rstds[row];
    const auto normalised = [&](int64_t i, auto lanes) { return (simd::load(x + i, lanes) - mean) * rstd; };
    if (dweight != nullptr || dbias != nullptr) {
      simd::for_lanes(cols, [&](int64_t i, auto lanes) {
        const Floats d = simd::load(dy + i, lanes);
        if (dweight != nullptr) {
          simd::store(dweight + i, simd::fma(d, normalised(i, lanes), simd::load(dweight + i, lanes)), lanes);
        }
        if (dbias != nullptr) simd::store(dbias + i, d + simd::load(dbias + i, lanes), lanes);
      });
    }
    if (call.out[0] == nullptr) continue;
    const auto [sum_g, sum_gh] = row_sums<2>(cols, [&](int64_t i, auto lanes) {
      const Floats g = simd::load(dy + i, lanes) * simd::load(weight + i, lanes);
      return std::array{g, g * normalised(i, lanes)};
    });
    const float mean_g = kLayer ? sum_g * scale : 0.0f, mean_gh = sum_gh * scale;
    T* dx = static_cast<T*>(call.out[0]) + row * cols;
    simd::for_lanes(cols, [&](int64_t i, auto lanes) {
      const Floats g = simd::load(dy + i, lanes) * simd::load(weight + i, lanes) - mean_g;
      simd::store(dx + i, rstd * simd::fma(-normalised(i, lanes), mean_gh, g), lanes);
    });
  }
}

// run.operator()<T, W, kLayer>() with the types of x and of the weight.
template <typename Run>
void with_norm_types(DType x, DType weight, bool layer, const Run& run) {
  with_float_type(x, [&]<typename T>(T) {
    with_float_type(weight, [&]<typename W>(W) {
      layer ? run.template operator()<T, W, true>() : run.template operator()<T, W, false>();
    });
  });
}

}  // namespace

std::optional<RowKernel> norm_row_kernel(const Graph& graph, const Node& node, RowUse) {
  const DType dtype = node.results[0].dtype, weight = graph.dtype(node.inputs[1]);
  const bool layer = node.op == Op::kLayerNorm;
  if (!is_f32_or_bf16(dtype) || !is_f32_or_bf16(weight)) return std::nullopt;
  if (layer && graph.dtype(node.inputs[2]) != weight) return std::nullopt;
  const int64_t cols = node.results[0].shape.cols();
  const double eps = node.attr<double>("eps");
  RowKernel kernel{node.results[0].shape.rows()};
  kernel.in.assign(node.inputs.size(), OperandMapping::kWhole);
  kernel.in[0] = OperandMapping::kRows;
  kernel.out.assign(node.results.size(), OperandMapping::kRows);
  with_norm_types(dtype, weight, layer, [&]<typename T, typename W, bool kLayer>() {
    kernel.run = [=](const RowCall& call) { norm<T, W, kLayer>(call, cols, eps); };
  });
  return kernel;
}

std::optional<RowKernel> norm_grad_row_kernel(const Graph& graph, const Node& node, RowUse) {
  const bool layer = node.op == Op::kLayerNormGrad;
  const DType dtype = node.results[0].dtype, weight = graph.dtype(node.inputs[1]), dy = graph.dtype(node.inputs.back());
  if (!is_f32_or_bf16(dtype) || !is_f32_or_bf16(weight) || dy != dtype) return std::nullopt;
  const int64_t cols = node.results[0].shape.cols();
  RowKernel kernel{node.results[0].shape.rows()};
  kernel.in.assign(node.inputs.size(), OperandMapping::kRows);
  kernel.in[1] = OperandMapping::kWhole;
  kernel.out.assign(node.results.size(), OperandMapping::kSum);
  kernel.out[0] = OperandMapping::kRows;
  with_norm_types(dtype, weight, layer, [&]<typename T, typename W, bool kLayer>() {
    kernel.run = [=](const RowCall& call) { norm_grad<T, W, kLayer>(call, cols); };
  });
  return kernel;
}

}  // namespace octet::cpu
