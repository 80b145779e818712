// Sampling as defined in ir/ops/sampling.cc, on doubles, one row at a time.
#include <algorithm>
#include <numeric>

#include "base/rng.h"
#include "kernels/cpu/reference.h"

namespace octet::cpu::reference {
namespace {

// Ranking key of a logit: non-finite logits are never chosen.
double rank_of(double logit) { return std::isfinite(logit) ? logit : -INFINITY; }

struct Row {
  const double* logits;
  int64_t vocab;

  double operator[](int64_t token) const { return rank_of(logits[token]); }
  // Most likely first, ties by id.
  std::vector<int64_t> order() const {
    std::vector<int64_t> tokens(static_cast<size_t>(vocab));
    std::iota(tokens.begin(), tokens.end(), 0);
    std::stable_sort(tokens.begin(), tokens.end(), [&](int64_t a, int64_t b) { return (*this)[a] > (*this)[b]; });
    return tokens;
  }
};

// Logprobs of a row, from distances to its largest logit: exact for logits of any size.
struct LogSoftmax {
  double largest = -INFINITY, log_sum = 0;
  explicit LogSoftmax(const Row& row) {
    double sum = 0;
    for (int64_t v = 0; v < row.vocab; ++v) largest = std::max(largest, row[v]);
    for (int64_t v = 0; v < row.vocab; ++v) sum += std::exp(row[v] - largest);
    log_sum = std::log(sum);
  }
  double of(double logit) const { return logit - largest - log_sum; }
};

Row row_of(const RefTensor& logits, int64_t row) { return {logits.row(row), logits.cols()}; }

// The tokens that may be sampled, most likely first.
std::vector<int64_t> kept_tokens(const Row& row, double temperature, int64_t top_k, double top_p, double min_p) {
  std::vector<int64_t> kept = row.order();
  if (top_k > 0 && top_k < row.vocab) kept.resize(static_cast<size_t>(top_k));
  const double largest = row[kept[0]];
  std::vector<double> weights;
  for (int64_t token : kept) weights.push_back(std::exp((row[token] - largest) / temperature));
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  size_t count = 0;
  for (double sum = 0; count < kept.size() && sum < top_p * total; ++count) sum += weights[count];
  count = std::max<size_t>(count, 1);
  while (weights[count - 1] < std::min(min_p, 1.0)) --count;
  kept.resize(count);
  return kept;
}

double gumbel(const double* seeds, int64_t token) {
  const PhiloxBlock words =
      graph_random(static_cast<uint64_t>(integer(seeds[0])), static_cast<uint64_t>(integer(seeds[2])),
                   static_cast<uint32_t>(integer(seeds[1])), 0, static_cast<uint64_t>(token / 4));
  const double u = (static_cast<double>(words[static_cast<size_t>(token % 4)] >> 8) + 0.5) * 0x1p-24;
  return -std::log(-std::log(u));
}

int64_t draw(const Row& row, const double* params, int64_t top_k, const double* seeds) {
  const double temperature = params[0];
  const std::vector<int64_t> kept = temperature == 0 ? std::vector<int64_t>{row.order()[0]}
                                                     : kept_tokens(row, temperature, top_k, params[1], params[2]);
  if (row[kept[0]] == -INFINITY) return -1;
  if (kept.size() == 1) return kept[0];
  int64_t best = -1;
  double highest = -INFINITY;
  for (int64_t token : kept) {
    const double score = row[token] / temperature + gumbel(seeds, token);
    if (score > highest || (score == highest && token < best)) best = token, highest = score;
  }
  return best;
}

}  // namespace

void select_token_ids(const Node& node, RefInputs in, RefResults out) {
  for (int64_t t = 0; t < in[0]->size(); ++t) {
    const int64_t from = integer(in[2], t);
    check(from < in[1]->size(), ErrorCode::kInvalidArgument, "select_token_ids \"{}\": token {} is fed from {} of {}",
          node.name, t, from, in[1]->size());
    out[0][t] = from >= 0 ? std::max((*in[1])[from], 0.0) : (*in[0])[t];
  }
}

void adjust_logits(const Node& node, RefInputs in, RefResults out) {
  const int64_t rows = in[0]->rows(), vocab = in[0]->cols();
  out[0].values = in[0]->values;
  for (int64_t e = 0; e < in[1]->rows(); ++e) {
    const int64_t row = integer(in[1], 2 * e), token = integer(in[1], 2 * e + 1);
    if (row < 0) continue;
    check(row < rows && token >= 0 && token < vocab, ErrorCode::kInvalidArgument,
          "adjust_logits \"{}\": entry {} is token {} of row {}, of {} rows of {}", node.name, e, token, row, rows,
          vocab);
    const double *values = in[2]->row(e), biased = in[0]->row(row)[token] + values[0];
    out[0].row(row)[token] = (biased > 0 ? biased / values[1] : biased * values[1]) - values[2];
  }
  if (!present(in, 3)) return;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t mask = integer(in[4], r), masks = in[3]->rows();
    if (mask < 0) continue;
    check(mask < masks, ErrorCode::kInvalidArgument, "adjust_logits \"{}\": row {} asks for mask {} of {}", node.name,
          r, mask, masks);
    for (int64_t v = 0; v < vocab; ++v) {
      const auto word = static_cast<uint32_t>(integer(in[3]->row(mask)[v / 32]));
      if ((word >> (v % 32) & 1) == 0) out[0].row(r)[v] = -INFINITY;
    }
  }
}

void sample(const Node&, RefInputs in, RefResults out) {
  const RefTensor& raw = present(in, 4) ? *in[4] : *in[0];
  for (int64_t r = 0; r < in[0]->rows(); ++r) {
    const int64_t token = draw(row_of(*in[0], r), in[1]->row(r), integer(in[2], r), in[3]->row(r));
    const Row row = row_of(raw, r);
    out[0][r] = static_cast<double>(token);
    out[1][r] = token < 0 ? -INFINITY : LogSoftmax(row).of(row[token]);
  }
}

void top_logprobs(const Node& node, RefInputs in, RefResults out) {
  for (int64_t r = 0; r < in[0]->rows(); ++r) {
    const Row row = row_of(*in[0], r);
    const std::vector<int64_t> order = row.order();
    const LogSoftmax softmax(row);
    for (int64_t i = 0; i < node.attr<int64_t>("k"); ++i) {
      const int64_t token = order[static_cast<size_t>(i)];
      out[0].row(r)[i] = softmax.of(row[token]);
      out[1].row(r)[i] = static_cast<double>(token);
    }
  }
}

}  // namespace octet::cpu::reference
