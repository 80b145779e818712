// ONNX norms, losses, products, activations and Adam in terms of ours.
#include <cmath>

#include "golden_ops/golden_run.h"

namespace octet {
namespace {

// A tensor as rows of its axis: [outer, axis, inner] -> [outer * inner, axis].
struct AxisRows {
  int64_t outer, axis, inner;
  AxisRows(const OnnxTensor& t, int64_t at) {
    const auto rank = static_cast<int64_t>(t.dims.size());
    const auto a = static_cast<size_t>(at < 0 ? at + rank : at);
    outer = t.product(0, a), axis = t.dims[a], inner = t.product(a + 1, t.dims.size());
  }
  int64_t rows() const { return outer * inner; }
  size_t flat(int64_t row, int64_t c) const {
    return static_cast<size_t>((row / inner * axis + c) * inner + row % inner);
  }
  std::vector<double> gather(const std::vector<double>& values) const {
    std::vector<double> result;
    for (int64_t r = 0; r < rows(); ++r) {
      for (int64_t c = 0; c < axis; ++c) result.push_back(values[flat(r, c)]);
    }
    return result;
  }
};

// log-softmax: the loss of every class as the target, negated.
std::vector<double> log_softmax(const AxisRows& at, const std::vector<double>& values) {
  const std::vector<double> rows = at.gather(values);
  std::vector<double> repeated, targets, result(values.size());
  for (int64_t r = 0; r < at.rows(); ++r) {
    for (int64_t c = 0; c < at.axis; ++c) {
      repeated.insert(repeated.end(), rows.begin() + r * at.axis, rows.begin() + (r + 1) * at.axis);
      targets.push_back(static_cast<double>(c));
    }
  }
  const int64_t count = at.rows() * at.axis;
  const auto loss = run_op(Op::kCrossEntropy,
                           {golden(DType::kF32, {count, at.axis}, repeated), golden(DType::kI32, {count}, targets)})[0];
  for (int64_t i = 0; i < count; ++i) result[at.flat(i / at.axis, i % at.axis)] = -loss.values[static_cast<size_t>(i)];
  return result;
}

// softmax: the gradient of the loss with target 0, plus 1 there.
std::vector<double> softmax(const AxisRows& at, const std::vector<double>& values) {
  const int64_t rows = at.rows();
  const GoldenTensor logits = golden(DType::kF32, {rows, at.axis}, at.gather(values));
  const GoldenTensor targets = golden(DType::kI32, {rows}, std::vector<double>(static_cast<size_t>(rows), 0.0));
  const GoldenTensor ones = golden(DType::kF32, {rows}, std::vector<double>(static_cast<size_t>(rows), 1.0));
  const GoldenTensor lse = run_op(Op::kCrossEntropy, {logits, targets})[1];
  const GoldenTensor gradient = run_op(Op::kCrossEntropyGrad, {logits, targets, lse, ones})[0];
  std::vector<double> result(values.size());
  for (int64_t i = 0; i < rows * at.axis; ++i) {
    result[at.flat(i / at.axis, i % at.axis)] =
        gradient.values[static_cast<size_t>(i)] + (i % at.axis == 0 ? 1.0 : 0.0);
  }
  return result;
}

std::string check_cross_entropy(const OnnxCase& c) {
  const AxisRows at(*c.inputs[0], 1);
  const double ignored = c.number("ignore_index", -1e9);
  std::vector<double> targets = c.inputs[1]->values;
  for (double& target : targets) target = target == ignored ? -1.0 : target;
  const int64_t rows = at.rows();
  const auto loss = run_op(Op::kCrossEntropy, {golden(DType::kF32, {rows, at.axis}, at.gather(c.inputs[0]->values)),
                                               golden(DType::kI32, {rows}, targets)})[0];
  // Class weights are the caller's product; a mean divides by the weights of the targets that count.
  std::vector<double> weighted;
  double sum = 0, weights = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const double weight = targets[i] < 0   ? 0
                          : c.has_input(2) ? c.inputs[2]->values[static_cast<size_t>(targets[i])]
                                           : 1;
    weighted.push_back(loss.values[i] * weight);
    sum += weighted.back(), weights += weight;
  }
  const std::string reduction = c.word("reduction", "mean");
  if (reduction == "mean") weighted = {sum / weights};
  if (reduction == "sum") weighted = {sum};
  std::string message = compare(weighted, *c.outputs[0]);
  if (message.empty() && c.outputs.size() > 1) message = compare(log_softmax(at, c.inputs[0]->values), *c.outputs[1]);
  return message;
}

}  // namespace

