// The op families' lists of CUDA entries, best first. A family that gets entries is declared here and listed in
// kernel_table.cc.
#pragma once

#include <span>

#include "kernels/common/dtype_sets.h"
#include "kernels/cuda/common/operand.h"
#include "kernels/cuda/kernel.h"

namespace octet::cuda {

std::span<const KernelEntry> matmul_kernels();       // matmul, scaled_matmul, matmul fusions
std::span<const KernelEntry> norm_kernels();         // layer_norm, rms_norm, gradients, norm fusions
std::span<const KernelEntry> elementwise_kernels();  // elementwise ops, dropout
std::span<const KernelEntry> activation_kernels();   // fusions of activations and of gradients
std::span<const KernelEntry> precision_kernels();    // quantize, dequantize, compute_scale, update_scales
std::span<const KernelEntry> attention_kernels();    // attention, attention_grad
std::span<const KernelEntry> position_kernels();     // rope, alone, with its amax, with scatter_rows
std::span<const KernelEntry> embedding_kernels();
std::span<const KernelEntry> loss_kernels();
std::span<const KernelEntry> shape_kernels();
std::span<const KernelEntry> optimiser_kernels();
std::span<const KernelEntry> experts_kernels();        // routing, rows, grouped products
std::span<const KernelEntry> inference_kernels();      // scatter_rows, paged_attention
std::span<const KernelEntry> sampling_kernels();       // select_token_ids, adjust_logits, sample, top_logprobs
std::span<const KernelEntry> collective_kernels();     // all_reduce, ..., take_part
std::span<const KernelEntry> fusion_member_kernels();  // any fusion, its members one by one

// What entries of several families ask and do.
// kBind of the nodes that kTakes(graph, node) takes.
template <auto kTakes, BindNode kBind>
BoundKernel bind_if(DeviceContext& context, const Graph& graph, const Node& node) {
  return kTakes(graph, node) ? kBind(context, graph, node) : BoundKernel();
}
inline bool first_is_f32_or_bf16(const Graph& graph, const Node& node) {
  return is_f32_or_bf16(graph.dtype(node.inputs[0]));
}
inline Operand operand(const Tensor& tensor) {
  return tensor.data == nullptr ? Operand{} : Operand{tensor.data, tensor.dtype()};
}
// to = from, of as many bytes, unless they are the same memory.
void copy_tensor(const Tensor& from, const Tensor& to, cudaStream_t stream);

}  // namespace octet::cuda
