// Maps each op to the family that makes its row kernel.
#include "kernels/cpu/row_kernels.h"

namespace octet::cpu {

std::optional<RowKernel> make_row_kernel(const Graph& graph, const Node& node, RowUse use) {
  switch (node.op) {
    case Op::kCast:
    case Op::kScale:
    case Op::kGelu:
    case Op::kGeluGrad:
    case Op::kSilu:
    case Op::kSiluGrad:
    case Op::kRelu:
    case Op::kReluGrad: return unary_row_kernel(graph, node, use);
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kMaximum: return binary_row_kernel(graph, node, use);
    case Op::kDropout: return dropout_row_kernel(graph, node, use);
    case Op::kLayerNorm:
    case Op::kRmsNorm: return norm_row_kernel(graph, node);
    case Op::kLayerNormGrad:
    case Op::kRmsNormGrad: return norm_grad_row_kernel(graph, node);
    case Op::kReduce: return reduce_row_kernel(graph, node);
    case Op::kRope: return rope_row_kernel(graph, node);
    case Op::kCrossEntropy:
    case Op::kCrossEntropyGrad: return cross_entropy_row_kernel(graph, node);
    case Op::kQuantize: return use == RowUse::kFused ? quantize_row_kernel(graph, node) : std::nullopt;
    default: return std::nullopt;
  }
}

}  // namespace octet::cpu
