// Softmax cross-entropy per token. Target -1: loss 0, gradient 0 (the row's lse is still given). Columns from attr
// classes on are padding: they are ignored and get gradient 0.
#include "kernels/cpu/reference.h"

namespace octet::cpu::reference {
namespace {

int64_t checked_target(const Node& node, RefInputs in, int64_t row, int64_t classes) {
  const int64_t target = integer(in[1], row);
  check(target >= -1 && target < classes, ErrorCode::kInvalidArgument,
        "{} \"{}\": target {} is outside -1 (ignored) .. {}", op_name(node.op), node.name, target, classes - 1);
  return target;
}

int64_t class_count(const Node& node, RefInputs in) { return node.attrs.get_or("classes", in[0]->cols()); }

}  // namespace

// lse = log sum exp(logits), or the given one; loss = lse - logits[target]
void cross_entropy(const Node& node, RefInputs in, RefResults out) {
  const int64_t classes = class_count(node, in);
  for (int64_t r = 0; r < in[0]->rows(); ++r) {
    const double* x = in[0]->row(r);
    double largest = -INFINITY, sum = 0;
    for (int64_t c = 0; c < classes; ++c) {
      if (!(x[c] <= largest)) largest = x[c];
    }
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(x[c] - largest);
    const double lse = present(in, 2) ? (*in[2])[r] : largest + std::log(sum);
    const int64_t target = checked_target(node, in, r, classes);
    out[0][r] = target < 0 ? 0.0 : lse - x[target];
    out[1][r] = lse;
  }
}

// dlogits = (exp(logits - lse) - onehot(target)) dloss
void cross_entropy_grad(const Node& node, RefInputs in, RefResults out) {
  const int64_t classes = class_count(node, in);
  for (int64_t r = 0; r < in[0]->rows(); ++r) {
    const int64_t target = checked_target(node, in, r, classes);
    if (target < 0) continue;
    const double *x = in[0]->row(r), lse = (*in[2])[r], dloss = (*in[3])[r];
    double* dx = out[0].row(r);
    for (int64_t c = 0; c < classes; ++c) dx[c] = (std::exp(x[c] - lse) - (c == target ? 1.0 : 0.0)) * dloss;
  }
}

}  // namespace octet::cpu::reference
