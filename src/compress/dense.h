// Dense linear algebra on the host, by all threads: the one file that uses Eigen is dense.cc. Matrices are row-major.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace octet {

// U, upper triangular [n, n], with U^T U = H^-1, for the symmetric positive definite H + damping * mean(diagonal) * I
// in float64, where H is `matrix` with rows and columns in the order given: H_ij = matrix[order_i, order_j]. Throws
// kInvalidArgument where that is not positive definite.
std::vector<float> inverse_factor(std::span<const float> matrix, std::span<const int32_t> order, double damping);

// c [m, n] -= a [m, k] b [k, n]; rows of b and c are `b_stride` and `c_stride` apart.
void subtract_product(const float* a, const float* b, int64_t b_stride, float* c, int64_t c_stride, int64_t m,
                      int64_t n, int64_t k);

// a^T a of the columns [first, first + n) of a [m, k]: [n, n].
std::vector<float> column_gram(std::span<const float> a, int64_t m, int64_t k, int64_t first, int64_t n);

// Sum of squares of x [m, k] w^T, w [n, k].
double product_energy(std::span<const float> x, std::span<const float> w, int64_t m, int64_t n, int64_t k);

}  // namespace octet
