#define EIGEN_DONT_PARALLELIZE  // threads are those of parallel_for
#include "compress/dense.h"

#include <Eigen/Dense>
#include <algorithm>

#include "base/error.h"
#include "base/threads.h"

namespace octet {
namespace {

template <typename T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Block = Eigen::Ref<Matrix<double>, 0, Eigen::OuterStride<>>;
using Strided = Eigen::Map<Matrix<float>, 0, Eigen::OuterStride<>>;
using ConstStrided = Eigen::Map<const Matrix<float>, 0, Eigen::OuterStride<>>;

constexpr Eigen::Index kLeaf = 96;  // factored by one thread
constexpr int64_t kTileRows = 64;   // of a product

// body(first, rows): a part of a result's rows.
template <typename Body>
void for_rows(int64_t rows, const Body& body) {
  parallel_for(rows, kTileRows, [&](int64_t begin, int64_t end) { body(begin, end - begin); });
}

// Where a = L L^T, makes it L^-1. By halves, so that nearly all of the work is products:
//   L21 = A21 L11^-T, A22 - L21 L21^T = L22 L22^T, (L^-1)21 = -L22^-1 L21 L11^-1.
void invert_factor(Block a) {
  const Eigen::Index n = a.rows();
  if (n <= kLeaf) {
    const Eigen::LLT<Matrix<double>> factor(a);
    check(factor.info() == Eigen::Success, ErrorCode::kInvalidArgument,
          "the inputs' second moments are not positive definite: raise --damping or give a longer calibration text");
    const Matrix<double> identity = Matrix<double>::Identity(n, n);
    a = factor.matrixL().solve(identity);
    return;
  }
  const Eigen::Index half = n / 2, rest = n - half;
  invert_factor(a.topLeftCorner(half, half));
  const auto first = a.topLeftCorner(half, half);
  Matrix<double> below(rest, half), product(rest, half);
  for_rows(rest, [&](int64_t begin, int64_t rows) {
    below.middleRows(begin, rows).noalias() = a.block(half + begin, 0, rows, half) * first.transpose();
  });
  for_rows(rest, [&](int64_t begin, int64_t rows) {
    a.block(half + begin, half, rows, rest).noalias() -= below.middleRows(begin, rows) * below.transpose();
  });
  invert_factor(a.bottomRightCorner(rest, rest));
  for_rows(rest, [&](int64_t begin, int64_t rows) {
    product.middleRows(begin, rows).noalias() = below.middleRows(begin, rows) * first;
  });
  for_rows(rest, [&](int64_t begin, int64_t rows) {
    a.block(half + begin, 0, rows, half).noalias() = -(a.block(half + begin, half, rows, rest) * product);
  });
  a.topRightCorner(half, rest).setZero();
}

}  // namespace

std::vector<float> inverse_factor(std::span<const float> matrix, int64_t n, double damping) {
  double diagonal = 0;
  for (int64_t i = 0; i < n; ++i) diagonal += matrix[static_cast<size_t>(i * n + i)];
  const double added = std::max(damping * diagonal / static_cast<double>(n), 1e-30);
  // With rows and columns reversed a lower triangular L^-1 becomes the upper triangular U.
  Matrix<double> reversed(n, n);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j)
      reversed(n - 1 - i, n - 1 - j) = matrix[static_cast<size_t>(i * n + j)] + (i == j ? added : 0);
  invert_factor(reversed);
  std::vector<float> upper(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j)
      upper[static_cast<size_t>(i * n + j)] = static_cast<float>(reversed(n - 1 - i, n - 1 - j));
  return upper;
}

void subtract_product(const float* a, const float* b, int64_t b_stride, float* c, int64_t c_stride, int64_t m,
                      int64_t n, int64_t k) {
  const ConstStrided right(b, k, n, Eigen::OuterStride<>(b_stride));
  for_rows(m, [&](int64_t begin, int64_t rows) {
    const ConstStrided left(a + begin * k, rows, k, Eigen::OuterStride<>(k));
    Strided(c + begin * c_stride, rows, n, Eigen::OuterStride<>(c_stride)).noalias() -= left * right;
  });
}

std::vector<float> column_gram(std::span<const float> a, int64_t m, int64_t k, int64_t first, int64_t n) {
  const ConstStrided columns(a.data() + first, m, n, Eigen::OuterStride<>(k));
  std::vector<float> gram(static_cast<size_t>(n * n));
  Strided(gram.data(), n, n, Eigen::OuterStride<>(n)).noalias() = columns.transpose() * columns;
  return gram;
}

double product_energy(std::span<const float> x, std::span<const float> w, int64_t m, int64_t n, int64_t k) {
  const ConstStrided left(x.data(), m, k, Eigen::OuterStride<>(k));
  std::vector<double> energy(static_cast<size_t>((n + kTileRows - 1) / kTileRows));
  parallel_for(std::ssize(energy), 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t row = tile * kTileRows;
      const ConstStrided right(w.data() + row * k, std::min(kTileRows, n - row), k, Eigen::OuterStride<>(k));
      energy[static_cast<size_t>(tile)] = (left * right.transpose()).cast<double>().squaredNorm();
    }
  });
  double sum = 0;  // in the order of the rows, whatever the threads
  for (const double part : energy) sum += part;
  return sum;
}

}  // namespace octet
