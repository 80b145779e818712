// attention and its gradient of bf16 through cuDNN, and what its entries share with those of our own kernels.
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/kernel.h"

namespace octet::cuda {

// Causal or without linear biases, and all float operands (q, k, v; out and dout of the gradient) pass the test.
template <typename Test>
bool runs_with(const Graph& graph, const Node& node, Test test) {
  if (!node.attr<bool>("causal") && node.attr<double>("alibi") > 0) return false;
  const bool backward = node.op == Op::kAttentionGrad;
  for (size_t i = 0; i < (backward ? 7u : 3u); ++i) {
    if (i != 3 && i != 5 && !test(graph.dtype(node.inputs[i]))) return false;
  }
  return true;
}

inline bool is_bf16(DType dtype) { return dtype == DType::kBF16; }

// Binds cuDNN's plan; where there is no cuDNN, or it refuses the shape, our own kernels. Taken are nodes that cuDNN
// could take: bf16, head dims of whole 16 bytes up to 256, dropout only by a library's mask, not many more segments
// allowed for than can be there. With dropout cuDNN must take both attention and its gradient, whichever the node is:
// one mask for both.
BoundKernel bind_cudnn(DeviceContext& context, const Graph& graph, const Node& node);

// Without cuDNN (kernels.cc).
AttentionProblem attention_problem(const Graph& graph, const Node& node);
BoundKernel bind_attention_own(DeviceContext& context, const Graph& graph, const Node& node);

}  // namespace octet::cuda
