// The kernel rows of the norms.
#include "kernels/cpu/row_program.h"

namespace octet::cpu {

std::span<const KernelEntry> norm_kernels() {
  static const KernelEntry kernels[] = {
      {Op::kLayerNorm, "layer_norm_rows", has_row_kernel, bind_row_kernel},
      {Op::kLayerNormGrad, "layer_norm_grad_rows", has_row_kernel, bind_row_kernel},
      {Op::kRmsNorm, "rms_norm_rows", has_row_kernel, bind_row_kernel},
      {Op::kRmsNormGrad, "rms_norm_grad_rows", has_row_kernel, bind_row_kernel},
  };
  return kernels;
}

}  // namespace octet::cpu
