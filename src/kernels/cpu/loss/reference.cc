// Softmax cross-entropy per token. Target -1: loss 0, gradient 0 (the row's lse is still given). Columns from attr
// classes on are padding: they are ignored and get gradient 0.
#include "kernels/cpu/reference.h"
#include "kernels/common/parts.h"

namespace octet::cpu::reference {
namespace {

int64_t checked_target(const Node& node, RefInputs in, int64_t row, const ClassPart& classes) {
  const int64_t target = integer(in[1], row);
  check(target >= -1 && target < classes.all, ErrorCode::kInvalidArgument,
        "{} \"{}\": target {} is outside -1 (ignored) .. {}", op_name(node.op), node.name, target, classes.all - 1);
  return target;
}

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
  const ClassPart classes(node, in[0]->cols());
  for (int64_t r = 0; r < in[0]->rows(); ++r) {
    const double lse = present(in, 2) ? (*in[2])[r] : log_sum_exp(in[0]->row(r), classes.count);
    const int64_t column = classes.column(checked_target(node, in, r, classes));
    out[0][r] = column < 0 ? 0.0 : lse - in[0]->row(r)[column];
    out[1][r] = lse;
  }
}

void row_lse(const Node& node, RefInputs in, RefResults out) {
  const ClassPart classes(node, in[0]->cols());
  for (int64_t r = 0; r < in[0]->rows(); ++r) out[0][r] = log_sum_exp(in[0]->row(r), classes.count);
}

// dlogits = (exp(logits - lse) - onehot(target)) dloss
void cross_entropy_grad(const Node& node, RefInputs in, RefResults out) {
  const ClassPart classes(node, in[0]->cols());
  for (int64_t r = 0; r < in[0]->rows(); ++r) {
    const int64_t target = checked_target(node, in, r, classes), column = classes.column(target);
    if (target < 0) continue;
    const double *x = in[0]->row(r), lse = (*in[2])[r], dloss = (*in[3])[r];
    double* dx = out[0].row(r);
    for (int64_t c = 0; c < classes.count; ++c) dx[c] = (std::exp(x[c] - lse) - (c == column ? 1.0 : 0.0)) * dloss;
  }
}

}  // namespace octet::cpu::reference
