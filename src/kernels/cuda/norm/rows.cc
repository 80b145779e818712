// Rows of the family: none yet.
#include "kernels/cuda/families.h"

namespace octet::cuda {

std::span<const KernelRow> norm_rows() { return {}; }
std::span<const char* const> norm_fusion_kinds() { return {}; }

}  // namespace octet::cuda
