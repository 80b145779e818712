// Softmax cross-entropy per token. Target -1: loss 0, gradient 0 (the row's lse is still given). Columns from attr
// classes on are padding: they are ignored and get gradient 0.
#include <algorithm>

#include "kernels/cpu/reference.h"

namespace octet::cpu::reference {
namespace {

// The classes among the columns of this rank's part: [0, count) of the whole's from `first` on.
struct Classes {
  int64_t first, all, count;

  Classes(const Node& node, int64_t cols)
      : first(node.attrs.get_or<int64_t>("first", 0)),
        all(node.attrs.get_or<int64_t>("classes", node.attrs.has("first") ? INT64_MAX : cols)),
        count(std::clamp<int64_t>(all - first, 0, cols)) {}

  // The target's column; -1: ignored, -2: another rank's.
  int64_t column(const Node& node, double value) const {
    const int64_t target = integer(value);
    check(target >= -1 && target < all, ErrorCode::kInvalidArgument,
          "{} \"{}\": target {} is outside -1 (ignored) .. {}", op_name(node.op), node.name, target, all - 1);
    if (target < 0) return -1;
    return target >= first && target - first < count ? target - first : -2;
  }
};

double log_sum_exp(const double* x, int64_t count) {
  double largest = -INFINITY, sum = 0;
  for (int64_t c = 0; c < count; ++c) {
    if (!(x[c] <= largest)) largest = x[c];
  }
  for (int64_t c = 0; c < count; ++c) sum += std::exp(x[c] - largest);
  return largest + std::log(sum);
}

}  // namespace

// lse = log sum exp(logits), or the given one; loss = lse - logits[target]
void cross_entropy(const Node& node, RefInputs in, RefResults out) {
  const int64_t rows = in[0]->type.shape.rows(), cols = in[0]->type.shape.cols();
  const Classes classes(node, cols);
  for (int64_t r = 0; r < rows; ++r) {
    const double* x = in[0]->values.data() + r * cols;
    const double lse = present(in, 2) ? in[2]->values[static_cast<size_t>(r)] : log_sum_exp(x, classes.count);
    const int64_t target = classes.column(node, in[1]->values[static_cast<size_t>(r)]);
    out[0].values[static_cast<size_t>(r)] = target < 0 ? 0.0 : lse - x[target];
    out[1].values[static_cast<size_t>(r)] = lse;
  }
}

void row_lse(const Node& node, RefInputs in, RefResults out) {
  const int64_t rows = in[0]->type.shape.rows(), cols = in[0]->type.shape.cols();
  const Classes classes(node, cols);
  for (int64_t r = 0; r < rows; ++r)
    out[0].values[static_cast<size_t>(r)] = log_sum_exp(in[0]->values.data() + r * cols, classes.count);
}

// dlogits = (exp(logits - lse) - onehot(target)) dloss
void cross_entropy_grad(const Node& node, RefInputs in, RefResults out) {
  const int64_t rows = in[0]->type.shape.rows(), cols = in[0]->type.shape.cols();
  const Classes classes(node, cols);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t target = classes.column(node, in[1]->values[static_cast<size_t>(r)]);
    if (target == -1) continue;
    const double* x = in[0]->values.data() + r * cols;
    double* dx = out[0].values.data() + r * cols;
    const double lse = in[2]->values[static_cast<size_t>(r)], dloss = in[3]->values[static_cast<size_t>(r)];
    for (int64_t c = 0; c < classes.count; ++c) dx[c] = (std::exp(x[c] - lse) - (c == target ? 1.0 : 0.0)) * dloss;
  }
}

}  // namespace octet::cpu::reference
