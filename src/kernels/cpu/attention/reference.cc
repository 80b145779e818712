// Attention within segments on doubles, causal or not, and its gradient from the saved log-sum-exp.
//
// q [T, heads D], k and v [T, kv_heads D], head h reads kv head h / (heads / kv_heads). Tokens at or beyond the last
// segment end: out 0, lse 0, gradients 0. Dropout acts on the probabilities: element (h T + query) max_length + key
// offset in its segment of graph_random decides, kept ones are divided by 1 - p; lse is of the scores before dropout.
// With dropout of 8 bits a byte decides instead (keep_byte of kernels/common/keep_rule.h).
// ALiBi adds bias(h) -|key - query| to a score; it has no gradient.
#include "kernels/cpu/reference.h"
#include "kernels/common/keep_rule.h"
#include "kernels/cpu/attention/score_bias.h"

namespace octet::cpu::reference {
namespace {

struct Problem {
  int64_t tokens, heads, first_head, kv_heads, dim, window, max_length;
  double scale, dropout;
  bool causal;
  std::vector<double> biases;  // of each head
  uint32_t key = 0;
  KeepRule rule;  // of dropout
  const RefTensor *segments, *rng;

  Problem(const Node& node, RefInputs in, size_t rng_index)
      : tokens(in[0]->rows()),
        heads(node.attr<int64_t>("heads")),
        first_head(node.attr<int64_t>("first_head")),
        kv_heads(node.attr<int64_t>("kv_heads")),
        dim(node.attr<int64_t>("head_dim")),
        window(node.attr<int64_t>("window")),
        max_length(node.attr<int64_t>("max_length")),
        scale(node.attr<double>("scale")),
        dropout(node.attr<double>("dropout")),
        causal(node.attr<bool>("causal")),
        segments(in[3]),
        rng(present(in, rng_index) ? in[rng_index] : nullptr) {
    for (int64_t h = 0; h < heads; ++h) biases.push_back(score_bias(node, h));
    if (dropout > 0) key = static_cast<uint32_t>(node.attr<int64_t>("key")), rule = KeepRule(node, dropout);
  }

  // probability factor of key j, of the segment that begins at `start`, for query t of head h
  double keep(int64_t h, int64_t t, int64_t start, int64_t j) const {
    if (dropout <= 0) return 1.0;
    if (rule.bytes) {
      const KeepByte at = keep_byte(tokens, first_head + h, t, j);
      return byte_of(random_block(*rng, key, at.block), at.byte) >= rule.threshold ? rule.factor : 0.0;
    }
    const int64_t offset = j - start;
    const auto element = static_cast<uint64_t>(((first_head + h) * tokens + t) * max_length + offset);
    return uniform_from_bits(random_block(*rng, key, element / 4)[element % 4]) >= dropout ? 1 / (1 - dropout) : 0.0;
  }

  // fn(head, query token, segment start, first visible key, end of the visible keys)
  template <typename Fn>
  void for_each_query(Fn fn) const {
    for (int64_t s = 0; s + 1 < segments->size(); ++s) {
      const int64_t begin = integer(segments, s), end = integer(segments, s + 1);
      check(begin >= 0 && begin <= end && end <= tokens, ErrorCode::kInvalidArgument,
            "attention: segment {} is [{}, {}) of {} tokens: starts must not decrease and stay within the tokens", s,
            begin, end, tokens);
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t t = begin; t < end; ++t) {
          const int64_t last = causal ? t + 1 : window > 0 ? std::min(end, t + window) : end;
          fn(h, t, begin, window > 0 ? std::max(begin, t - window + 1) : begin, last);
        }
      }
    }
  }
  // The part of head h of row t, of q or of k and v.
  auto* q_row(auto& x, int64_t h, int64_t t) const { return x.row(t) + h * dim; }
  auto* kv_row(auto& x, int64_t h, int64_t t) const { return x.row(t) + h / (heads / kv_heads) * dim; }
  double score(const RefTensor& q, const RefTensor& k, int64_t h, int64_t t, int64_t j) const {
    return scale * dot(q_row(q, h, t), kv_row(k, h, j)) +
           biases[static_cast<size_t>(h)] * -static_cast<double>(std::abs(j - t));
  }
  double dot(const double* a, const double* b) const {
    double sum = 0;
    for (int64_t d = 0; d < dim; ++d) sum += a[d] * b[d];
    return sum;
  }
};

}  // namespace

void attention(const Node& node, RefInputs in, RefResults out) {
  const Problem p(node, in, 4);
  std::vector<double> scores(static_cast<size_t>(p.tokens));
  p.for_each_query([&](int64_t h, int64_t t, int64_t start, int64_t first, int64_t end) {
    double largest = -INFINITY, sum = 0;
    for (int64_t j = first; j < end; ++j) {
      const double score = p.score(*in[0], *in[1], h, t, j);
      scores[static_cast<size_t>(j)] = score;
      if (!(score <= largest)) largest = score;  // NaN propagates
    }
    for (int64_t j = first; j < end; ++j) sum += std::exp(scores[static_cast<size_t>(j)] - largest);
    const double lse = largest + std::log(sum);
    double* row = p.q_row(out[0], h, t);
    for (int64_t j = first; j < end; ++j) {
      const double weight = std::exp(scores[static_cast<size_t>(j)] - lse) * p.keep(h, t, start, j);
      const double* v = p.kv_row(*in[2], h, j);
      for (int64_t d = 0; d < p.dim; ++d) row[d] += weight * v[d];
    }
    out[1].row(t)[h] = lse;
  });
}

// With P = exp(S - lse), K = keep factors, dP = (dout v^T) K, delta = dout . out:
// dv += P K dout; dS = P (dP - delta); dq += scale dS k; dk += scale dS q.
void attention_grad(const Node& node, RefInputs in, RefResults out) {
  const Problem p(node, in, 7);
  const RefTensor &q = *in[0], &k = *in[1], &v = *in[2], &dout = *in[6];
  p.for_each_query([&](int64_t h, int64_t t, int64_t start, int64_t first, int64_t end) {
    const double delta = p.dot(p.q_row(*in[4], h, t), p.q_row(dout, h, t));
    const double lse = in[5]->row(t)[h];
    const double *q_row = p.q_row(q, h, t), *dout_row = p.q_row(dout, h, t);
    double* dq = p.q_row(out[0], h, t);
    for (int64_t j = first; j < end; ++j) {
      const double *k_row = p.kv_row(k, h, j), *v_row = p.kv_row(v, h, j);
      const double probability = std::exp(p.score(q, k, h, t, j) - lse), keep = p.keep(h, t, start, j);
      const double ds = p.scale * probability * (p.dot(dout_row, v_row) * keep - delta);
      double *dk = p.kv_row(out[1], h, j), *dv = p.kv_row(out[2], h, j);
      for (int64_t d = 0; d < p.dim; ++d) {
        dq[d] += ds * k_row[d];
        dk[d] += ds * q_row[d];
        dv[d] += probability * keep * dout_row[d];
      }
    }
  });
}

}  // namespace octet::cpu::reference
