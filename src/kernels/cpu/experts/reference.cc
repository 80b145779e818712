// Mixtures of experts on doubles. Choices, places and offsets are checked before they are followed.
#include <algorithm>
#include <numeric>

#include "kernels/cpu/reference.h"

namespace octet::cpu::reference {
namespace {

// NaN is below all, so that the order is total.
double rank_of(double logit) { return std::isnan(logit) ? -INFINITY : logit; }

// The scores of one row, and its log-sum-exp.
double score_row(const Node& node, const double* logits, int64_t count, std::vector<double>& scores, bool softmax) {
  double most = -INFINITY, sum = 0;
  for (int64_t e = 0; e < count; ++e) most = std::max(most, rank_of(logits[e]));
  for (int64_t e = 0; e < count; ++e) sum += std::exp(logits[e] - most);
  scores.resize(static_cast<size_t>(count));
  for (int64_t e = 0; e < count; ++e)
    scores[static_cast<size_t>(e)] = softmax ? std::exp(logits[e] - most) / sum : 1 / (1 + std::exp(-logits[e]));
  return most + std::log(sum);
}

bool is_softmax(const Node& node) { return node.attr<std::string>("scoring") == "softmax"; }

int64_t checked(const Node& node, const char* what, int64_t value, int64_t limit) {
  check(value >= 0 && value < limit, ErrorCode::kInvalidArgument, "{} \"{}\": {} {} of {}", op_name(node.op), node.name,
        what, value, limit);
  return value;
}

// fn(expert, first row, rows) for every expert that has some.
template <typename Fn>
void for_groups(const Node& node, const RefTensor& offsets, int64_t rows, const Fn& fn) {
  int64_t begin = 0;
  for (int64_t e = 0; e + 1 < offsets.size(); ++e) {
    const int64_t end = integer(offsets[e + 1]);
    check(end >= begin && end <= rows && integer(offsets[0]) == 0, ErrorCode::kInvalidArgument,
          "{} \"{}\": expert {} has rows {} to {} of {}", op_name(node.op), node.name, e, begin, end, rows);
    if (end > begin) fn(e, begin, end - begin);
    begin = end;
  }
}

void grouped_product(const Node& node, const RefTensor& x, const RefTensor& w, const RefTensor& offsets,
                     RefTensor& out) {
  const bool trans_b = node.attr<bool>("trans_b");
  const int64_t depth = x.cols(), n = out.cols();
  for_groups(node, offsets, x.rows(), [&](int64_t e, int64_t first, int64_t count) {
    const double* weights = w.values.data() + e * depth * n;
    for (int64_t r = first; r < first + count; ++r)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t p = 0; p < depth; ++p) out.row(r)[j] += x.row(r)[p] * weights[trans_b ? j * depth + p : p * n + j];
  });
}

}  // namespace

void top_k(const Node& node, RefInputs in, RefResults out) {
  const RefTensor& logits = *in[0];
  const int64_t k = node.attr<int64_t>("k"), count = logits.cols();
  std::vector<double> scores;
  std::vector<int64_t> order(static_cast<size_t>(count));
  for (int64_t t = 0; t < logits.rows(); ++t) {
    const double* row = logits.row(t);
    out[3][t] = score_row(node, row, count, scores, is_softmax(node));
    std::copy(scores.begin(), scores.end(), out[2].row(t));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return rank_of(row[a]) > rank_of(row[b]); });
    double sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += scores[static_cast<size_t>(order[static_cast<size_t>(i)])];
    for (int64_t i = 0; i < k; ++i) {
      const int64_t e = order[static_cast<size_t>(i)];
      out[1].row(t)[i] = static_cast<double>(e);
      out[0].row(t)[i] = scores[static_cast<size_t>(e)] / (node.attr<bool>("renormalize") ? sum : 1);
    }
  }
}

