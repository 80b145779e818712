// layer_norm (biased variance) and rms_norm over the last dim, and their gradients from the saved statistics.
#include "kernels/cpu/reference.h"

namespace octet::cpu::reference {

// y = (x - mean) rstd * weight + bias
void layer_norm(const Node& node, RefInputs in, RefResults out) {
  const int64_t rows = in[0]->type.shape.rows(), cols = in[0]->type.shape.cols();
  const double eps = node.attr<double>("eps");
  const double *weight = in[1]->values.data(), *bias = in[2]->values.data();
  for (int64_t r = 0; r < rows; ++r) {
    const double* x = in[0]->values.data() + r * cols;
    double* y = out[0].values.data() + r * cols;
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < cols; ++c) sum += x[c];
    const double mean = sum / static_cast<double>(cols);
    for (int64_t c = 0; c < cols; ++c) squares += (x[c] - mean) * (x[c] - mean);
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (int64_t c = 0; c < cols; ++c) y[c] = (x[c] - mean) * rstd * weight[c] + bias[c];
    out[1].values[static_cast<size_t>(r)] = mean;
    out[2].values[static_cast<size_t>(r)] = rstd;
  }
}

// With h = (x - mean) rstd, g = dy weight: dx = rstd (g - mean(g) - h mean(g h)); dweight = sum dy h; dbias = sum dy.
void layer_norm_grad(const Node&, RefInputs in, RefResults out) {
  const int64_t rows = in[0]->type.shape.rows(), cols = in[0]->type.shape.cols();
  const double* weight = in[1]->values.data();
  for (int64_t r = 0; r < rows; ++r) {
    const double* x = in[0]->values.data() + r * cols;
    const double* dy = in[4]->values.data() + r * cols;
    const double mean = in[2]->values[static_cast<size_t>(r)], rstd = in[3]->values[static_cast<size_t>(r)];
    double sum_g = 0, sum_gh = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const double h = (x[c] - mean) * rstd, g = dy[c] * weight[c];
      sum_g += g, sum_gh += g * h;
      out[1].values[static_cast<size_t>(c)] += dy[c] * h;
      out[2].values[static_cast<size_t>(c)] += dy[c];
    }
    sum_g /= static_cast<double>(cols), sum_gh /= static_cast<double>(cols);
    double* dx = out[0].values.data() + r * cols;
    for (int64_t c = 0; c < cols; ++c) {
      dx[c] = rstd * (dy[c] * weight[c] - sum_g - (x[c] - mean) * rstd * sum_gh);
    }
  }
}

// y = x rstd * weight, rstd = 1/sqrt(mean(x^2) + eps)
void rms_norm(const Node& node, RefInputs in, RefResults out) {
  const int64_t rows = in[0]->type.shape.rows(), cols = in[0]->type.shape.cols();
  const double eps = node.attr<double>("eps");
  for (int64_t r = 0; r < rows; ++r) {
    const double* x = in[0]->values.data() + r * cols;
    double* y = out[0].values.data() + r * cols;
    double squares = 0;
    for (int64_t c = 0; c < cols; ++c) squares += x[c] * x[c];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (int64_t c = 0; c < cols; ++c) y[c] = x[c] * rstd * in[1]->values[static_cast<size_t>(c)];
    out[1].values[static_cast<size_t>(r)] = rstd;
  }
}

// With h = x rstd, g = dy weight: dx = rstd (g - h mean(g h)); dweight = sum dy h.
void rms_norm_grad(const Node&, RefInputs in, RefResults out) {
  const int64_t rows = in[0]->type.shape.rows(), cols = in[0]->type.shape.cols();
  const double* weight = in[1]->values.data();
  for (int64_t r = 0; r < rows; ++r) {
    const double* x = in[0]->values.data() + r * cols;
    const double* dy = in[3]->values.data() + r * cols;
    const double rstd = in[2]->values[static_cast<size_t>(r)];
    double sum_gh = 0;
    for (int64_t c = 0; c < cols; ++c) {
      sum_gh += dy[c] * weight[c] * x[c] * rstd;
      out[1].values[static_cast<size_t>(c)] += dy[c] * x[c] * rstd;
    }
    sum_gh /= static_cast<double>(cols);
    double* dx = out[0].values.data() + r * cols;
    for (int64_t c = 0; c < cols; ++c) dx[c] = rstd * (dy[c] * weight[c] - x[c] * rstd * sum_gh);
  }
}

}  // namespace octet::cpu::reference
