// The attributes of an attention node, and the checked view of its segments.
#pragma once

#include <cmath>

#include "base/error.h"
#include "kernels/common/keep_threshold.h"
#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/attention/score_bias.h"
#include "kernels/cpu/random_words.h"
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {

struct AttentionProblem {
  int64_t tokens, heads, kv_heads, dim, padded_dim, window, max_length;
  float scale;
  double dropout;
  uint32_t key = 0, threshold = 0;
  float kept_factor = 1;      // 1 / (1 - dropout)
  std::vector<float> biases;  // of each head, over the scale; empty without ALiBi

  AttentionProblem(const Graph& graph, const Node& node)
      : tokens(graph.shape(node.inputs[0]).rows()),
        heads(node.attr<int64_t>("heads")),
        kv_heads(node.attr<int64_t>("kv_heads")),
        dim(node.attr<int64_t>("head_dim")),
        padded_dim(tiles::round_up_lanes(dim)),
        window(node.attr<int64_t>("window")),
        max_length(node.attr<int64_t>("max_length")),
        scale(static_cast<float>(node.attr<double>("scale"))),
        dropout(node.attr<double>("dropout")) {
    biases = biases_before_scale(node);
    if (dropout <= 0) return;
    key = static_cast<uint32_t>(node.attr<int64_t>("key"));
    threshold = keep_threshold(dropout);
    kept_factor = static_cast<float>(1 / (1 - dropout));
  }

  int64_t group() const { return heads / kv_heads; }
  float bias(int64_t head) const { return biases.empty() ? 0.0f : biases[static_cast<size_t>(head)]; }
  int64_t q_row() const { return heads * dim; }
  int64_t kv_row() const { return kv_heads * dim; }
  // First key visible to query t of a segment starting at `start`.
  int64_t first_key(int64_t t, int64_t start) const { return window > 0 ? std::max(start, t - window + 1) : start; }

  // The checked segment starts, and the end of the last segment.
  int64_t check_segments(const int32_t* starts, int64_t segments) const {
    for (int64_t s = 0; s < segments; ++s) {
      check(starts[s] >= 0 && starts[s] <= starts[s + 1] && starts[s + 1] <= tokens, ErrorCode::kInvalidArgument,
            "attention: segment {} is [{}, {}) of {} tokens: starts must not decrease and stay within the tokens", s,
            starts[s], starts[s + 1], tokens);
    }
    return starts[segments];
  }
};

// Zeros the dropped probabilities of keys [0, count) of one query row and scales the others.
inline void drop_probabilities(const AttentionProblem& p, const RandomStream& stream, int64_t head, int64_t query,
                               int64_t first_offset, int64_t count, float* probabilities, uint32_t* buffer) {
  const auto element = static_cast<uint64_t>((head * p.tokens + query) * p.max_length + first_offset);
  const uint32_t* words = random_words(stream, element, count, buffer);
  simd::for_lanes(count, [&](int64_t i, auto lanes) {
    simd::Words bits;
    std::memcpy(&bits, words + i, sizeof bits);
    const simd::Floats kept = simd::load(probabilities + i, lanes) * p.kept_factor;
    simd::store(probabilities + i, (bits >> 8) >= p.threshold ? kept : simd::Floats{}, lanes);
  });
}

// Causal ones whose q, k, v and other float operands share a type; lse and integers are as declared.
inline bool accepts_attention(const Graph& graph, const Node& node, std::initializer_list<size_t> floats) {
  const DType dtype = node.results[0].dtype;
  if (!is_f32_or_bf16(dtype) || !node.attr<bool>("causal")) return false;
  for (size_t i : floats) {
    if (graph.dtype(node.inputs[i]) != dtype) return false;
  }
  return node.attr<int64_t>("heads") % node.attr<int64_t>("kv_heads") == 0 && node.attr<double>("scale") > 0;
}

// A bump allocator over a thread's share of the workspace, aligned to cache lines.
class Scratch {
 public:
  Scratch(std::byte* begin, int64_t bytes) : next_(begin), left_(bytes) {}
  float* floats(int64_t count) {
    const int64_t bytes = (count * 4 + 63) / 64 * 64;
    check(bytes <= left_, ErrorCode::kInternal, "attention needs {} bytes of scratch, {} are left", bytes, left_);
    float* piece = reinterpret_cast<float*>(next_);
    next_ += bytes, left_ -= bytes;
    return piece;
  }

 private:
  std::byte* next_;
  int64_t left_;
};

}  // namespace octet::cpu
