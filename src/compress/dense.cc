#define EIGEN_DONT_PARALLELIZE  // threads are those of parallel_for
#include "compress/dense.h"

#include <Eigen/Dense>
#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/threads.h"

namespace octet {
namespace {

template <typename T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Block = Eigen::Ref<Matrix<double>, 0, Eigen::OuterStride<>>;
using Strided = Eigen::Map<Matrix<float>, 0, Eigen::OuterStride<>>;
using ConstStrided = Eigen::Map<const Matrix<float>, 0, Eigen::OuterStride<>>;

constexpr Eigen::Index kLeaf = 96;   // factored by one thread
constexpr Eigen::Index kTile = 192;  // rows and columns of a product that one thread makes at once
constexpr int64_t kTileRows = 64;    // of a product that is split by rows

// body(first, rows): a part of a result's rows.
template <typename Body>
void for_rows(int64_t rows, const Body& body) {
  parallel_for(rows, kTileRows, [&](int64_t begin, int64_t end) { body(begin, end - begin); });
}

// body(row, rows, column, columns): a tile of a result, whichever thread is free. Tiles differ in work: last rows
// first.
template <typename Body>
void for_tiles(Eigen::Index rows, Eigen::Index cols, const Body& body) {
  const Eigen::Index down = (rows + kTile - 1) / kTile, across = (cols + kTile - 1) / kTile;
  std::atomic<Eigen::Index> next = 0;
  parallel_threads([&](int, int) {
    for (Eigen::Index tile = next++; tile < down * across; tile = next++) {
      const Eigen::Index row = (down - 1 - tile / across) * kTile, col = tile % across * kTile;
      body(row, std::min(kTile, rows - row), col, std::min(kTile, cols - col));
    }
  });
}

// Where a = L L^T, of which the lower triangle is read, makes it L^-1; above the diagonal are zeros and stay. By
// halves, so that nearly all of the work is products, of which the triangles' zeros are left out:
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
  const auto first = a.topLeftCorner(half, half), second = a.bottomRightCorner(rest, rest);
  Matrix<double> below(rest, half), product(rest, half);
  for_tiles(rest, half, [&](auto row, auto rows, auto col, auto cols) {
    const Eigen::Index until = col + cols;
    below.block(row, col, rows, cols).noalias() =
        a.block(half + row, 0, rows, until) * first.block(col, 0, cols, until).transpose();
  });
  for_tiles(rest, rest, [&](auto row, auto rows, auto col, auto cols) {
    if (col > row) return;
    auto tile = a.block(half + row, half + col, rows, cols);
    const auto left = below.middleRows(row, rows);
    if (col == row)
      tile.template selfadjointView<Eigen::Lower>().rankUpdate(left, -1);
    else
      tile.noalias() -= left * below.middleRows(col, cols).transpose();
  });
  invert_factor(a.bottomRightCorner(rest, rest));
  for_tiles(rest, half, [&](auto row, auto rows, auto col, auto cols) {
    product.block(row, col, rows, cols).noalias() =
        below.block(row, col, rows, half - col) * first.block(col, col, half - col, cols);
  });
  for_tiles(rest, half, [&](auto row, auto rows, auto col, auto cols) {
    const Eigen::Index until = row + rows;
    a.block(half + row, col, rows, cols).noalias() =
        -(second.block(row, 0, rows, until) * product.block(0, col, until, cols));
  });
}

}  // namespace

std::vector<float> inverse_factor(std::span<const float> matrix, std::span<const int32_t> order, double damping) {
  const int64_t n = std::ssize(order);
  double diagonal = 0;
  for (int64_t i = 0; i < n; ++i) diagonal += matrix[static_cast<size_t>(i * n + i)];
  const double added = std::max(damping * diagonal / static_cast<double>(n), 1e-30);
  // With rows and columns reversed a lower triangular L^-1 becomes the upper triangular U.
  Matrix<double> reversed(n, n);
  for_rows(n, [&](int64_t begin, int64_t rows) {
    for (int64_t r = begin; r < begin + rows; ++r) {
      const float* from = matrix.data() + order[static_cast<size_t>(n - 1 - r)] * n;
      for (int64_t c = 0; c <= r; ++c) reversed(r, c) = from[order[static_cast<size_t>(n - 1 - c)]];
      reversed(r, r) += added;
      reversed.row(r).tail(n - 1 - r).setZero();
    }
  });
  invert_factor(reversed);
  std::vector<float> upper(static_cast<size_t>(n * n));
  for_rows(n, [&](int64_t begin, int64_t rows) {
    for (int64_t i = begin; i < begin + rows; ++i)
      for (int64_t j = i; j < n; ++j)
        upper[static_cast<size_t>(i * n + j)] = static_cast<float>(reversed(n - 1 - i, n - 1 - j));
  });
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
