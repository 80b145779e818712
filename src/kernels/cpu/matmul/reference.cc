// GEMMs on doubles: operands are transposed to [M, K] and [K, N] so that the inner loop runs over contiguous memory.
// Rows are independent, so results do not depend on threads.
#include "kernels/cpu/reference.h"
#include "base/threads.h"
#include "kernels/common/scale_index.h"

namespace octet::cpu::reference {
namespace {

// [R, C] -> [C, R]
std::vector<double> transposed(const std::vector<double>& x, int64_t rows, int64_t cols) {
  std::vector<double> result(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) result[static_cast<size_t>(c * rows + r)] = x[static_cast<size_t>(r * cols + c)];
  }
  return result;
}

// out [M, N] = a [M, K] b [K, N] (+ c): c is [M, N], [N] or [1].
void product(const Node& node, const std::vector<double>& a, const Shape& a_shape, const std::vector<double>& b,
             const Shape& b_shape, const RefTensor* c, RefTensor& out) {
  const bool trans_a = node.attr<bool>("trans_a"), trans_b = node.attr<bool>("trans_b");
  const int64_t m = out.type.shape.rows(), n = out.type.shape.cols();
  const int64_t k = trans_a ? a_shape.rows() : a_shape.cols();
  const std::vector<double> a_t = trans_a ? transposed(a, a_shape.rows(), a_shape.cols()) : std::vector<double>();
  const std::vector<double> b_t = trans_b ? transposed(b, b_shape.rows(), b_shape.cols()) : std::vector<double>();
  const double* left = trans_a ? a_t.data() : a.data();   // [M, K]
  const double* right = trans_b ? b_t.data() : b.data();  // [K, N]
  const int64_t rows_per_task = std::max<int64_t>(1, 500000 / std::max<int64_t>(1, n * k));
  parallel_for(m, rows_per_task, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double* row = out.values.data() + i * n;
      for (int64_t p = 0; p < k; ++p) {
        const double factor = left[i * k + p];
        const double* source = right + p * n;
        for (int64_t j = 0; j < n; ++j) row[j] += factor * source[j];
      }
      if (c == nullptr) continue;
      const auto size = static_cast<int64_t>(c->values.size());
      for (int64_t j = 0; j < n; ++j) row[j] += c->values[static_cast<size_t>((i * n + j) % size)];
    }
  });
}

std::vector<double> dequantized(const RefTensor& codes, const RefTensor& scale_inv) {
  const ScaleIndex at(codes.type.shape, scale_inv.type.shape);
  std::vector<double> values(codes.values);
  const int64_t cols = codes.type.shape.cols();
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    values[static_cast<size_t>(i)] *= scale_inv.values[static_cast<size_t>(at(i / cols, i % cols))];
  }
  return values;
}

}  // namespace

void matmul(const Node& node, RefInputs in, RefResults out) {
  product(node, in[0]->values, in[0]->type.shape, in[1]->values, in[1]->type.shape, present(in, 2) ? in[2] : nullptr,
          out[0]);
}

void scaled_matmul(const Node& node, RefInputs in, RefResults out) {
  product(node, dequantized(*in[0], *in[1]), in[0]->type.shape, dequantized(*in[2], *in[3]), in[2]->type.shape,
          present(in, 4) ? in[4] : nullptr, out[0]);
}

// Defined here because it shares the conversion of codes with scaled_matmul.
void dequantize(const Node&, RefInputs in, RefResults out) { out[0].values = dequantized(*in[0], *in[1]); }

}  // namespace octet::cpu::reference
