// The op families' lists of fast rows, best first. kernel_table.cc joins them and adds the reference rows.
// A family that gets fast rows is declared and listed here, once.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/kernel.h"

namespace octet::cpu {

std::span<const KernelRow> matmul_rows();
std::span<const KernelRow> precision_rows();

inline std::vector<std::span<const KernelRow>> fast_families() { return {matmul_rows(), precision_rows()}; }

}  // namespace octet::cpu
