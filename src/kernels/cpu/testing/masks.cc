#include "kernels/cpu/testing/masks.h"

#include <algorithm>
#include <cmath>

namespace octet::cpu {
namespace {

constexpr int64_t kDistances = 64;

}  // namespace

double DropoutProblem::scale() const { return 1 / std::sqrt(static_cast<double>(dim)); }

int64_t DropoutProblem::longest() const {
  double longest = 0;
  for (size_t s = 0; s + 1 < starts.size(); ++s) longest = std::fmax(longest, starts[s + 1] - starts[s]);
  return static_cast<int64_t>(longest);
}

void DropoutProblem::for_each_query(const std::function<void(int64_t, int64_t, int64_t, int64_t)>& fn) const {
  for (size_t s = 0; s + 1 < starts.size(); ++s) {
    const auto begin = static_cast<int64_t>(starts[s]), end = static_cast<int64_t>(starts[s + 1]);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = begin; t < end; ++t) fn(h, t, begin, window > 0 ? std::max(begin, t - window + 1) : begin);
    }
  }
}

BuiltCase build_dropout(const DropoutProblem& p, Op op) {
  const CaseInput q = x({p.tokens, p.heads * p.dim}), kv = x({p.tokens, p.kv_heads * p.dim});
  Case c{.op = op,
         .name = p.name,
         .inputs = {q, kv, kv, given(DType::kI32, {static_cast<int64_t>(p.starts.size())}, p.starts)},
         .attrs = {{"heads", p.heads},
                   {"kv_heads", p.kv_heads},
                   {"head_dim", p.dim},
                   {"scale", p.scale()},
                   {"window", p.window},
                   {"max_length", p.longest()},
                   {"equal_length", p.equal_length},
                   {"dropout", p.dropout},
                   {"key", p.key}}};
  if (p.bits != 32) c.attrs.set("bits", p.bits);
  if (p.library_mask) c.attrs.set("library_mask", true);
  if (op == Op::kAttentionGrad) c.inputs.insert(c.inputs.end(), {q, normal(DType::kF32, {p.tokens, p.heads}), q});
  c.inputs.push_back(given(DType::kI64, {3}, p.rng));
  return build_case(c, DType::kBF16);
}

Mask defined_mask(const DropoutProblem& p) {
  Mask mask(static_cast<size_t>(p.heads * p.tokens * p.tokens));
  const int64_t longest = p.longest();
  p.for_each_query([&](int64_t h, int64_t t, int64_t start, int64_t first) {
    for (int64_t j = first; j <= t; ++j) {
      if (p.bits ==
          8) {  // draw (query % 8, key % 8) of every 16 queries and 64 keys; its bytes by key / 8, then query / 8
        const int64_t draw = (h * ((p.tokens + 15) / 16) + t / 16) << 32 | (j / 64 * 64 + t % 8 * 8 + j % 8);
        const PhiloxBlock words =
            graph_random(static_cast<uint64_t>(p.rng[0]), static_cast<uint64_t>(p.rng[1]),
                         static_cast<uint32_t>(p.rng[2]), static_cast<uint32_t>(p.key), static_cast<uint64_t>(draw));
        const int64_t byte = j % 64 / 8 * 2 + t % 16 / 8;
        mask[static_cast<size_t>((h * p.tokens + t) * p.tokens + j)] =
            (words[static_cast<size_t>(byte / 4)] >> (byte % 4 * 8) & 0xff) >= std::lround(256 * p.dropout);
        continue;
      }
      const auto element = static_cast<uint64_t>((h * p.tokens + t) * longest + j - start);
      const PhiloxBlock words =
          graph_random(static_cast<uint64_t>(p.rng[0]), static_cast<uint64_t>(p.rng[1]),
                       static_cast<uint32_t>(p.rng[2]), static_cast<uint32_t>(p.key), element / 4);
      mask[static_cast<size_t>((h * p.tokens + t) * p.tokens + j)] = uniform_from_bits(words[element % 4]) >= p.dropout;
    }
  });
  return mask;
}

