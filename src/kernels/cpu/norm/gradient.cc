// Gradients of the norms from the saved statistics. dweight and dbias are sums over rows, which row programs make
// independent of the number of threads.
//
// With h = (x - mean) rstd (rms_norm: mean 0) and g = dy weight:
//   dx = rstd (g - mean(g) - h mean(g h)), without mean(g) for rms_norm;  dweight = sum dy h;  dbias = sum dy.
#include "kernels/cpu/norm/row_sums.h"
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {
namespace {

using simd::Floats;

template <typename T, typename W, bool kLayer>
void norm_grad(const RowCall& call, int64_t cols) {
  // inputs: x, weight, (mean,) rstd, dy; results: dx, dweight(, dbias)
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

}  // namespace

std::optional<RowKernel> norm_grad_row_kernel(const Graph& graph, const Node& node) {
  const bool layer = node.op == Op::kLayerNormGrad;
  const size_t dy = layer ? 4 : 3;
  const DType dtype = node.results[0].dtype, weight = graph.dtype(node.inputs[1]);
  bool known = is_f32_or_bf16(dtype) && is_f32_or_bf16(weight) && graph.dtype(node.inputs[0]) == dtype &&
               graph.dtype(node.inputs[dy]) == dtype;
  for (size_t i = 2; i < dy; ++i) known = known && graph.dtype(node.inputs[i]) == DType::kF32;
  if (!known) return std::nullopt;
  const int64_t cols = node.results[0].shape.cols();
  RowKernel kernel{node.results[0].shape.rows()};
  kernel.in.assign(node.inputs.size(), OperandMapping::kRows);
  kernel.in[1] = OperandMapping::kWhole;
  kernel.out.assign(node.results.size(), OperandMapping::kSum);
  kernel.out[0] = OperandMapping::kRows;
  with_float_type(dtype, [&]<typename T>(T) {
    with_float_type(weight, [&]<typename W>(W) {
      if (layer) {
        kernel.run = [=](const RowCall& call) { norm_grad<T, W, true>(call, cols); };
      } else {
        kernel.run = [=](const RowCall& call) { norm_grad<T, W, false>(call, cols); };
      }
    });
  });
  return kernel;
}

}  // namespace octet::cpu