std::string check_loss(const OnnxCase& c) {
  if (c.op == "SoftmaxCrossEntropyLoss") return check_cross_entropy(c);
  const OnnxTensor& x = *c.inputs[0];
  if (x.elements() == 0) return "skip: empty tensor";
  if (c.op != "ReduceLogSumExp") {
    const AxisRows at(x, static_cast<int64_t>(c.number("axis", -1)));
    if (c.op == "LogSoftmax") return compare(log_softmax(at, x.values), *c.outputs[0]);
    // exp(x - lse) reads lse rounded to float32: half an ulp of the largest logit, relative to the result.
    double largest = 0;
    for (double value : x.values) largest = std::fmax(largest, std::fabs(value));
    return compare(softmax(at, x.values), *c.outputs[0], 1e-5 + 0x1p-24 * largest);
  }
  OnnxTensor flat = x;
  int64_t axis = 0;
  if (c.inputs[1]->values.empty()) {
    flat.dims = {x.elements()};
  } else if (c.inputs[1]->values.size() == 1) {
    axis = static_cast<int64_t>(c.inputs[1]->values[0]);
  } else {
    return "skip: several axes";
  }
  const AxisRows at(flat, axis);
  const std::vector<double> zeros(static_cast<size_t>(at.rows()), 0.0);
  // Float64 input: compared at float32's accuracy.
  return compare(run_op(Op::kCrossEntropy, {golden(DType::kF32, {at.rows(), at.axis}, at.gather(x.values)),
                                            golden(DType::kI32, {at.rows()}, zeros)})[1]
                     .values,
                 *c.outputs[0]);
}

// The axes from `axis` on are one row; float32 eps as given.
std::string check_norm(const OnnxCase& c) {
  const OnnxTensor& x = *c.inputs[0];
  const auto rank = static_cast<int64_t>(x.dims.size());
  const auto given = static_cast<int64_t>(c.number("axis", -1));
  const auto axis = static_cast<size_t>(given < 0 ? given + rank : given);
  const int64_t rows = x.product(0, axis), cols = x.product(axis, x.dims.size());
  const Attrs attrs = {{"eps", c.number("epsilon", 1e-5)}};
  const GoldenTensor values = golden(DType::kF32, {rows, cols}, x.values);
  const auto row = [&](size_t i) {
    if (c.has_input(i)) return golden(DType::kF32, {cols}, c.inputs[i]->values);
    return golden(DType::kF32, {cols}, std::vector<double>(static_cast<size_t>(cols), 0.0));
  };
  if (c.op == "RMSNormalization")
    return compare(run_op(Op::kRmsNorm, {values, row(1)}, attrs)[0].values, *c.outputs[0]);
  const auto results = run_op(Op::kLayerNorm, {values, row(1), row(2)}, attrs);
  for (size_t r = 0; r < c.outputs.size(); ++r) {
    if (!c.outputs[r]) continue;
    std::string message = compare(results[r].values, *c.outputs[r]);
    if (!message.empty()) return message;
  }
  return "";
}