Mask read_mask(const DropoutProblem& p, const std::function<std::vector<double>(const BuiltCase&)>& run) {
  BuiltCase c = build_dropout(p, Op::kAttention);
  for (size_t i : {0u, 1u}) std::fill(c.inputs[i].values.begin(), c.inputs[i].values.end(), 0.0);
  Mask mask(static_cast<size_t>(p.heads * p.tokens * p.tokens));
  for (int64_t first = 0; first < p.tokens; first += p.dim) {
    std::vector<double>& values = c.inputs[2].values;
    std::fill(values.begin(), values.end(), 0.0);
    const int64_t keys = std::min(p.dim, p.tokens - first);
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t h = 0; h < p.kv_heads; ++h)
        values[static_cast<size_t>(((first + j) * p.kv_heads + h) * p.dim + j)] = 1;
    }
    const std::vector<double> out = run(c);
    for (int64_t h = 0; h < p.heads; ++h) {
      for (int64_t t = 0; t < p.tokens; ++t) {
        for (int64_t j = 0; j < keys; ++j) {
          mask[static_cast<size_t>((h * p.tokens + t) * p.tokens + first + j)] =
              out[static_cast<size_t>((t * p.heads + h) * p.dim + j)] != 0;
        }
      }
    }
  }
  return mask;
}

std::string Share::unlike(const std::string& what, double want, double deviations) const {
  const double bound = deviations * std::sqrt(want * (1 - want) / count);
  if (std::fabs(share() - want) <= bound) return {};
  return fmt::format("{}: {:.4f} of {} elements, not {:.4f} +- {:.4f}", what, share(), count, want, bound);
}

std::vector<std::string> MaskShares::unlike_independent(double dropout) const {
  std::vector<std::string> lines;
  const double chance = chance_equal(dropout);
  const auto add = [&](const std::string& line) {
    if (!line.empty()) lines.push_back(line);
  };
  add(kept.unlike("kept", 1 - dropout, 5));
  if (heads.count > 0) add(heads.unlike("equal in two heads", chance, 7));
  if (segments.count > 0) add(segments.unlike("equal in two segments", chance, 7));
  for (size_t d = 1; d < queries.size(); ++d) {
    add(queries[d].unlike(fmt::format("equal in queries {} apart", d), chance, 7));
    add(keys[d].unlike(fmt::format("equal in keys {} apart", d), chance, 7));
  }
  return lines;
}

MaskShares shares_of(const DropoutProblem& p, const Mask& mask, int64_t first_of_8) {
  const auto at = [&](int64_t h, int64_t t, int64_t j) {
    return mask[static_cast<size_t>((h * p.tokens + t) * p.tokens + j)];
  };
  MaskShares s;
  s.queries.resize(kDistances), s.keys.resize(kDistances);
  p.for_each_query([&](int64_t h, int64_t t, int64_t start, int64_t first) {
    const int64_t of_8 = (t - start) % 8, segment = p.equal_length;
    for (int64_t j = first; j <= t; ++j) {
      if (of_8 >= 2 && j <= t - 2) s.repeated.add(at(h, t, j) == at(h, t - 2, j));
      if (of_8 >= first_of_8) continue;
      s.kept.add(at(h, t, j) != 0);
      if (h > 0) s.heads.add(at(h, t, j) == at(h - 1, t, j));
      if (segment > 0 && start >= segment) s.segments.add(at(h, t, j) == at(h, t - segment, j - segment));
      for (int64_t d = 1; d < kDistances; ++d) {
        if (t - d >= j) s.queries[static_cast<size_t>(d)].add(at(h, t, j) == at(h, t - d, j));
        if (j - d >= first) s.keys[static_cast<size_t>(d)].add(at(h, t, j) == at(h, t, j - d));
      }
    }
  });
  return s;
}

Share equal_share(const DropoutProblem& p, const Mask& a, const Mask& b, int64_t first_of_8) {
  Share share;
  p.for_each_query([&](int64_t h, int64_t t, int64_t start, int64_t first) {
    if ((t - start) % 8 >= first_of_8) return;
    for (int64_t j = first; j <= t; ++j) {
      const auto i = static_cast<size_t>((h * p.tokens + t) * p.tokens + j);
      share.add(a[i] == b[i]);
    }
  });
  return share;
}

}  // namespace octet::cpu
