// The op families' lists of CUDA entries, best first. A family that gets entries is declared and listed here, once.
#pragma once

#include <span>
#include <vector>

#include "kernels/common/dtype_sets.h"
#include "kernels/cuda/kernel.h"

namespace octet::cuda {

std::span<const KernelEntry> matmul_kernels();       // matmul, scaled_matmul, matmul fusions
std::span<const KernelEntry> norm_kernels();         // layer_norm, rms_norm, gradients, norm fusions
std::span<const KernelEntry> elementwise_kernels();  // elementwise ops, dropout
std::span<const KernelEntry> activation_kernels();   // fusions of activations and of gradients
std::span<const KernelEntry> precision_kernels();    // quantize, dequantize, compute_scale, update_scales
std::span<const KernelEntry> attention_kernels();    // attention, attention_grad
std::span<const KernelEntry> position_kernels();     // rope, alone and with its amax
std::span<const KernelEntry> embedding_kernels();
std::span<const KernelEntry> loss_kernels();
std::span<const KernelEntry> shape_kernels();
std::span<const KernelEntry> optimiser_kernels();
std::span<const KernelEntry> inference_kernels();          // scatter_rows, paged_attention
std::span<const KernelEntry> rope_scatter_rows_kernels();  // rope and scatter_rows of a layer as one
std::span<const KernelEntry> sampling_kernels();           // select_token_ids, adjust_logits, sample, top_logprobs
std::span<const KernelEntry> fusion_member_kernels();      // any fusion, its members one by one

inline std::vector<std::span<const KernelEntry>> families() {
  return {matmul_kernels(),
          norm_kernels(),
          elementwise_kernels(),
          activation_kernels(),
          precision_kernels(),
          attention_kernels(),
          position_kernels(),
          embedding_kernels(),
          loss_kernels(),
          shape_kernels(),
          optimiser_kernels(),
          inference_kernels(),
          rope_scatter_rows_kernels(),
          sampling_kernels(),
          fusion_member_kernels()};
}

}  // namespace octet::cuda
