// Rows of the family: none yet.
#include "kernels/cuda/families.h"

namespace octet::cuda {

std::span<const KernelRow> optimiser_rows() { return {}; }

}  // namespace octet::cuda
