// layer_norm (biased variance) and rms_norm over the last dim, and their gradients from the saved statistics.
#include "kernels/cpu/reference.h"

namespace octet::cpu::reference {
namespace {

// y = (x - mean) rstd * weight + bias, rstd = 1/sqrt(mean((x - mean)^2) + eps); of rms_norm mean and bias are absent.
void norm(const Node& node, RefInputs in, const RefTensor* bias, RefTensor& y, RefTensor* means, RefTensor& rstds) {
  const int64_t cols = y.cols();
  const double eps = node.attr<double>("eps"), *weight = in[1]->values.data();
  for (int64_t r = 0; r < y.rows(); ++r) {
    const double* x = in[0]->row(r);
    double sum = 0, squares = 0;
    for (int64_t c = 0; means != nullptr && c < cols; ++c) sum += x[c];
    const double mean = sum / static_cast<double>(cols);
    for (int64_t c = 0; c < cols; ++c) squares += (x[c] - mean) * (x[c] - mean);
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (int64_t c = 0; c < cols; ++c) y.row(r)[c] = (x[c] - mean) * rstd * weight[c];
    for (int64_t c = 0; bias != nullptr && c < cols; ++c) y.row(r)[c] += (*bias)[c];
    if (means != nullptr) (*means)[r] = mean;
    rstds[r] = rstd;
  }
}

}  // namespace

void layer_norm(const Node& node, RefInputs in, RefResults out) { norm(node, in, in[2], out[0], &out[1], out[2]); }

void rms_norm(const Node& node, RefInputs in, RefResults out) { norm(node, in, nullptr, out[0], nullptr, out[1]); }

// With h = (x - mean) rstd, g = dy weight: dx = rstd (g - mean(g) - h mean(g h)); dweight = sum dy h; dbias = sum dy.
void layer_norm_grad(const Node&, RefInputs in, RefResults out) {
  const int64_t cols = in[0]->cols();
  const double* weight = in[1]->values.data();
  for (int64_t r = 0; r < in[0]->rows(); ++r) {
    const double *x = in[0]->row(r), *dy = in[4]->row(r), mean = (*in[2])[r], rstd = (*in[3])[r];
    double sum_g = 0, sum_gh = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const double h = (x[c] - mean) * rstd, g = dy[c] * weight[c];
      sum_g += g, sum_gh += g * h;
      out[1][c] += dy[c] * h;
      out[2][c] += dy[c];
    }
    sum_g /= static_cast<double>(cols), sum_gh /= static_cast<double>(cols);
    double* dx = out[0].row(r);
    for (int64_t c = 0; c < cols; ++c) {
      dx[c] = rstd * (dy[c] * weight[c] - sum_g - (x[c] - mean) * rstd * sum_gh);
    }
  }
}

// With h = x rstd, g = dy weight: dx = rstd (g - h mean(g h)); dweight = sum dy h.
void rms_norm_grad(const Node&, RefInputs in, RefResults out) {
  const int64_t cols = in[0]->cols();
  const double* weight = in[1]->values.data();
  for (int64_t r = 0; r < in[0]->rows(); ++r) {
    const double *x = in[0]->row(r), *dy = in[3]->row(r), rstd = (*in[2])[r];
    double sum_gh = 0;
    for (int64_t c = 0; c < cols; ++c) {
      sum_gh += dy[c] * weight[c] * x[c] * rstd;
      out[1][c] += dy[c] * x[c] * rstd;
    }
    sum_gh /= static_cast<double>(cols);
    double* dx = out[0].row(r);
    for (int64_t c = 0; c < cols; ++c) dx[c] = rstd * (dy[c] * weight[c] - x[c] * rstd * sum_gh);
  }
}

}  // namespace octet::cpu::reference