void top_k_grad(const Node& node, RefInputs in, RefResults out) {
  const RefTensor &logits = *in[0], &experts = *in[1];
  const int64_t k = node.attr<int64_t>("k"), count = logits.cols();
  const bool softmax = is_softmax(node), renormalize = node.attr<bool>("renormalize");
  std::vector<double> scores, shares, dscores;
  for (int64_t t = 0; t < logits.rows(); ++t) {
    score_row(node, logits.row(t), count, scores, softmax);
    score_row(node, logits.row(t), count, shares, true);
    dscores.assign(static_cast<size_t>(count), 0.0);
    for (int64_t e = 0; present(in, 3) && e < count; ++e) dscores[static_cast<size_t>(e)] = in[3]->row(t)[e];
    double sum = 0, mean = 0;
    const auto chosen = [&](int64_t i) {
      return static_cast<size_t>(checked(node, "expert", integer(experts.row(t)[i]), count));
    };
    for (int64_t i = 0; i < k; ++i) sum += scores[chosen(i)];
    for (int64_t i = 0; present(in, 2) && i < k; ++i) mean += in[2]->row(t)[i] * scores[chosen(i)] / sum;
    for (int64_t i = 0; present(in, 2) && i < k; ++i)
      dscores[chosen(i)] += renormalize ? (in[2]->row(t)[i] - mean) / sum : in[2]->row(t)[i];
    double inner = 0;
    for (size_t e = 0; e < scores.size(); ++e) inner += dscores[e] * scores[e];
    for (size_t e = 0; e < scores.size(); ++e) {
      double& d = out[0].row(t)[e];
      d = softmax ? scores[e] * (dscores[e] - inner) : dscores[e] * scores[e] * (1 - scores[e]);
      if (present(in, 4)) d += (*in[4])[t] * shares[e];
    }
  }
}

void group_rows(const Node& node, RefInputs in, RefResults out) {
  const RefTensor& experts = *in[0];
  const int64_t groups = node.attr<int64_t>("groups"), parts = node.attr<int64_t>("parts");
  const auto group_of = [&](int64_t i) {
    const int64_t expert = checked(node, "expert", integer(experts[i]), groups / parts);
    const int64_t part = present(in, 1) ? checked(node, "part", integer((*in[1])[i / experts.cols()]), parts) : 0;
    return static_cast<size_t>(expert * parts + part);
  };
  std::vector<int64_t> next(static_cast<size_t>(groups) + 1);
  for (int64_t i = 0; i < experts.size(); ++i) ++next[group_of(i) + 1];
  for (int64_t e = 0; e < groups; ++e) out[2][e] = static_cast<double>(next[static_cast<size_t>(e) + 1]);
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (int64_t e = 0; e <= groups; ++e) out[1][e] = static_cast<double>(next[static_cast<size_t>(e)]);
  for (int64_t i = 0; i < experts.size(); ++i) out[0][i] = static_cast<double>(next[group_of(i)]++);
}

void dispatch_rows(const Node& node, RefInputs in, RefResults out) {
  const RefTensor &x = *in[0], &places = *in[1];
  for (int64_t i = 0; i < places.size(); ++i) {
    const int64_t place = checked(node, "place", integer(places[i]), out[0].rows());
    std::copy_n(x.row(i / places.cols()), x.cols(), out[0].row(place));
    if (present(in, 2)) out[1][place] = (*in[2])[i / places.cols()];
  }
}

void combine_rows(const Node& node, RefInputs in, RefResults out) {
  const RefTensor &rows = *in[0], &places = *in[1];
  for (int64_t i = 0; i < places.size(); ++i) {
    const double* row = rows.row(checked(node, "place", integer(places[i]), rows.rows()));
    const double weight = present(in, 2) ? (*in[2])[i] : 1;
    for (int64_t c = 0; c < rows.cols(); ++c) out[0].row(i / places.cols())[c] += weight * row[c];
  }
}

void combine_rows_grad(const Node& node, RefInputs in, RefResults out) {
  const RefTensor &rows = *in[0], &places = *in[1], &weights = *in[2], &dy = *in[3];
  for (int64_t i = 0; i < places.size(); ++i) {
    const int64_t place = checked(node, "place", integer(places[i]), rows.rows());
    const double* given = dy.row(i / places.cols());
    for (int64_t c = 0; c < rows.cols(); ++c) {
      out[0].row(place)[c] = weights[i] * given[c];
      out[1][i] += rows.row(place)[c] * given[c];
    }
  }
}

void grouped_matmul(const Node& node, RefInputs in, RefResults out) {
  grouped_product(node, *in[0], *in[1], *in[2], out[0]);
}

void scaled_grouped_matmul(const Node& node, RefInputs in, RefResults out) {
  grouped_product(node, dequantized(*in[0], *in[1]),
                  dequantized(in_rows(node, *in[2]), *in[3], present(in, 5) ? in[5] : nullptr), *in[4], out[0]);
}

void grouped_matmul_wgrad(const Node& node, RefInputs in, RefResults out) {
  const RefTensor &dy = *in[0], &x = *in[1];
  if (present(in, 3)) out[0].values = in[3]->values;
  for_groups(node, *in[2], x.rows(), [&](int64_t e, int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r)
      for (int64_t j = 0; j < dy.cols(); ++j)
        for (int64_t c = 0; c < x.cols(); ++c) out[0].row(e * dy.cols() + j)[c] += dy.row(r)[j] * x.row(r)[c];
  });
}

}  // namespace octet::cpu::reference
