// The linear bias of a node's attention scores.
#pragma once

#include "ir/graph.h"
#include "kernels/common/alibi.h"

namespace octet::cpu {

// Added to a scaled score of `head` for each token of key position minus query position; 0 without ALiBi.
inline double score_bias(const Node& node, int64_t head) {
  const double exponent = node.attrs.get_or<double>("alibi", 0.0);
  if (exponent == 0) return 0;
  return node.attrs.get_or<double>("alibi_scale", 1.0) * alibi_slope(head, node.attrs.get<int64_t>("heads"), exponent);
}

// The same for unscaled scores; empty without ALiBi.
inline std::vector<float> biases_before_scale(const Node& node) {
  std::vector<float> biases;
  if (node.attrs.get_or<double>("alibi", 0.0) == 0) return biases;
  for (int64_t h = 0; h < node.attrs.get<int64_t>("heads"); ++h)
    biases.push_back(static_cast<float>(score_bias(node, h) / node.attrs.get<double>("scale")));
  return biases;
}

}  // namespace octet::cpu
