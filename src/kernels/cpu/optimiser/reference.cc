// Updates of parameters by AdamW and SGD (as torch.optim has them), the direction and the trust ratio that make LAMB
// and LARS; the norm of all gradients with its clip factor.
#include "kernels/cpu/reference.h"
#include "ir/facts.h"
#include "kernels/common/parts.h"

namespace octet::cpu::reference {
namespace {

struct Scalars {
  double lr, step, clip;
  bool finite;
};

// The results begin as the parameter and its moments.
Scalars begin_update(const Node& node, RefInputs in, RefResults out) {
  const OpFacts& facts = op_facts(node.op);
  const auto first_moment = static_cast<size_t>(facts.first_moment);
  out[0].values = in[0]->values;
  for (size_t i = 1; i < out.size(); ++i)
    if (present(in, first_moment + i - 1)) out[i].values = in[first_moment + i - 1]->values;
  const auto scalar = [&](int from_end) {
    return (*in[static_cast<size_t>(facts.first_scalar + facts.scalars - from_end)])[0];
  };
  return {facts.scalars == 4 ? scalar(4) : 0, scalar(3), scalar(2), scalar(1) != 0};
}

// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2 of element i; returns m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps).
double refresh_moments(const Node& node, const Scalars& scalars, RefInputs in, RefResults out, size_t i) {
  const double beta1 = node.attrs.get<double>("beta1"), beta2 = node.attrs.get<double>("beta2");
  const double g = in[1]->values[i] * scalars.clip;
  double &m = out[1].values[i], &v = out[2].values[i];
  m = beta1 * m + (1 - beta1) * g;
  v = beta2 * v + (1 - beta2) * g * g;
  const double correction1 = 1 - std::pow(beta1, scalars.step), correction2 = 1 - std::pow(beta2, scalars.step);
  return m / correction1 / (std::sqrt(v / correction2) + node.attrs.get<double>("eps"));
}

}  // namespace

// sum over all tensors of g^2
void square_sum(const Node& node, RefInputs in, RefResults out) {
  double& squares = out[0].values[0];
  for (size_t i = 0; i < in.size(); ++i) {
    if (!is_counted(node, i)) continue;
    for (double g : in[i]->values) squares += g * g;
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

// p *= 1 - lr wd; p -= lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps). finite == 0 leaves everything as it is.
void adamw(const Node& node, RefInputs in, RefResults out) {
  const Scalars scalars = begin_update(node, in, out);
  if (!scalars.finite) return;
  for (size_t i = 0; i < in[0]->values.size(); ++i) {
    double& p = out[0].values[i];
    p *= 1 - scalars.lr * node.attrs.get<double>("weight_decay");
    p -= scalars.lr * refresh_moments(node, scalars, in, out, i);
  }
}

// g = grad clip + wd p; m = momentum m + g; p -= lr (g + momentum m with nesterov, else m; g without a buffer m).
// rate_inside: g takes lr before it is added to m.
void sgd(const Node& node, RefInputs in, RefResults out) {
  const Scalars scalars = begin_update(node, in, out);
  const double momentum = node.attrs.get<double>("momentum"), decay = node.attrs.get<double>("weight_decay");
  const bool inside = node.attr<bool>("rate_inside");
  if (!scalars.finite) return;
  for (size_t i = 0; i < in[0]->values.size(); ++i) {
    double &p = out[0].values[i], &m = out[1].values[i];
    double g = in[1]->values[i] * scalars.clip + decay * p;
    if (inside) g *= scalars.lr;
    if (present(in, 6)) {
      m = momentum * m + g;
      g = node.attrs.get<bool>("nesterov") ? g + momentum * m : m;
    }
    p -= inside ? g : scalars.lr * g;
  }
}

// u = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + wd p
void adam_direction(const Node& node, RefInputs in, RefResults out) {
  const Scalars scalars = begin_update(node, in, out);
  if (!scalars.finite) return;
  for (size_t i = 0; i < in[0]->values.size(); ++i)
    out[0].values[i] =
        refresh_moments(node, scalars, in, out, i) + node.attrs.get<double>("weight_decay") * in[0]->values[i];
}

// rate = lr coefficient |p| / (clip |u| + wd |p| + eps), lr when |p| or |u| is 0
void trust_ratio(const Node& node, RefInputs in, RefResults out) {
  const double p = std::sqrt((*in[0])[0]), u = std::sqrt((*in[1])[0]) * (present(in, 3) ? (*in[3])[0] : 1);
  const double below = u + node.attr<double>("weight_decay") * p + node.attr<double>("eps");
  out[0].values[0] = (*in[2])[0] * (p > 0 && u > 0 ? node.attr<double>("coefficient") * p / below : 1);
}

// state + rate (value / count - state); the state where finite or count is 0
void blend(const Node& node, RefInputs in, RefResults out) {
  const double count = present(in, 2) ? (*in[2])[0] : 1, finite = present(in, 3) ? (*in[3])[0] : 1;
  out[0].values = in[0]->values;
  if (count == 0 || finite == 0) return;
  for (size_t i = 0; i < out[0].values.size(); ++i)
    out[0].values[i] += node.attr<double>("rate") * (in[1]->values[i] / count - in[0]->values[i]);
}

}  // namespace octet::cpu::reference
