// The linear bias of a node's attention scores.
#pragma once

#include "ir/graph.h"
#include "kernels/common/alibi.h"

namespace octet::cpu {

// Added to a scaled score of `head` for each token of key position minus query position; 0 without ALiBi.
inline double score_bias(const Node& node, int64_t head) {
  const double exponent = node.attr<double>("alibi");
  if (exponent == 0) return 0;
  const int64_t all = node.attr<int64_t>("all_heads");  // 0: this node has all
  return node.attr<double>("alibi_scale") *
         alibi_slope(node.attr<int64_t>("first_head") + head, all > 0 ? all : node.attr<int64_t>("heads"), exponent);
}

// The same for unscaled scores; empty without ALiBi.
inline std::vector<float> biases_before_scale(const Node& node) {
  std::vector<float> biases;
  if (node.attr<double>("alibi") == 0) return biases;
  for (int64_t h = 0; h < node.attr<int64_t>("heads"); ++h)
    biases.push_back(static_cast<float>(score_bias(node, h) / node.attr<double>("scale")));
  return biases;
}

}  // namespace octet::cpu
