// GPTQ and its factor against their definition in float64: columns in turn, the inverse of the second moments of those
// that are left made anew for each.
#include "compress/gptq.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "compress/dense.h"
#include "compress/input_scales.h"

namespace octet {
namespace {

using Doubles = std::vector<double>;

constexpr int64_t kRows = 6, kCols = 192;  // more than a block of columns, and than a leaf of the factorization
constexpr double kDamping = 0.01;

struct Problem {
  std::vector<float> weights, gram;
  InputStats x;
};

// Inputs that depend on each other, some far larger than the rest.
Problem make_problem() {
  Philox rng(11);
  constexpr int64_t kTokens = 400;
  Problem problem;
  problem.x = {.width = kCols, .rows = kTokens, .sample = std::vector<float>(kTokens * kCols)};
  for (int64_t t = 0; t < kTokens; ++t) {
    double before = 0;
    for (int64_t k = 0; k < kCols; ++k) {
      before = 0.8 * before + rng.normal();
      problem.x.sample[static_cast<size_t>(t * kCols + k)] = static_cast<float>(before * (k % 23 == 5 ? 6 : 1));
    }
  }
  problem.gram = column_gram(problem.x.sample, kTokens, kCols, 0, kCols);
  problem.weights.resize(kRows * kCols);
  for (float& weight : problem.weights) weight = static_cast<float>(0.1 * rng.normal());
  return problem;
}

double error_of(const Problem& problem, const std::vector<float>& values) {
  OutputError error;
  error.add(problem.x, problem.weights, values);
  return error.relative();
}

Doubles inverse(Doubles a, int64_t n) {  // Gauss-Jordan, of a positive definite matrix
  Doubles result(a.size());
  for (int64_t i = 0; i < n; ++i) result[static_cast<size_t>(i * n + i)] = 1;
  const auto at = [n](int64_t r, int64_t c) { return static_cast<size_t>(r * n + c); };
  for (int64_t i = 0; i < n; ++i) {
    const double pivot = a[at(i, i)];
    for (int64_t c = 0; c < n; ++c) a[at(i, c)] /= pivot, result[at(i, c)] /= pivot;
    for (int64_t r = 0; r < n; ++r) {
      const double factor = a[at(r, i)];
      if (r == i || factor == 0) continue;
      for (int64_t c = 0; c < n; ++c)
        a[at(r, c)] -= factor * a[at(i, c)], result[at(r, c)] -= factor * result[at(i, c)];
    }
  }
  return result;
}

Doubles damped(const std::vector<float>& gram, int64_t n) {
  Doubles h(gram.begin(), gram.end());
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) mean += h[static_cast<size_t>(i * n + i)] / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) h[static_cast<size_t>(i * n + i)] += kDamping * mean;
  return h;
}

Doubles ordered_inverse(const Problem& problem, const std::vector<int32_t>& order) {
  const Doubles h = damped(problem.gram, kCols);
  Doubles ordered;
  for (const int32_t i : order)
    for (const int32_t j : order) ordered.push_back(h[static_cast<size_t>(i * kCols + j)]);
  return inverse(ordered, kCols);
}

// The inverse of what is left without row and column i.
void eliminate(Doubles& inverted, int64_t i) {
  const auto at = [](int64_t r, int64_t c) { return static_cast<size_t>(r * kCols + c); };
  for (int64_t r = i + 1; r < kCols; ++r)
    for (int64_t c = i + 1; c < kCols; ++c)
      inverted[at(r, c)] -= inverted[at(r, i)] * inverted[at(i, c)] / inverted[at(i, i)];
}

// What a squared error of the column at each place costs when the columns behind it take up what they can.
Doubles costs(Doubles inverted) {
  Doubles result;
  for (int64_t i = 0; i < kCols; ++i) {
    result.push_back(1 / inverted[static_cast<size_t>(i * kCols + i)]);
    eliminate(inverted, i);
  }
  return result;
}

Grid best_grid(const std::vector<float>& values, const Doubles& cost, const CodeRule& rule) {
  Grid best;
  double least = 0;
  for (int step = 0; step <= 8; ++step) {
    const Grid grid = fit_grid(values, rule, 1 - 0.05f * static_cast<float>(step));
    double sum = 0;
    for (size_t k = 0; k < values.size(); ++k)
      sum += cost[k] * std::pow(static_cast<double>(grid.nearest(values[k])) - static_cast<double>(values[k]), 2);
    if (step == 0 || sum < least) least = sum, best = grid;
  }
  return best;
}

