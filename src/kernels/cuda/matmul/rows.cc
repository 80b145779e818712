// Rows of the family: none yet.
#include "kernels/cuda/families.h"

namespace octet::cuda {

std::span<const KernelRow> matmul_rows() { return {}; }
std::span<const char* const> matmul_fusion_kinds() { return {}; }

}  // namespace octet::cuda
