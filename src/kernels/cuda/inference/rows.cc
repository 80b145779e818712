// Rows of the family: none yet.
#include "kernels/cuda/families.h"

namespace octet::cuda {

std::span<const KernelRow> inference_rows() { return {}; }

}  // namespace octet::cuda