std::string check_product(const OnnxCase& c) {
  const OnnxTensor &a = *c.inputs[0], &b = *c.inputs[1];
  if (c.op == "MatMul") {
    if (a.dims.size() != b.dims.size() || a.dims.size() < 2) return "skip: broadcast product";
    const size_t last = a.dims.size() - 1;
    const int64_t m = a.dims[last - 1], k = a.dims[last], n = b.dims[last], batch = a.product(0, last - 1);
    if (batch != b.product(0, last - 1)) return "skip: broadcast product";
    std::vector<double> all;
    for (int64_t i = 0; i < batch; ++i) {
      const auto part = [&](const OnnxTensor& t, int64_t rows, int64_t cols) {
        const auto begin = t.values.begin() + i * rows * cols;
        return golden(DType::kF32, {rows, cols}, {begin, begin + rows * cols});
      };
      const auto y =
          run_op(Op::kMatmul, {part(a, m, k), part(b, k, n)}, {{"trans_a", false}, {"trans_b", false}})[0].values;
      all.insert(all.end(), y.begin(), y.end());
    }
    return compare(all, *c.outputs[0]);
  }
  const bool ta = c.number("transA", 0) != 0, tb = c.number("transB", 0) != 0;
  const auto matrix = [](const OnnxTensor& t) { return golden(DType::kF32, {t.dims[0], t.dims[1]}, t.values); };
  GoldenTensor y = run_op(Op::kMatmul, {matrix(a), matrix(b)}, {{"trans_a", ta}, {"trans_b", tb}})[0];
  y = run_op(Op::kScale, {y}, {{"value", c.number("alpha", 1)}})[0];
  if (c.has_input(2)) {
    const OnnxTensor& bias = *c.inputs[2];
    const int64_t n = y.type.shape[1], size = bias.elements();
    if (size != 1 && size != n && bias.dims.size() != 2) return "skip: addend broadcast along columns";
    const Shape shape = size == y.type.shape.elements() ? y.type.shape : size == n ? Shape{n} : Shape{1};
    const GoldenTensor addend =
        run_op(Op::kScale, {golden(DType::kF32, shape, bias.values)}, {{"value", c.number("beta", 1)}})[0];
    y = run_op(Op::kAdd, {y, addend})[0];
  }
  return compare(y.values, *c.outputs[0]);
}

std::string check_activation(const OnnxCase& c) {
  const OnnxTensor& x = *c.inputs[0];
  const GoldenTensor values = golden(DType::kF32, {x.elements()}, x.values);
  if (c.op == "Swish") {
    if (c.number("alpha", 1) != 1) return "skip: swish with alpha";
    return compare(run_op(Op::kSilu, {values})[0].values, *c.outputs[0]);
  }
  const bool approximate = c.word("approximate", "none") == "tanh";
  return compare(run_op(Op::kGelu, {values}, {{"approximate", approximate}})[0].values, *c.outputs[0]);
}

// ONNX adds norm_coefficient X to the gradient (plain L2) and eps outside the bias correction, ours inside:
// eps' = eps / sqrt(1 - beta^T). T = 0 means no correction, which a very late step gives. alpha, beta are beta1, beta2.
std::string check_adam(const OnnxCase& c) {
  if (c.number("norm_coefficient_post", 0) != 0) return "skip: decay after the step";
  const size_t count = (c.inputs.size() - 2) / 4;
  const double beta1 = c.number("alpha", 0.9), beta2 = c.number("beta", 0.999), decay = c.number("norm_coefficient", 0);
  const double t = c.inputs[1]->values[0], step = t == 0 ? 1e9 : t;
  // The results of adam_multiple were made with epsilon 0.01, which its node does not say.
  const double unsaid = c.name == "adam_multiple" ? 1e-2 : 1e-6;
  const double eps = c.number("epsilon", unsaid) / std::sqrt(1 - std::pow(beta2, step));
  const auto one = [](double value) { return golden(DType::kF32, {1}, {value}); };
  for (size_t i = 0; i < count; ++i) {
    const auto group = [&](size_t g) {
      return golden(DType::kF32, {c.inputs[2 + i]->elements()}, c.inputs[2 + g * count + i]->values);
    };
    const GoldenTensor x = group(0);
    GoldenTensor gradient = group(1);
    for (size_t e = 0; e < gradient.values.size(); ++e) gradient.values[e] += decay * x.values[e];
    const auto results =
        run_op(Op::kAdamw, {x, gradient, group(2), group(3), one(c.inputs[0]->values[0]), one(step), one(1), one(1)},
               {{"beta1", beta1}, {"beta2", beta2}, {"eps", eps}, {"weight_decay", 0.0}});
    for (size_t r = 0; r < 3; ++r) {
      std::string message = compare(results[r].values, *c.outputs[r * count + i]);
      if (!message.empty()) return message;
    }
  }
  return "";
}

}  // namespace octet