// One row by the definition: the values of its codes. `inverted` is ordered_inverse(), `cost` its costs().
std::vector<float> reference_row(const Problem& problem, int64_t row, const CodeRule& rule, ColumnOrder kind,
                                 const std::vector<int32_t>& order, Doubles inverted, const Doubles& cost) {
  const int64_t n = kCols, width = rule.width(n);
  const float* stored = problem.weights.data() + row * n;
  Doubles left, cost_of_column(cost.size());
  for (const int32_t k : order) {
    cost_of_column[static_cast<size_t>(k)] = cost[left.size()];
    left.push_back(static_cast<double>(stored[k]));
  }
  std::vector<float> values(static_cast<size_t>(n));
  Grid grid;
  for (int64_t i = 0; i < n; ++i) {
    const auto column = static_cast<int64_t>(order[static_cast<size_t>(i)]);
    const bool is_static = kind == ColumnOrder::kActivationStatic;
    if (is_static || i % width == 0) {
      const int64_t first = is_static ? column / width * width : i;
      std::vector<float> group;
      Doubles part;
      for (int64_t k = first; k < first + width; ++k) {
        group.push_back(is_static ? stored[k] : static_cast<float>(left[static_cast<size_t>(k)]));
        part.push_back((is_static ? cost_of_column : cost)[static_cast<size_t>(k)]);
      }
      grid = best_grid(group, part, rule);
    }
    const float value = grid.nearest(static_cast<float>(left[static_cast<size_t>(i)]));
    values[static_cast<size_t>(column)] = value;
    const double error =
        (left[static_cast<size_t>(i)] - static_cast<double>(value)) / inverted[static_cast<size_t>(i * n + i)];
    for (int64_t k = i + 1; k < n; ++k)
      left[static_cast<size_t>(k)] -= error * inverted[static_cast<size_t>(i * n + k)];
    eliminate(inverted, i);
  }
  return values;
}

std::vector<int32_t> as_stored(int64_t n) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

TEST(Gptq, FactorIsThatOfTheInverse) {
  for (const int64_t n : {1, 7, 192, 301, 450}) {
    Philox rng(static_cast<uint64_t>(n));
    std::vector<float> x(static_cast<size_t>(2 * n * n));
    for (float& value : x) value = static_cast<float>(rng.normal());
    const std::vector<float> gram = column_gram(x, 2 * n, n, 0, n);
    const std::vector<float> upper = inverse_factor(gram, as_stored(n), kDamping);
    const Doubles wanted = inverse(damped(gram, n), n);
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double product = 0;
        for (int64_t k = 0; k < n; ++k)
          product += static_cast<double>(upper[static_cast<size_t>(k * n + i)]) *
                     static_cast<double>(upper[static_cast<size_t>(k * n + j)]);
        const double want = wanted[static_cast<size_t>(i * n + j)];
        largest = std::max(largest, std::abs(want)), worst = std::max(worst, std::abs(product - want));
        if (j < i) {
          EXPECT_EQ(upper[static_cast<size_t>(i * n + j)], 0.0f);
        }
      }
    EXPECT_LT(worst, 1e-5 * largest) << n;  // the factor is rounded to float32
  }
}

TEST(Gptq, CodesAreThoseOfTheDefinition) {
  const Problem problem = make_problem();
  for (const ColumnOrder kind : {ColumnOrder::kAsStored, ColumnOrder::kActivation, ColumnOrder::kActivationStatic}) {
    const InputFactor factor = factor_inputs(problem.gram, kCols, kDamping, kind);
    const Doubles inverted = ordered_inverse(problem, factor.order), cost = costs(inverted);
    for (const CodeRule& rule : {CodeRule{.group = 32}, CodeRule{.group = 64, .symmetric = false}, CodeRule{.group = 0},
                                 CodeRule{.bits = 8, .group = 0, .scale_type = DType::kF32}}) {
      const GroupCodes codes = gptq(problem.weights, kRows, kCols, rule, factor);
      const std::vector<float> values = dequantize(codes);
      int64_t equal = 0;
      for (int64_t row = 0; row < kRows; ++row) {
        const std::vector<float> wanted = reference_row(problem, row, rule, kind, factor.order, inverted, cost);
        for (int64_t k = 0; k < kCols; ++k)
          equal += values[static_cast<size_t>(row * kCols + k)] == wanted[static_cast<size_t>(k)];
      }
      // A value near the middle of two codes may go to the other one in float32, and what follows in its row with it.
      EXPECT_GE(equal, kRows * kCols * (rule.bits == 4 ? 97 : 80) / 100) << rule.group << " " << rule.bits;
      const double plain = error_of(problem, dequantize(round_to_nearest(problem.weights, kRows, kCols, rule)));
      EXPECT_LT(error_of(problem, values), 0.8 * plain) << rule.group << " " << rule.bits;
    }
  }
}

TEST(Gptq, OrderIsByEnergy) {
  const Problem problem = make_problem();
  const InputFactor factor = factor_inputs(problem.gram, kCols, kDamping, ColumnOrder::kActivation);
  for (size_t i = 1; i < factor.order.size(); ++i) {
    const auto energy = [&](int32_t k) { return problem.gram[static_cast<size_t>(k * kCols + k)]; };
    EXPECT_GE(energy(factor.order[i - 1]), energy(factor.order[i]));
  }
  std::vector<int32_t> sorted = factor.order, all(static_cast<size_t>(kCols));
  std::ranges::sort(sorted);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(sorted, all);
}

// Inputs that are always zero, and fewer tokens than inputs, are what damping is for.
TEST(Gptq, MomentsWithoutAnInverseAreDamped) {
  std::vector<float> x(3 * 64, 1.0f);
  for (size_t t = 0; t < 3; ++t) x[t * 64 + 5] = 0;
  const std::vector<float> gram = column_gram(x, 3, 64, 0, 64), weights(64, 0.3f);
  const GroupCodes codes =
      gptq(weights, 1, 64, {.group = 32}, factor_inputs(gram, 64, kDamping, ColumnOrder::kAsStored));
  for (const float value : dequantize(codes)) EXPECT_TRUE(std::isfinite(value));
  std::vector<float> negative = gram;
  negative[0] = -100;
  EXPECT_THROW(inverse_factor(negative, as_stored(64), 1e-6), Error);
}

}  // namespace
}  // namespace octet
