// layer_norm and rms_norm: one row at a time, read from memory once (the second and third pass hit the cache).
#include <cmath>

#include "kernels/cpu/norm/row_sums.h"
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {
namespace {

using simd::Floats;

float reciprocal_root(float mean_square, double eps) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(mean_square) + eps));
}

// y = (x - mean) rstd weight + bias
template <typename T, typename W>
void layer_norm(const RowCall& call, int64_t cols, double eps) {
  const W *weight = static_cast<const W*>(call.in[1]), *bias = static_cast<const W*>(call.in[2]);
  float *means = static_cast<float*>(call.out[1]), *rstds = static_cast<float*>(call.out[2]);
  const float scale = 1.0f / static_cast<float>(cols);
  for (int64_t row = 0; row < call.rows; ++row) {
    const T* x = static_cast<const T*>(call.in[0]) + row * cols;
    const float mean =
        row_sums<1>(cols, [&](int64_t i, auto lanes) { return std::array{simd::load(x + i, lanes)}; })[0] * scale;
    const float variance = row_sums<1>(cols,
                                       [&](int64_t i, auto lanes) {
                                         const Floats d = simd::load(x + i, lanes) - mean;
                                         return std::array{d * d};
                                       })[0] *
                           scale;
    const float rstd = reciprocal_root(variance, eps);
    if (means != nullptr) means[row] = mean;
    if (rstds != nullptr) rstds[row] = rstd;
    if (call.out[0] == nullptr) continue;
    T* y = static_cast<T*>(call.out[0]) + row * cols;
    simd::for_lanes(cols, [&](int64_t i, auto lanes) {
      const Floats h = (simd::load(x + i, lanes) - mean) * rstd;
      simd::store(y + i, simd::fma(h, simd::load(weight + i, lanes), simd::load(bias + i, lanes)), lanes);
    });
  }
}

// y = x rstd weight
template <typename T, typename W>
void rms_norm(const RowCall& call, int64_t cols, double eps) {
  const W* weight = static_cast<const W*>(call.in[1]);
  float* rstds = static_cast<float*>(call.out[1]);
  const float scale = 1.0f / static_cast<float>(cols);
  for (int64_t row = 0; row < call.rows; ++row) {
    const T* x = static_cast<const T*>(call.in[0]) + row * cols;
    const float square = row_sums<1>(cols,
                                     [&](int64_t i, auto lanes) {
                                       const Floats v = simd::load(x + i, lanes);
                                       return std::array{v * v};
                                     })[0] *
                         scale;
    const float rstd = reciprocal_root(square, eps);
    if (rstds != nullptr) rstds[row] = rstd;
    if (call.out[0] == nullptr) continue;
    T* y = static_cast<T*>(call.out[0]) + row * cols;
    simd::for_lanes(cols, [&](int64_t i, auto lanes) {
      simd::store(y + i, simd::load(x + i, lanes) * rstd * simd::load(weight + i, lanes), lanes);
    });
  }
}

}  // namespace

std::optional<RowKernel> norm_row_kernel(const Graph& graph, const Node& node) {
  const DType dtype = node.results[0].dtype, weight = graph.dtype(node.inputs[1]);
  const bool layer = node.op == Op::kLayerNorm;
  bool known = graph.dtype(node.inputs[0]) == dtype && is_f32_or_bf16(dtype) && is_f32_or_bf16(weight);
  if (layer) known = known && graph.dtype(node.inputs[2]) == weight;
  for (size_t i = 1; i < node.results.size(); ++i) known = known && node.results[i].dtype == DType::kF32;
  if (!known) return std::nullopt;
  const int64_t cols = node.results[0].shape.cols();
  const double eps = node.attr<double>("eps");
  RowKernel kernel{node.results[0].shape.rows()};
  kernel.in.assign(node.inputs.size(), OperandMapping::kWhole);
  kernel.in[0] = OperandMapping::kRows;
  kernel.out.assign(node.results.size(), OperandMapping::kRows);
  with_float_type(dtype, [&]<typename T>(T) {
    with_float_type(weight, [&]<typename W>(W) {
      if (layer) {
        kernel.run = [=](const RowCall& call) { layer_norm<T, W>(call, cols, eps); };
      } else {
        kernel.run = [=](const RowCall& call) { rms_norm<T, W>(call, cols, eps); };
      }
    });
  });
  return kernel;
}

}  // namespace octet::cpu
