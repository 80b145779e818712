// Rows of the family: none yet.
#include "kernels/cuda/families.h"

namespace octet::cuda {

std::span<const KernelRow> attention_rows() { return {}; }
std::span<const char* const> attention_fusion_kinds() { return {}; }

}  // namespace octet::cuda
