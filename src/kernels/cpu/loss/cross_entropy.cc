// Softmax cross-entropy and its gradient, one row of logits at a time: one pass through memory each (the second pass of
// the forward reads the row from cache; with a given log-sum-exp there is none), and its log-sum-exp alone. Target -1:
// loss 0, gradient 0. Columns from attr classes on are padding. Targets of other ranks' classes: loss 0.
#include <cmath>

#include "base/error.h"
#include "kernels/common/parts.h"
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {
namespace {

using simd::Floats;

constexpr int64_t kPiece = 64 * simd::kLanes;  // elements summed in float32 before adding to a double

// The target's column; -1: ignored, or another rank's.
int64_t checked_column(int32_t target, const ClassPart& classes) {
  check(target >= -1 && target < classes.all, ErrorCode::kInvalidArgument,
        "cross_entropy: target {} is outside -1 .. {}", target, classes.all - 1);
  return classes.column(target);
}

// A NaN is skipped by the maximum and propagates through the sum.
template <typename T>
float log_sum_exp(const T* x, int64_t cols) {
  const Floats lowest = simd::broadcast(-INFINITY);
  Floats top[2] = {lowest, lowest};
  int64_t c = 0;
  for (; c + 2 * simd::kLanes <= cols; c += 2 * simd::kLanes) {
    top[0] = simd::larger(simd::load(x + c, simd::Full{}), top[0]);
    top[1] = simd::larger(simd::load(x + c + simd::kLanes, simd::Full{}), top[1]);
  }
  simd::for_lanes(cols - c, [&](int64_t i, auto lanes) {
    top[0] = simd::larger(simd::keep(simd::load(x + c + i, lanes), lanes, lowest), top[0]);
  });
  const float largest = simd::largest(simd::larger(top[0], top[1]));
  double sum = 0;
  for (int64_t begin = 0; begin < cols; begin += kPiece) {
    const int64_t count = std::min(kPiece, cols - begin);
    const auto term = [&](int64_t i, auto lanes) {
      return simd::keep(simd::exp(simd::load(x + begin + i, lanes) - largest), lanes, Floats{});
    };
    Floats even{}, odd{};
    int64_t i = 0;
    for (; i + 2 * simd::kLanes <= count; i += 2 * simd::kLanes) {
      even += term(i, simd::Full{});
      odd += term(i + simd::kLanes, simd::Full{});
    }
    simd::for_lanes(count - i, [&](int64_t j, auto lanes) { even += term(i + j, lanes); });
    sum += static_cast<double>(simd::sum(even + odd));
  }
  return static_cast<float>(static_cast<double>(largest) + std::log(sum));
}

template <typename T>
void cross_entropy(const RowCall& call, int64_t cols, const ClassPart& classes, bool has_lse) {
  const int32_t* targets = static_cast<const int32_t*>(call.in[1]);
  const float* given = has_lse ? static_cast<const float*>(call.in[2]) : nullptr;
  float *losses = static_cast<float*>(call.out[0]), *lses = static_cast<float*>(call.out[1]);
  for (int64_t row = 0; row < call.rows; ++row) {
    const T* x = static_cast<const T*>(call.in[0]) + row * cols;
    const int64_t target = checked_column(targets[row], classes);
    const float lse = given != nullptr ? given[row] : log_sum_exp(x, classes.count);
    if (losses != nullptr) losses[row] = target < 0 ? 0.0f : lse - simd::load(x + target, simd::Part{1})[0];
    if (lses != nullptr) lses[row] = lse;
  }
}

template <typename T>
void row_lse(const RowCall& call, int64_t cols, int64_t classes) {
  for (int64_t row = 0; row < call.rows; ++row)
    static_cast<float*>(call.out[0])[row] = log_sum_exp(static_cast<const T*>(call.in[0]) + row * cols, classes);
}

// dlogits = (exp(logits - lse) - onehot(target)) dloss
template <typename T>
void cross_entropy_grad(const RowCall& call, int64_t cols, const ClassPart& classes) {
  const int32_t* targets = static_cast<const int32_t*>(call.in[1]);
  const float *lses = static_cast<const float*>(call.in[2]), *dlosses = static_cast<const float*>(call.in[3]);
  for (int64_t row = 0; row < call.rows; ++row) {
    const T* x = static_cast<const T*>(call.in[0]) + row * cols;
    T* dx = static_cast<T*>(call.out[0]) + row * cols;
    const int64_t target = checked_column(targets[row], classes);
    if (targets[row] < 0) {
      std::memset(dx, 0, static_cast<size_t>(cols) * sizeof(T));
      continue;
    }
    const float lse = lses[row], dloss = dlosses[row];
    // Read before writing dx, which may alias x.
    const float at_target = target >= 0 ? simd::load(x + target, simd::Part{1})[0] : 0.0f;
    simd::for_lanes(classes.count, [&](int64_t i, auto lanes) {
      simd::store(dx + i, simd::exp(simd::load(x + i, lanes) - lse) * dloss, lanes);
    });
    std::memset(dx + classes.count, 0, static_cast<size_t>(cols - classes.count) * sizeof(T));
    if (target < 0) continue;
    const Floats probability = simd::exp(simd::broadcast(at_target - lse));
    simd::store(dx + target, (probability - 1.0f) * dloss, simd::Part{1});
  }
}

}  // namespace

std::optional<RowKernel> cross_entropy_row_kernel(const Graph& graph, const Node& node, RowUse) {
  const Shape& shape = graph.shape(node.inputs[0]);
  const DType dtype = graph.dtype(node.inputs[0]);
  const int64_t cols = shape.cols();
  const ClassPart classes(node, cols);
  const bool has_lse = node.inputs.size() > 2;
  if (!is_f32_or_bf16(dtype)) return std::nullopt;
  RowKernel kernel{shape.rows()};
  kernel.in.assign(node.inputs.size(), OperandMapping::kRows);
  kernel.out.assign(node.results.size(), OperandMapping::kRows);
  with_float_type(dtype, [&]<typename T>(T) {
    if (node.op == Op::kCrossEntropy) {
      kernel.run = [=](const RowCall& call) { cross_entropy<T>(call, cols, classes, has_lse); };
    } else if (node.op == Op::kRowLse) {
      kernel.run = [=](const RowCall& call) { row_lse<T>(call, cols, classes.count); };
    } else {
      kernel.run = [=](const RowCall& call) { cross_entropy_grad<T>(call, cols, classes); };
    }
  });
  return kernel;
}

}  // namespace octet::cpu
