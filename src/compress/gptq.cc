#include "compress/gptq.h"

#include <algorithm>
#include <numeric>

#include "base/threads.h"
#include "compress/dense.h"

namespace octet {
namespace {

constexpr int kClips = 8;        // ranges tried for a group: 1, 0.95 .. 0.6 of its own
constexpr int64_t kBlock = 128;  // columns whose errors reach the later ones in one product; whole groups

// The columns of a matrix in another order: [N, K].
std::vector<float> in_order(std::span<const float> from, int64_t rows, const std::vector<int32_t>& order) {
  const int64_t cols = std::ssize(order);
  std::vector<float> to(from.size());
  parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t k = 0; k < cols; ++k)
        to[static_cast<size_t>(r * cols + k)] = from[static_cast<size_t>(r * cols + order[static_cast<size_t>(k)])];
  });
  return to;
}

class Rounding {
 public:
  Rounding(std::span<const float> weights, int64_t rows, int64_t cols, const CodeRule& rule, const InputFactor& inputs)
      : rows_(rows),
        cols_(cols),
        width_(rule.width(cols)),
        rule_(rule),
        inputs_(inputs),
        left_(in_order(weights, rows, inputs.order)),
        errors_(static_cast<size_t>(rows * kBlock)),
        cost_(static_cast<size_t>(cols)),
        result_(empty_codes(rule, rows, cols)) {
    for (int64_t place = 0; place < cols; ++place) {
      const float pivot = upper(place)[place];
      const auto column = static_cast<size_t>(inputs.order[static_cast<size_t>(place)]);
      cost_[is_static() ? column : static_cast<size_t>(place)] = 1 / (pivot * pivot);
    }
    if (is_static()) fit_static_grids(weights);
    if (inputs.kind != ColumnOrder::kActivation || width_ == cols) return;
    result_.group_of.resize(static_cast<size_t>(cols));
    for (int64_t place = 0; place < cols; ++place)
      result_.group_of[static_cast<size_t>(inputs.order[static_cast<size_t>(place)])] =
          static_cast<int32_t>(place / width_);
  }

  GroupCodes run() {
    for (int64_t first = 0; first < cols_; first += kBlock) {
      const int64_t end = std::min(first + kBlock, cols_);
      parallel_for(rows_, 4, [&](int64_t begin, int64_t last) {
        for (int64_t row = begin; row < last; ++row) round_block(row, first, end);
      });
      if (end < cols_)
        subtract_product(errors_.data(), upper(first) + end, cols_, left_.data() + end, cols_, rows_, cols_ - end,
                         end - first);
    }
    return std::move(result_);
  }

 private:
  const float* upper(int64_t row) const { return inputs_.upper.data() + row * cols_; }

  bool is_static() const { return inputs_.kind == ColumnOrder::kActivationStatic; }

  void fit_static_grids(std::span<const float> weights) {
    const int64_t groups = result_.groups();
    parallel_for(rows_ * groups, 16, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g)
        set_grid(result_, g / groups, g % groups, best_grid(weights.data() + g * width_, g % groups * width_));
    });
  }

  // Of the values of a group whose costs begin at `first`: clipped as far as it lowers the rounding's error, each
  // column's counted as the columns behind it cannot take it up.
  Grid best_grid(const float* values, int64_t first) const {
    Grid best;
    double least = 0;
    for (int step = 0; step <= kClips; ++step) {
      const Grid grid = fit_grid({values, static_cast<size_t>(width_)}, rule_, 1 - 0.05f * static_cast<float>(step));
      double sum = 0;
      for (int64_t k = 0; k < width_; ++k) {
        const float error = grid.nearest(values[k]) - values[k];
        sum += static_cast<double>(error * error * cost_[static_cast<size_t>(first + k)]);
      }
      if (step > 0 && sum >= least) continue;
      least = sum, best = grid;
    }
    return best;
  }

  // The grid of the column at a place: that of its group as stored, or fitted to what is left of its group where that
  // begins; whole rows have one, which later blocks find in the result.
  Grid grid_at(int64_t row, int64_t place) {
    if (!is_static() && place % width_ == 0)
      set_grid(result_, row, place / width_, best_grid(left_.data() + row * cols_ + place, place));
    const int64_t at = is_static() ? inputs_.order[static_cast<size_t>(place)] : place;
    const auto group = static_cast<size_t>(row * result_.groups() + at / width_);
    return {.scale = result_.scales[group],
            .zero = result_.zeros.empty() ? 0.0f : static_cast<float>(result_.zeros[group]),
            .lowest = static_cast<float>(rule_.lowest()),
            .highest = static_cast<float>(rule_.highest())};
  }

  void round_block(int64_t row, int64_t first, int64_t end) {
    float* weights = left_.data() + row * cols_;
    float* errors = errors_.data() + row * (end - first);
    for (int64_t place = first; place < end; ++place) {
      const Grid grid = grid_at(row, place);
      const float code = grid.code(weights[place]);
      const int32_t column = inputs_.order[static_cast<size_t>(place)];
      result_.codes[static_cast<size_t>(row * cols_ + column)] = static_cast<int8_t>(code);
      const float* factor = upper(place);
      const float error = (weights[place] - grid.value(code)) / factor[place];
      errors[place - first] = error;
      for (int64_t later = place + 1; later < end; ++later) weights[later] -= error * factor[later];
    }
  }

  int64_t rows_, cols_, width_;
  const CodeRule& rule_;
  const InputFactor& inputs_;
  std::vector<float> left_;    // [N, K] by place: weights less what earlier columns left
  std::vector<float> errors_;  // [N, columns of the block]
  std::vector<float> cost_;    // [K] of a squared error, by place; under static groups by column
  GroupCodes result_;
};

}  // namespace

InputFactor factor_inputs(std::span<const float> gram, int64_t cols, double damping, ColumnOrder kind) {
  InputFactor result{.kind = kind, .order = std::vector<int32_t>(static_cast<size_t>(cols)), .upper = {}};
  std::iota(result.order.begin(), result.order.end(), 0);
  if (kind != ColumnOrder::kAsStored)
    std::ranges::stable_sort(result.order, std::greater<>(),
                             [&](int32_t k) { return gram[static_cast<size_t>(k * cols + k)]; });
  result.upper = inverse_factor(gram, result.order, damping);
  return result;
}

GroupCodes gptq(std::span<const float> weights, int64_t rows, int64_t cols, const CodeRule& rule,
                const InputFactor& inputs) {
  return Rounding(weights, rows, cols, rule, inputs).run();
}

}  // namespace octet
