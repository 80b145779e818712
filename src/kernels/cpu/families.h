// The op families' lists of fast rows, best first. kernel_table.cc joins them and adds the reference rows.
// A family that gets fast rows is declared and listed here, once.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/kernel.h"

namespace octet::cpu {

std::span<const KernelRow> matmul_rows();
std::span<const KernelRow> quantize_rows();
std::span<const KernelRow> scale_rows();
std::span<const KernelRow> stats_rows();
std::span<const KernelRow> elementwise_rows();
std::span<const KernelRow> norm_rows();
std::span<const KernelRow> attention_rows();
std::span<const KernelRow> attention_grad_rows();
std::span<const KernelRow> position_rows();
std::span<const KernelRow> embedding_rows();
std::span<const KernelRow> loss_rows();
std::span<const KernelRow> shape_rows();
std::span<const KernelRow> update_rows();
std::span<const KernelRow> gradient_norm_rows();
std::span<const KernelRow> scatter_rows_rows();
std::span<const KernelRow> paged_attention_rows();
std::span<const KernelRow> copy_blocks_rows();
std::span<const KernelRow> sampling_rows();
std::span<const KernelRow> fusion_rows();

inline std::vector<std::span<const KernelRow>> fast_families() {
  return {matmul_rows(),    quantize_rows(), scale_rows(),         elementwise_rows(),  norm_rows(),
          attention_rows(), position_rows(), embedding_rows(),     loss_rows(),         attention_grad_rows(),
          shape_rows(),     update_rows(),   gradient_norm_rows(), scatter_rows_rows(), paged_attention_rows(),
          fusion_rows(),    stats_rows(),    copy_blocks_rows(),   sampling_rows()};
}

}  // namespace octet::cpu
