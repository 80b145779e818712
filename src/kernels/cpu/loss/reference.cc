// Softmax cross-entropy per token. Target -1: loss 0, gradient 0 (the row's lse is still given). Columns from attr
// classes on are padding: they are ignored and get gradient 0.
#include <algorithm>

#include "kernels/cpu/reference.h"

namespace octet::cpu::reference {
namespace {

// The classes among the columns of this rank's part: [0, count) of the whole's from `first` on.
struct Classes {
  int64_t first, all, count;

  Classes(const Node& node, RefInputs in)
      : first(node.attrs.get_or<int64_t>("first", 0)),
        all(node.attrs.get_or<int64_t>("classes", node.attrs.has("first") ? INT64_MAX : in[0]->cols())),
        count(std::clamp<int64_t>(all - first, 0, in[0]->cols())) {}

  // The target's column; -1: ignored, -2: another rank's.
  int64_t column(const Node& node, RefInputs in, int64_t row) const {
    const int64_t target = integer(in[1], row);
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
  const Classes classes(node, in);
  for (int64_t r = 0; r < in[0]->rows(); ++r) {
    const double lse = present(in, 2) ? (*in[2])[r] : log_sum_exp(in[0]->row(r), classes.count);
    const int64_t target = classes.column(node, in, r);
    out[0][r] = target < 0 ? 0.0 : lse - in[0]->row(r)[target];
    out[1][r] = lse;
  }
}

void row_lse(const Node& node, RefInputs in, RefResults out) {
  const Classes classes(node, in);
  for (int64_t r = 0; r < in[0]->rows(); ++r) out[0][r] = log_sum_exp(in[0]->row(r), classes.count);
}

// dlogits = (exp(logits - lse) - onehot(target)) dloss
void cross_entropy_grad(const Node& node, RefInputs in, RefResults out) {
  const Classes classes(node, in);
  for (int64_t r = 0; r < in[0]->rows(); ++r) {
    const int64_t target = classes.column(node, in, r);
    if (target == -1) continue;
    const double *x = in[0]->row(r), lse = (*in[2])[r], dloss = (*in[3])[r];
    double* dx = out[0].row(r);
    for (int64_t c = 0; c < classes.count; ++c) dx[c] = (std::exp(x[c] - lse) - (c == target ? 1.0 : 0.0)) * dloss;
  }
}

}  // namespace octet::cpu::reference
