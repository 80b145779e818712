// AdamW with decoupled decay, in torch.optim.AdamW's order, and the norm of all gradients with its clip factor.
#include "kernels/cpu/reference.h"

namespace octet::cpu::reference {

// sum over all tensors of g^2
void square_sum(const Node&, RefInputs in, RefResults out) {
  double& squares = out[0].values[0];
  for (const RefTensor* gradient : in) {
    for (double g : gradient->values) squares += g * g;
  }
}

// norm = sqrt(squares); clip = min(1, max_norm / (norm + 1e-6)), 1 without max_norm or when norm is NaN; finite = 1
// when squares is finite, else 0.
void clip_factor(const Node& node, RefInputs in, RefResults out) {
  const double squares = in[0]->values[0];
  const double norm = std::sqrt(squares), max_norm = node.attr<double>("max_norm");
  const double ratio = max_norm / (norm + 1e-6);
  out[0].values[0] = norm;
  out[1].values[0] = max_norm > 0 && ratio < 1 ? ratio : 1;
  out[2].values[0] = std::isfinite(squares) ? 1 : 0;
}

// g = grad clip; p *= 1 - lr wd; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
// p -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps). finite == 0 changes nothing.
void adamw(const Node& node, RefInputs in, RefResults out) {
  const auto scalar = [&](size_t i) { return in[i]->values[0]; };
  const double lr = scalar(4), step = scalar(5), clip = scalar(6);
  const double beta1 = node.attr<double>("beta1"), beta2 = node.attr<double>("beta2");
  const double eps = node.attr<double>("eps"), decay = node.attr<double>("weight_decay");
  out[0].values = in[0]->values;
  out[1].values = in[2]->values;
  out[2].values = in[3]->values;
  if (scalar(7) == 0) return;
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  for (size_t i = 0; i < in[0]->values.size(); ++i) {
    double &p = out[0].values[i], &m = out[1].values[i], &v = out[2].values[i];
    const double g = in[1]->values[i] * clip;
    p *= 1 - lr * decay;
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    p -= lr / correction1 * m / (std::sqrt(v / correction2) + eps);
  }
}

}  // namespace octet::cpu::reference
