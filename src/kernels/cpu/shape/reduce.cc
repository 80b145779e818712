// reduce: sum, max and amax over rows (one result per column) or over everything.
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {
namespace {

using simd::Floats;

template <typename T, OperandMapping kKind>
OCTET_SIMD Floats term(const T* x, auto lanes) {
  const Floats v = simd::load(x, lanes);
  return kKind == OperandMapping::kAmax ? simd::abs(v) : v;
}

template <OperandMapping kKind>
OCTET_SIMD Floats join(Floats a, Floats b) {
  return kKind == OperandMapping::kSum ? a + b : simd::maximum(a, b);
}

template <typename T, OperandMapping kKind>
void reduce_rows(const RowCall& call, int64_t cols) {
  float* total = static_cast<float*>(call.out[0]);
  for (int64_t row = 0; row < call.rows; ++row) {
    const T* x = static_cast<const T*>(call.in[0]) + row * cols;
    simd::for_lanes(cols, [&](int64_t i, auto lanes) {
      simd::store(total + i, join<kKind>(simd::load(total + i, lanes), term<T, kKind>(x + i, lanes)), lanes);
    });
  }
}

template <typename T, OperandMapping kKind>
void reduce_all(const RowCall& call, int64_t cols) {
  constexpr int kChains = 4;
  float* total = static_cast<float*>(call.out[0]);
  const Floats start = kKind == OperandMapping::kMax ? simd::broadcast(-__builtin_inff()) : Floats{};
  for (int64_t row = 0; row < call.rows; ++row) {  // row by row: sums do not depend on the tile height
    const T* x = static_cast<const T*>(call.in[0]) + row * cols;
    Floats chain[kChains] = {start, start, start, start};
    int64_t i = 0;
    for (; i + kChains * simd::kLanes <= cols; i += kChains * simd::kLanes) {
      for (int k = 0; k < kChains; ++k) {
        chain[k] = join<kKind>(chain[k], term<T, kKind>(x + i + k * simd::kLanes, simd::Full{}));
      }
    }
    simd::for_lanes(cols - i, [&](int64_t j, auto lanes) {
      chain[0] = join<kKind>(chain[0], simd::keep(term<T, kKind>(x + i + j, lanes), lanes, start));
    });
    const Floats joined = join<kKind>(join<kKind>(chain[0], chain[1]), join<kKind>(chain[2], chain[3]));
    const float value = kKind == OperandMapping::kSum ? simd::sum(joined) : simd::largest(joined);
    *total = join<kKind>(simd::broadcast(*total), simd::broadcast(value))[0];
  }
}

}  // namespace

std::optional<RowKernel> reduce_row_kernel(const Graph& graph, const Node& node, RowUse) {
  const std::string &kind = node.attr<std::string>("reduction"), &axis = node.attr<std::string>("axis");
  const DType dtype = graph.dtype(node.inputs[0]);
  if (!is_f32_or_bf16(dtype)) return std::nullopt;
  const Shape& shape = graph.shape(node.inputs[0]);
  const int64_t cols = shape.cols();
  const bool by_column = axis == "rows";
  const OperandMapping follow = kind == "sum"   ? OperandMapping::kSum
                                : kind == "max" ? OperandMapping::kMax
                                                : OperandMapping::kAmax;
  RowKernel kernel{shape.rows(), {OperandMapping::kRows}, {follow}};
  const auto choose = [&]<typename T, OperandMapping kKind>() {
    if (by_column) {
      kernel.run = [=](const RowCall& call) { reduce_rows<T, kKind>(call, cols); };
    } else {
      kernel.run = [=](const RowCall& call) { reduce_all<T, kKind>(call, cols); };
    }
  };
  with_float_type(dtype, [&]<typename T>(T) {
    if (follow == OperandMapping::kSum) choose.template operator()<T, OperandMapping::kSum>();
    if (follow == OperandMapping::kMax) choose.template operator()<T, OperandMapping::kMax>();
    if (follow == OperandMapping::kAmax) choose.template operator()<T, OperandMapping::kAmax>();
  });
  return kernel;
}

}  // namespace octet::cpu
