// Cases of the activation fusions: for the test that compares them with their members, and for speed.
#pragma once

#include "kernels/cpu/testing/cases.h"

namespace octet::cuda {

struct ActivationFusion {
  // Words of what it has: bias, gelu | silu | relu | plain, gated | squared, grad, sum, amax | quantize
  std::string kind;
  int64_t rows = 0, cols = 0;
  std::vector<std::string> results = {};  // body outputs: bias.0, act.0, y.0, dx.0, dup.0, quantize.2, amax_dx.0
  std::string scaling = "tensor";         // of quantize
  DType format = DType::kE4M3;            // of quantize
  bool tanh_form = true;                  // of gelu
  bool keeps_activation = true;           // gradients: it is read instead of made again
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16};
  bool special = false;  // rows of zeros, infinities, NaNs, very large and very small values first
  bool sliced = false;   // x (and up) are columns of one matrix, eight columns apart; no gradients
};
// Activations are x(...) of the case's type, biases f32.
cpu::Case activation_fusion_case(const ActivationFusion& fusion);

}  // namespace octet::cuda
