// Softmax cross-entropy per token. Target -1: loss 0, gradient 0 (the row's lse is still given). Columns from attr
// classes on are padding: they are ignored and get gradient 0.
#include "kernels/cpu/reference.h"

namespace octet::cpu::reference {
namespace {

int64_t checked_target(const Node& node, double value, int64_t classes) {
  const int64_t target = integer(value);
  check(target >= -1 && target < classes, ErrorCode::kInvalidArgument,
        "{} \"{}\": target {} is outside -1 (ignored) .. {}", op_name(node.op), node.name, target, classes - 1);
  return target;
}

int64_t class_count(const Node& node, int64_t cols) { return node.attrs.get_or<int64_t>("classes", cols); }

}  // namespace

// lse = log sum exp(logits), or the given one; loss = lse - logits[target]
void cross_entropy(const Node& node, RefInputs in, RefResults out) {
  const int64_t rows = in[0]->type.shape.rows(), cols = in[0]->type.shape.cols(), classes = class_count(node, cols);
  for (int64_t r = 0; r < rows; ++r) {
    const double* x = in[0]->values.data() + r * cols;
    double largest = -INFINITY, sum = 0;
    for (int64_t c = 0; c < classes; ++c) {
      if (!(x[c] <= largest)) largest = x[c];
    }
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(x[c] - largest);
    const double lse = present(in, 2) ? in[2]->values[static_cast<size_t>(r)] : largest + std::log(sum);
    const int64_t target = checked_target(node, in[1]->values[static_cast<size_t>(r)], classes);
    out[0].values[static_cast<size_t>(r)] = target < 0 ? 0.0 : lse - x[target];
    out[1].values[static_cast<size_t>(r)] = lse;
  }
}

// dlogits = (exp(logits - lse) - onehot(target)) dloss
void cross_entropy_grad(const Node& node, RefInputs in, RefResults out) {
  const int64_t rows = in[0]->type.shape.rows(), cols = in[0]->type.shape.cols(), classes = class_count(node, cols);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t target = checked_target(node, in[1]->values[static_cast<size_t>(r)], classes);
    if (target < 0) continue;
    const double* x = in[0]->values.data() + r * cols;
    double* dx = out[0].values.data() + r * cols;
    const double lse = in[2]->values[static_cast<size_t>(r)], dloss = in[3]->values[static_cast<size_t>(r)];
    for (int64_t c = 0; c < classes; ++c) dx[c] = (std::exp(x[c] - lse) - (c == target ? 1.0 : 0.0)) * dloss;
  }
}

}  // namespace octet::cpu::reference
