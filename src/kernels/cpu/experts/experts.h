// The entries of mixtures of experts: products (grouped_products.cc) and rows (rows.cc).
#pragma once

#include "kernels/cpu/kernel.h"

namespace octet::cpu {

std::vector<KernelEntry> experts_kernels();  // all of them
std::vector<KernelEntry> grouped_product_kernels();

}  // namespace octet::cpu
