#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace octet {

void validate(const SamplingOptions& o, int64_t vocab) {
  const auto require = [](bool holds, const char* name, auto value, const char* want) {
    check(holds, ErrorCode::kInvalidArgument, "{}: {} (want {})", name, value, want);
  };
  require(o.temperature >= 0 && o.temperature <= 100, "temperature", o.temperature, "0 to 100; 0 is greedy");
  require(o.top_k >= 0 && o.top_k <= std::numeric_limits<int32_t>::max(), "top_k", o.top_k, "0 to 2^31 - 1; 0 is off");
  require(o.top_p >= 0 && o.top_p <= 1, "top_p", o.top_p, "0 to 1; 0 is greedy, 1 is off");
  require(o.min_p >= 0 && o.min_p <= 1, "min_p", o.min_p, "0 to 1; 0 is off");
  require(o.repetition_penalty > 0 && o.repetition_penalty <= 100, "repetition_penalty", o.repetition_penalty,
          "0 < r <= 100; 1 is off");
  require(std::fabs(o.presence_penalty) <= 2, "presence_penalty", o.presence_penalty, "-2 to 2");
  require(std::fabs(o.frequency_penalty) <= 2, "frequency_penalty", o.frequency_penalty, "-2 to 2");
  for (const auto& [token, bias] : o.logit_bias) {
    check(token >= 0 && (vocab <= 0 || token < vocab), ErrorCode::kInvalidArgument,
          "logit_bias: token {} (want 0 to {})", token,
          vocab > 0 ? vocab - 1 : int64_t{std::numeric_limits<int32_t>::max()});
    check(std::fabs(bias) <= 100 || bias == -std::numeric_limits<float>::infinity(), ErrorCode::kInvalidArgument,
          "logit_bias: {} for token {} (want -100 to 100, or -infinity)", bias, token);
  }
}

SampleRow sample_row(const SamplingOptions& o, int64_t sequence, int64_t position) {
  // A temperature or top_p too small for the op's float32 would become 0, which means greedy: both are kept above it.
  constexpr double kSmallest = std::numeric_limits<float>::min();
  const bool greedy = o.temperature == 0 || o.top_p == 0;
  return {.temperature = static_cast<float>(greedy ? 0 : std::max(o.temperature, 1e-4)),
          .top_p = static_cast<float>(std::max(o.top_p, kSmallest)),
          .min_p = static_cast<float>(o.min_p),
          .top_k = static_cast<int32_t>(o.top_k),
          .seed = static_cast<int64_t>(o.seed),
          .sequence = sequence,
          .position = position};
}

TokenCounts::TokenCounts(const SamplingOptions& o, int64_t min_tokens, std::span<const int32_t> stops)
    : repetition_(o.repetition_penalty),
      presence_(o.presence_penalty),
      frequency_(o.frequency_penalty),
      min_tokens_(min_tokens) {
  for (const auto& [id, bias] : o.logit_bias) token(id).bias = bias;
  if (min_tokens_ == 0) return;
  for (int32_t id : stops)
    if (id >= 0) token(id).stops = true;
}

TokenCounts::Token& TokenCounts::token(int32_t id) {
  const auto [at, added] = index_.try_emplace(id, tokens_.size());
  if (added) tokens_.push_back({.id = id});
  return tokens_[at->second];
}

void TokenCounts::add_prompt(std::span<const int32_t> ids) {
  if (repetition_ == 1) return;
  for (int32_t id : ids) token(id).prompt = true;
}

void TokenCounts::add_output(int32_t id) {
  ++outputs_;
  if (!grows()) return;
  const size_t known = tokens_.size();
  Token& added = token(id);
  if (tokens_.size() > known) added.output_only = true;
  ++added.outputs;
}

void TokenCounts::remove_output(int32_t id) {
  --outputs_;
  if (!grows()) return;
  Token& removed = token(id);
  if (--removed.outputs > 0 || !removed.output_only) return;
  index_.erase(id);  // it was added with this output, behind all others
  tokens_.pop_back();
}

TokenCounts::Values TokenCounts::values(const Token& t) const {
  const bool forbidden = t.stops && outputs_ < min_tokens_;
  const double penalty = t.outputs > 0 ? presence_ + frequency_ * t.outputs : 0;
  return {.bias = forbidden ? -std::numeric_limits<float>::infinity() : t.bias,
          .repetition = t.prompt || t.outputs > 0 ? static_cast<float>(repetition_) : 1.0f,
          .penalty = static_cast<float>(penalty)};
}

void TokenCounts::append_entries(int32_t row, std::vector<int32_t>& entries, std::vector<float>& values_out) const {
  for (const Token& t : tokens_) {
    const Values v = values(t);
    entries.insert(entries.end(), {row, t.id});
    values_out.insert(values_out.end(), {v.bias, v.repetition, v.penalty});
  }
}

}  // namespace octet
