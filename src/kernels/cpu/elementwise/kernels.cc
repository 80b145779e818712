// The kernel rows of the elementwise ops.
#include "kernels/cpu/row_program.h"

namespace octet::cpu {

std::span<const KernelEntry> elementwise_kernels() {
  static const KernelEntry kernels[] = {
      {Op::kCast, "cast_rows", has_row_kernel, bind_row_kernel},
      {Op::kScale, "scale_rows", has_row_kernel, bind_row_kernel},
      {Op::kGelu, "gelu_rows", has_row_kernel, bind_row_kernel},
      {Op::kGeluGrad, "gelu_grad_rows", has_row_kernel, bind_row_kernel},
      {Op::kSilu, "silu_rows", has_row_kernel, bind_row_kernel},
      {Op::kSiluGrad, "silu_grad_rows", has_row_kernel, bind_row_kernel},
      {Op::kRelu, "relu_rows", has_row_kernel, bind_row_kernel},
      {Op::kReluGrad, "relu_grad_rows", has_row_kernel, bind_row_kernel},
      {Op::kAdd, "add_rows", has_row_kernel, bind_row_kernel},
      {Op::kSub, "sub_rows", has_row_kernel, bind_row_kernel},
      {Op::kMul, "mul_rows", has_row_kernel, bind_row_kernel},
      {Op::kMaximum, "maximum_rows", has_row_kernel, bind_row_kernel},
      {Op::kDropout, "dropout_philox", has_row_kernel, bind_row_kernel},
  };
  return kernels;
}

}  // namespace octet::cpu
