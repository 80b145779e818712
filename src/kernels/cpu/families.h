// The op families' lists of fast entries, best first. kernel_table.cc joins them and adds the reference entries.
// A family with fast entries is declared and listed here.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/kernel.h"

namespace octet::cpu {

std::span<const KernelEntry> matmul_kernels();
std::span<const KernelEntry> quantize_kernels();
std::span<const KernelEntry> scale_kernels();
std::span<const KernelEntry> stats_kernels();
std::span<const KernelEntry> elementwise_kernels();
std::span<const KernelEntry> norm_kernels();
std::span<const KernelEntry> attention_kernels();
std::span<const KernelEntry> attention_grad_kernels();
std::span<const KernelEntry> position_kernels();
std::span<const KernelEntry> embedding_kernels();
std::span<const KernelEntry> loss_kernels();
std::span<const KernelEntry> shape_kernels();
std::span<const KernelEntry> update_kernels();
std::span<const KernelEntry> gradient_norm_kernels();
std::span<const KernelEntry> scatter_rows_kernels();
std::span<const KernelEntry> paged_attention_kernels();
std::span<const KernelEntry> copy_blocks_kernels();
std::span<const KernelEntry> sampling_kernels();
std::span<const KernelEntry> fusion_kernels();

inline std::vector<std::span<const KernelEntry>> fast_families() {
  return {matmul_kernels(),        quantize_kernels(),       scale_kernels(),           elementwise_kernels(),
          norm_kernels(),          attention_kernels(),      position_kernels(),        embedding_kernels(),
          loss_kernels(),          attention_grad_kernels(), shape_kernels(),           update_kernels(),
          gradient_norm_kernels(), scatter_rows_kernels(),   paged_attention_kernels(), fusion_kernels(),
          stats_kernels(),         copy_blocks_kernels(),    sampling_kernels()};
}

}  // namespace octet::cpu
