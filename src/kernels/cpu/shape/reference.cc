// Ops that move elements, and reductions. Reductions propagate NaN: amax of a tensor with a NaN is NaN.
#include "kernels/cpu/reference.h"

namespace octet::cpu::reference {
namespace {

// A tensor seen as [outer, axis, inner].
struct Split {
  int64_t outer = 1, axis = 1, inner = 1;
  Split(const Shape& shape, int64_t at) {
    if (at < 0) at += shape.rank();
    for (int i = 0; i < shape.rank(); ++i) (i < at ? outer : i == at ? axis : inner) *= shape[i];
  }
};

}  // namespace

std::vector<double> transposed(const std::vector<double>& x, int64_t cols) {
  std::vector<double> result(x.size());
  const auto count = static_cast<int64_t>(x.size()), rows = count / cols;
  for (int64_t i = 0; i < count; ++i)
    result[static_cast<size_t>(i % cols * rows + i / cols)] = x[static_cast<size_t>(i)];
  return result;
}

void reshape(const Node&, RefInputs in, RefResults out) { out[0].values = in[0]->values; }

void slice(const Node& node, RefInputs in, RefResults out) {
  const Split s(in[0]->type.shape, node.attr<int64_t>("axis"));
  const int64_t begin = node.attr<int64_t>("begin"), end = node.attr<int64_t>("end");
  auto target = out[0].values.begin();
  for (int64_t o = 0; o < s.outer; ++o) {
    const auto source = in[0]->values.begin() + o * s.axis * s.inner;
    target = std::copy(source + begin * s.inner, source + end * s.inner, target);
  }
}

void concat(const Node& node, RefInputs in, RefResults out) {
  const int64_t axis = node.attr<int64_t>("axis");
  const int64_t outer = Split(out[0].type.shape, axis).outer;
  auto target = out[0].values.begin();
  for (int64_t o = 0; o < outer; ++o) {
    for (const RefTensor* part : in) {
      const Split s(part->type.shape, axis);
      const auto source = part->values.begin() + o * s.axis * s.inner;
      target = std::copy(source, source + s.axis * s.inner, target);
    }
  }
}

void transpose(const Node&, RefInputs in, RefResults out) { out[0].values = transposed(in[0]->values, in[0]->cols()); }

// kind sum | max | amax over all elements (axis all) or over the rows (axis rows: one result per column).
void reduce(const Node& node, RefInputs in, RefResults out) {
  const std::string& kind = node.attr<std::string>("reduction");
  auto& result = out[0].values;
  const bool sum = kind == "sum", absolute = kind == "amax";
  std::fill(result.begin(), result.end(), sum || absolute ? 0.0 : -INFINITY);
  const size_t period = result.size();  // C or 1
  for (size_t i = 0; i < in[0]->values.size(); ++i) {
    double& target = result[i % period];
    const double value = absolute ? std::fabs(in[0]->values[i]) : in[0]->values[i];
    if (sum) {
      target += value;
    } else if (!(value <= target) && !std::isnan(target)) {
      target = value;
    }
  }
}

void select_rows(const Node& node, RefInputs in, RefResults out) {
  for (int64_t i = 0; i < in[1]->size(); ++i) {
    const int64_t row = integer(in[1], i), rows = in[0]->rows();
    if (row == -1) continue;
    check(row >= 0 && row < rows, ErrorCode::kInvalidArgument, "select_rows \"{}\": row {} of {}", node.name, row,
          rows);
    std::copy_n(in[0]->row(row), in[0]->cols(), out[0].row(i));
  }
}

void take_columns(const Node& node, RefInputs in, RefResults out) {
  const int64_t cols = in[0]->cols();
  for (int64_t c = 0; c < cols; ++c) {
    const int64_t from = integer(in[1], c);
    check(from >= 0 && from < cols, ErrorCode::kInvalidArgument, "take_columns \"{}\": column {} of {}", node.name,
          from, cols);
    for (int64_t r = 0; r < in[0]->rows(); ++r) out[0].row(r)[c] = in[0]->row(r)[from];
  }
}

void segment_mean(const Node& node, RefInputs in, RefResults out) {
  for (int64_t s = 0; s + 1 < in[1]->size(); ++s) {
    const int64_t begin = integer(in[1], s), end = integer(in[1], s + 1);
    check(begin >= 0 && begin <= end && end <= in[0]->rows(), ErrorCode::kInvalidArgument,
          "segment_mean \"{}\": segment {} is [{}, {}) of {} rows", node.name, s, begin, end, in[0]->rows());
    double* mean = out[0].row(s);
    std::fill_n(mean, in[0]->cols(), 0.0);
    for (int64_t t = begin; t < end; ++t)
      for (int64_t c = 0; c < in[0]->cols(); ++c) mean[c] += in[0]->row(t)[c] / static_cast<double>(end - begin);
  }
}

}  // namespace octet::cpu::reference
