// add, sub, mul, maximum of float32 and bf16 in any combination: b has the shape of a, or is [C] against the last dim,
// or [1].
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/simd.h"

namespace octet::cpu {
namespace {

using simd::Floats;

enum class Broadcast : uint8_t { kNone, kRow, kScalar };

template <typename A, typename B, typename Y, typename Fn>
std::function<void(const RowCall&)> loop(Broadcast broadcast, int64_t cols, Fn fn) {
  switch (broadcast) {
    case Broadcast::kScalar:
      return [=](const RowCall& call) {
        const A* a = static_cast<const A*>(call.in[0]);
        const Floats b = simd::load(static_cast<const B*>(call.in[1]), simd::Part{1});
        const Floats value = simd::broadcast(b[0]);
        Y* y = static_cast<Y*>(call.out[0]);
        simd::for_lanes(call.rows * cols,
                        [&](int64_t i, auto lanes) { simd::store(y + i, fn(simd::load(a + i, lanes), value), lanes); });
      };
    case Broadcast::kRow:
      return [=](const RowCall& call) {
        const B* b = static_cast<const B*>(call.in[1]);
        for (int64_t row = 0; row < call.rows; ++row) {
          const A* a = static_cast<const A*>(call.in[0]) + row * cols;
          Y* y = static_cast<Y*>(call.out[0]) + row * cols;
          simd::for_lanes(cols, [&](int64_t i, auto lanes) {
            simd::store(y + i, fn(simd::load(a + i, lanes), simd::load(b + i, lanes)), lanes);
          });
        }
      };
    case Broadcast::kNone: break;
  }
  return [=](const RowCall& call) {
    const A* a = static_cast<const A*>(call.in[0]);
    const B* b = static_cast<const B*>(call.in[1]);
    Y* y = static_cast<Y*>(call.out[0]);
    simd::for_lanes(call.rows * cols, [&](int64_t i, auto lanes) {
      simd::store(y + i, fn(simd::load(a + i, lanes), simd::load(b + i, lanes)), lanes);
    });
  };
}

template <typename Fn>
std::optional<RowKernel> combine(const Graph& graph, const Node& node, RowUse use, Fn fn) {
  const DType a = graph.dtype(node.inputs[0]), b = graph.dtype(node.inputs[1]), y = node.results[0].dtype;
  const Shape &shape = graph.shape(node.inputs[0]), &other = graph.shape(node.inputs[1]);
  if (!is_f32_or_bf16(a) || !is_f32_or_bf16(b) || !is_f32_or_bf16(y) || shape != node.results[0].shape) {
    return std::nullopt;
  }
  Broadcast broadcast = Broadcast::kNone;
  if (other.elements() != shape.elements()) {
    broadcast = other.elements() == 1 ? Broadcast::kScalar : Broadcast::kRow;
    if (broadcast == Broadcast::kRow && other.elements() != shape.cols()) return std::nullopt;
  }
  const ElementRows at(shape, use, broadcast == Broadcast::kRow);
  const OperandMapping follow = broadcast == Broadcast::kNone ? OperandMapping::kRows : OperandMapping::kWhole;
  RowKernel kernel{at.rows, {OperandMapping::kRows, follow}, {OperandMapping::kRows}, {}, 0, at.alignment};
  with_float_type(a, [&]<typename A>(A) {
    with_float_type(b, [&]<typename B>(B) {
      with_float_type(y, [&]<typename Y>(Y) { kernel.run = loop<A, B, Y>(broadcast, at.cols, fn); });
    });
  });
  return kernel;
}

}  // namespace

std::optional<RowKernel> binary_row_kernel(const Graph& graph, const Node& node, RowUse use) {
  switch (node.op) {
    case Op::kAdd: return combine(graph, node, use, [](Floats a, Floats b) { return a + b; });
    case Op::kSub: return combine(graph, node, use, [](Floats a, Floats b) { return a - b; });
    case Op::kMul: return combine(graph, node, use, [](Floats a, Floats b) { return a * b; });
    case Op::kMaximum: return combine(graph, node, use, [](Floats a, Floats b) { return simd::maximum(a, b); });
    default: return std::nullopt;
  }
}

}  // namespace octet::cpu
