// The op families' lists of CUDA rows, best first. A family that gets rows is declared and listed here, once.
#pragma once

#include <span>
#include <vector>

#include "kernels/common/dtype_sets.h"
#include "kernels/cuda/kernel.h"

namespace octet::cuda {

std::span<const KernelRow> matmul_rows();       // matmul, scaled_matmul, matmul fusions
std::span<const KernelRow> norm_rows();         // layer_norm, rms_norm, gradients, norm fusions
std::span<const KernelRow> elementwise_rows();  // elementwise ops, dropout
std::span<const KernelRow> activation_rows();   // fusions of activations and of gradients
std::span<const KernelRow> precision_rows();    // quantize, dequantize, compute_scale, update_scales
std::span<const KernelRow> attention_rows();    // attention, attention_grad
std::span<const KernelRow> position_rows();     // rope, alone and with its amax
std::span<const KernelRow> embedding_rows();
std::span<const KernelRow> loss_rows();
std::span<const KernelRow> shape_rows();
std::span<const KernelRow> optimiser_rows();
std::span<const KernelRow> inference_rows();          // scatter_rows, paged_attention
std::span<const KernelRow> rope_scatter_rows_rows();  // rope and scatter_rows of a layer as one
std::span<const KernelRow> sampling_rows();           // select_token_ids, adjust_logits, sample, top_logprobs
std::span<const KernelRow> fusion_member_rows();      // any fusion, its members one by one

inline std::vector<std::span<const KernelRow>> families() {
  return {matmul_rows(),    norm_rows(),      elementwise_rows(),       activation_rows(), precision_rows(),
          attention_rows(), position_rows(),  embedding_rows(),         loss_rows(),       shape_rows(),
          optimiser_rows(), inference_rows(), rope_scatter_rows_rows(), sampling_rows(),   fusion_member_rows()};
}

}  // namespace octet::cuda
